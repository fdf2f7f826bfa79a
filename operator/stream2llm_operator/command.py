"""`stream2llm operator`: the Kubernetes operator."""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys
from pathlib import Path

from stream2llm import logs
from stream2llm.costprofile import CostProfile, parse_profile


class OperatorCommand:
    help = "run the Kubernetes operator for StreamingPrefill resources"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        for flag, variable, default, metavar, text in (
            ("--image-cuda", "STREAM2LLM_IMAGE_CUDA", "stream2llm-pod:latest", "IMAGE", "serving pods on GPUs"),
            ("--image-cpu", "STREAM2LLM_IMAGE_CPU", "stream2llm-pod:cpu", "IMAGE", "serving pods on CPU"),
            ("--image-router", "STREAM2LLM_IMAGE_ROUTER", "stream2llm-router:latest", "IMAGE", "routers"),
            ("--image-pull-policy", "STREAM2LLM_IMAGE_PULL_POLICY", "IfNotPresent", "P", "for all of them"),
            ("--image-pull-secrets", "STREAM2LLM_IMAGE_PULL_SECRETS", "", "NAMES", "names, with commas between"),
            ("--engine-version", "STREAM2LLM_ENGINE_VERSION", "0.32.0", "V", "vLLM's version in the default images"),
            (
                "--monitoring-namespace-labels",
                "STREAM2LLM_MONITORING_NAMESPACE_LABELS",
                "",
                "K=V,…",
                "namespaces that may read the pods' metrics",
            ),
            (
                "--pod-monitor-interval",
                "STREAM2LLM_POD_MONITOR_INTERVAL",
                "",
                "TIME",
                "make PodMonitors that read pods and routers so often, such as 15s; empty for none",
            ),
            (
                "--pod-monitor-labels",
                "STREAM2LLM_POD_MONITOR_LABELS",
                "",
                "K=V,…",
                "labels of PodMonitors, by which Prometheus selects them",
            ),
            (
                "--namespaces",
                "STREAM2LLM_NAMESPACES",
                "",
                "NAMES",
                "watch these only, with commas between; then nodes are not read and gpu.product must be set",
            ),
            (
                "--lease-namespace",
                "STREAM2LLM_LEASE_NAMESPACE",
                "",
                "NAME",
                "elect a leader by a Lease there, so that several may run",
            ),
            (
                "--cost-profiles",
                "STREAM2LLM_COST_PROFILES",
                "",
                "FOLDER",
                "cost profiles for resources with costProfile.bundled, as *.json",
            ),
            ("--health", "STREAM2LLM_HEALTH", "0.0.0.0:8081", "ADDR", "address of /healthz"),
            ("--metrics", "STREAM2LLM_METRICS", "0.0.0.0:8082", "ADDR", "address of /metrics"),
        ):
            shown = f" (default {default})" if default else ""
            parser.add_argument(flag, default=os.environ.get(variable, default), metavar=metavar, help=f"{text}{shown}")
        logs.add_log_argument(parser)

    def run(self, args: argparse.Namespace) -> int:
        logs.show_logs(args.log_format, "%(asctime)s %(levelname)s %(name)s %(message)s")
        try:
            health, metrics = _address("--health", args.health), _address("--metrics", args.metrics)
            labels = _labels("--monitoring-namespace-labels", args.monitoring_namespace_labels)
            monitor_labels = _labels("--pod-monitor-labels", args.pod_monitor_labels)
            interval = _interval(args.pod_monitor_interval)
            profiles = bundled_profiles(args.cost_profiles)
        except (ValueError, OSError) as error:
            print(f"stream2llm operator: {error}", file=sys.stderr)
            return 2
        import asyncio

        from kubernetes.aio.config import ConfigException

        from stream2llm_operator.pool import OperatorSettings, PodMonitorSettings
        from stream2llm_operator.running import OperatorProcess, Options

        options = Options(
            settings=OperatorSettings(
                image_cuda=args.image_cuda,
                image_cpu=args.image_cpu,
                image_router=args.image_router,
                image_pull_policy=args.image_pull_policy,
                image_pull_secrets=_names(args.image_pull_secrets),
                engine_version=args.engine_version,
                monitoring_namespace_labels=labels,
                pod_monitor=PodMonitorSettings(monitor_labels, interval) if interval else None,
                bundled=profiles,
            ),
            namespaces=_names(args.namespaces),
            lease_namespace=args.lease_namespace,
            identity=f"{socket.gethostname()}-{os.getpid()}",
            health=health,
            metrics=metrics,
        )

        async def run() -> None:
            await OperatorProcess(options).run()

        try:
            asyncio.run(run())
        except (ConfigException, OSError) as error:
            print(f"stream2llm operator: {error}", file=sys.stderr)
            return 1
        return 0


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in (part.strip() for part in text.split(",")) if name)


def bundled_profiles(folder: str) -> tuple[CostProfile, ...]:
    """All of a folder. Raises ValueError that names the file, OSError where there is no such folder."""
    found = []
    for path in sorted(Path(folder).iterdir()) if folder else ():
        if path.suffix == ".json":
            try:
                found.append(parse_profile(path.read_text(encoding="utf-8")))
            except ValueError as error:
                raise ValueError(f"--cost-profiles: {path}: {error}") from None
    return tuple(found)


def _interval(text: str) -> str:
    if text and not re.fullmatch(r"[0-9]+(ms|s|m|h)", text):
        raise ValueError(f"--pod-monitor-interval {text!r} must be a whole number and ms, s, m or h, such as 15s")
    return text


def _labels(flag: str, text: str) -> dict[str, str]:
    labels = {}
    for part in _names(text):
        name, equals, value = part.partition("=")
        if not (name and equals):
            raise ValueError(f"{flag} {part!r} must be NAME=VALUE")
        labels[name] = value
    return labels


def _address(flag: str, text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 65_536):
        raise ValueError(f"{flag} {text!r} must be HOST:PORT, with a port from 0 to 65535")
    return host.strip("[]") or "0.0.0.0", int(port)


COMMAND = OperatorCommand()
