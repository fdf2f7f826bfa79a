"""`stream2llm serve`: vLLM's OpenAI server with streams."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import redis
from redis.exceptions import RedisError

from stream2llm import logs, settings
from stream2llm.connecting import BadRedisURL, RedisTLS, add_redis_arguments, connect, explained, shown_url
from stream2llm.keys import PoolKeys
from stream2llm.tracing.arguments import (
    TracingSettings,
    add_tracing_arguments,
    tracing_from_arguments,
)
from stream2llm_pod.engine.loading import CannotLoad, load_platform
from stream2llm_pod.scheduling.policies import POLICIES
from stream2llm_pod.serving.advertising import advertised_url
from stream2llm_pod.serving.cpu_engine import (
    COMPILER_MISSING,
    chosen_kv_cache,
    default_kv_cache_bytes,
    free_memory_bytes,
    missing_compiler,
)
from stream2llm_pod.serving.preempting import DEFAULT_SWAP_SPACE, preemption_settings
from stream2llm_pod.serving.stopping import handle_signals_while_loading

logger = logging.getLogger(__name__)

PLUGIN_NAME = "stream2llm"
JSON_LOGGING = Path(__file__).with_name("json_logging.json")
# Plug-in groups of vLLM that load everything unless VLLM_PLUGINS names what to load. Naming ours, which the endpoint
# group insists on, must not switch the others off.
PLUGIN_GROUPS = (
    "vllm.general_plugins",
    "vllm.platform_plugins",
    "vllm.io_processor_plugins",
    "vllm.stat_logger_plugins",
)
# vLLM's flags that a streaming pod sets itself or cannot live with, each with what to use instead.
OWNED_FLAGS = {
    "--scheduler-cls": "the scheduler is chosen by --policy",
    "--scheduling-policy": "use --policy",
    "--scheduler-reserve-full-isl": "streams are admitted before their prompt is whole",
    "--no-scheduler-reserve-full-isl": "streams are admitted before their prompt is whole",
    "--api-server-count": "a stream lives in one API server; run more pods instead",
    "--headless": "a pod needs its API server",
    "--grpc": "streams come through Redis, requests through HTTP",
    "--model-tag": "use --model",
    "--uds": "a pod listens on --host and --port",
}
MODEL_FILES = ("config.json", "params.json")
"""What describes a model, in Hugging Face's format or in Mistral's."""
POD_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")


class CannotServe(Exception):
    """Why the pod does not start, in words for whoever started it."""


class ServeCommand:
    help = "serve a model: vLLM's OpenAI server that also takes streams from Redis"
    takes_unknown_arguments = True

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        # An abbreviation could be the full name of one of vLLM's flags.
        parser.allow_abbrev = False
        parser.epilog = "All other arguments go to vLLM as they are; `vllm serve --help` lists them."
        parser.add_argument("--model", required=True, metavar="M", help="model folder or Hugging Face name")
        parser.add_argument(
            "--policy",
            type=_policy,
            default=os.environ.get("STREAM2LLM_POLICY", "srpf"),
            metavar="P",
            help=f"which stream runs first: {', '.join(POLICIES)} (default srpf)",
        )
        parser.add_argument(
            "--preemption",
            default=os.environ.get("STREAM2LLM_PREEMPTION", "recompute"),
            metavar="K",
            help="what happens to the KV cache of a stream that must give way: recompute (default), swap, or cost: the "
            "cheaper of the two",
        )
        parser.add_argument(
            "--cost-profile",
            default=os.environ.get("STREAM2LLM_COST_PROFILE") or None,
            metavar="FILE",
            help="cost profile of this very hardware, model and configuration, as `stream2llm profile` writes it; "
            "--preemption cost needs one",
        )
        parser.add_argument(
            "--swap-space",
            default=os.environ.get("STREAM2LLM_SWAP_SPACE", DEFAULT_SWAP_SPACE),
            metavar="SIZE",
            help=f"host memory for swapped KV cache, of the whole pod (default {DEFAULT_SWAP_SPACE}; 0: never swap); "
            "not used with --preemption recompute",
        )
        add_redis_arguments(parser, tenant=False)
        parser.add_argument(
            "--pod",
            default=os.environ.get("STREAM2LLM_POD") or socket.gethostname(),
            metavar="NAME",
            help="this pod's name, unique in its pool (default: the host's name)",
        )
        parser.add_argument("--host", default=os.environ.get("STREAM2LLM_HOST", "0.0.0.0"), help="address to listen on")
        parser.add_argument(
            "--port", type=_port, default=_number("STREAM2LLM_PORT", 8000), help="port to listen on (default 8000)"
        )
        parser.add_argument(
            "--advertise-url",
            default=os.environ.get("STREAM2LLM_ADVERTISE_URL") or None,
            metavar="URL",
            help="where routers reach this pod's HTTP port (default: this host's address towards Redis)",
        )
        parser.add_argument(
            "--drain-seconds",
            type=_positive,
            default=_number("STREAM2LLM_DRAIN_SECONDS", 300),
            metavar="N",
            help="how long open streams may take after SIGTERM (default 300); a second signal ends at once",
        )
        parser.add_argument(
            "--max-open-streams",
            type=_positive,
            default=_number("STREAM2LLM_MAX_OPEN_STREAMS", 128),
            metavar="N",
            help="streams held at a time, kept below vLLM's --max-num-seqs (default 128)",
        )
        parser.add_argument(
            "--max-wait-seconds",
            type=_positive,
            default=_number("STREAM2LLM_MAX_WAIT_SECONDS", 60),
            metavar="N",
            help="ageing bound: how long a policy may pass over a stream (default 60)",
        )
        parser.add_argument(
            "--retain-seconds",
            type=_positive,
            default=_number("STREAM2LLM_RETAIN_SECONDS", settings.RETAIN_S),
            metavar="N",
            help=f"how long the reply of an ended stream is kept (default {settings.RETAIN_S})",
        )
        parser.add_argument(
            "--idle-timeout-seconds",
            type=_idle_timeout,
            default=_number("STREAM2LLM_IDLE_TIMEOUT_SECONDS", settings.IDLE_TIMEOUT_MS // 1000),
            metavar="N",
            help="a stream that nobody touches for so long ends, where its open says nothing else "
            f"(default {settings.IDLE_TIMEOUT_MS // 1000})",
        )
        parser.add_argument(
            "--share-cache",
            action="store_true",
            default=os.environ.get("STREAM2LLM_SHARE_CACHE", "") == "1",
            help="let tenants share the prefix cache; then one can learn from timing what another has asked",
        )
        logs.add_log_argument(parser)
        add_tracing_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        try:
            return serve(args, list(getattr(args, "unknown", [])))
        except (CannotServe, BadRedisURL) as error:
            print(f"stream2llm serve: {error}", file=sys.stderr)
            return 2


COMMAND = ServeCommand()


def serve(args: argparse.Namespace, vllm_arguments: list[str]) -> int:
    """Check everything that can be checked in a moment, then start vLLM. Returns the exit status.

    Raises CannotServe or BadRedisURL with a message that says what to do.
    """
    check_flags(vllm_arguments)
    check_model(args.model)
    keys = _pool(args.pool)
    if not POD_NAME.fullmatch(args.pod):
        raise CannotServe(f"--pod {args.pod!r} must be 1 to 253 letters, digits, '.', '_' and '-'")
    try:
        preemption = preemption_settings(args.preemption, args.cost_profile, args.swap_space)
        tracing = tracing_from_arguments(args)
    except ValueError as error:
        raise CannotServe(str(error)) from error
    check_port(args.host, args.port)
    check_redis(args.redis, args.redis_password_file, RedisTLS.from_arguments(args))
    os.environ["VLLM_PLUGINS"] = plugin_names(os.environ.get("VLLM_PLUGINS"))
    return _serve_vllm(args, vllm_arguments, keys, preemption, tracing)


def check_flags(vllm_arguments: Sequence[str]) -> None:
    """Refuse vLLM flags that the pod sets itself: a user's value would be lost, or break streams."""
    for argument in vllm_arguments:
        name = argument.split("=", 1)[0].replace("_", "-")
        if name in OWNED_FLAGS:
            raise CannotServe(f"{name} cannot be given: {OWNED_FLAGS[name]}")


def check_model(model: str) -> None:
    """A folder that is not there, or holds no model, is told in one line. vLLM would take it for a name on the hub."""
    if not model.startswith((".", "/", "~")):
        return
    path = Path(model).expanduser()
    if not path.exists():
        raise CannotServe(f"--model {model}: there is no such folder")
    if path.is_dir() and not any((path / name).is_file() for name in MODEL_FILES):
        raise CannotServe(f"--model {model}: there is no {' or '.join(MODEL_FILES)} in that folder")


def check_port(host: str, port: int) -> None:
    """Find out now, not after the model is loaded, that the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise CannotServe(f"port {port} on {host} is in use; choose another with --port") from error
            raise CannotServe(f"cannot listen on {host}:{port}: {error.strerror}") from error


def check_redis(url: str, password_file: str | None, tls: RedisTLS | None = None) -> None:
    """Redis must answer and must not evict: an evicted entry is a lost chunk."""
    try:
        client = connect(url, password_file, tls=tls, retries=0)
        try:
            client.ping()
            policy = _eviction_policy(client)
        finally:
            client.close()
    except redis.exceptions.AuthenticationError as error:
        raise CannotServe(f"Redis at {shown_url(url)}: {explained(error)}") from error
    except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError) as error:
        raise CannotServe(f"Redis cannot be reached at {shown_url(url)}: {error}") from error
    except RedisError as error:
        raise CannotServe(f"Redis cannot be used at {shown_url(url)}: {error}") from error
    if policy not in (None, "noeviction"):
        raise CannotServe(
            f"Redis has maxmemory-policy {policy}, which drops entries when memory is short; "
            "set it with: redis-cli config set maxmemory-policy noeviction"
        )


def _eviction_policy(client: redis.Redis) -> str | None:
    """The server's maxmemory-policy; None where it does not tell, as hosted ones may not."""
    try:
        answer: Any = client.info("memory")
    except redis.exceptions.NoPermissionError:
        return None
    policy = answer.get("maxmemory_policy")
    return None if policy is None else str(policy)


def plugin_names(given: str | None) -> str:
    """A VLLM_PLUGINS that loads ours and everything that would have been loaded without it."""
    if given is not None:
        names = [name for name in given.split(",") if name]
    else:
        names = [entry.name for group in PLUGIN_GROUPS for entry in entry_points(group=group)]
    return ",".join(dict.fromkeys([*names, PLUGIN_NAME]))


def _serve_vllm(
    args: argparse.Namespace,
    vllm_arguments: list[str],
    keys: PoolKeys,
    preemption: Mapping[str, Any],
    tracing: TracingSettings | None,
) -> int:
    try:
        is_cpu = load_platform()
    except CannotLoad as error:
        raise CannotServe(str(error)) from error

    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from stream2llm_pod.engine.arguments import engine_arguments
    from stream2llm_pod.engine.configuring import CONFIG_KEY, EngineSettings
    from stream2llm_pod.serving.endpoint import SETTINGS_ATTRIBUTE
    from stream2llm_pod.serving.pod import ServingSettings

    handle_signals_while_loading()
    cli_env_setup()
    parser = make_arg_parser(FlexibleArgumentParser(prog="stream2llm serve", description="arguments of vLLM"))
    own = ["--model", args.model, "--host", args.host, "--port", str(args.port)]
    parsed = parser.parse_args([*own, *vllm_arguments])
    namespace, _, name = keys.pool.partition("/")
    try:
        engine = EngineSettings(
            policy=args.policy,
            **preemption,
            max_wait_s=float(args.max_wait_seconds),
            namespace=namespace,
            pool=name,
            pod=args.pod,
        )
    except ValueError as error:
        raise CannotServe(str(error)) from error
    additional = dict(parsed.additional_config or {})
    if CONFIG_KEY in additional:
        raise CannotServe(f"--additional-config cannot hold {CONFIG_KEY!r}: use this command's own arguments")
    # vLLM itself turns asynchronous scheduling off on CPU, whatever is asked.
    asynchronous = not is_cpu and parsed.async_scheduling is not False
    other = None if parsed.kv_transfer_config is None else asdict(parsed.kv_transfer_config)
    for attribute, value in engine_arguments(engine, async_scheduling=asynchronous, other_connector=other).items():
        setattr(parsed, attribute, {**additional, **value} if attribute == "additional_config" else value)
    max_seqs = parsed.max_num_seqs
    max_open = args.max_open_streams if max_seqs is None else min(args.max_open_streams, max(max_seqs - 1, 1))
    setattr(
        parsed,
        SETTINGS_ATTRIBUTE,
        ServingSettings(
            redis_url=args.redis,
            redis_password_file=args.redis_password_file,
            redis_tls=RedisTLS.from_arguments(args),
            pool=keys.pool,
            pod=args.pod,
            url=args.advertise_url
            or advertised_url(args.host, args.port, args.redis, tls=bool(getattr(parsed, "ssl_certfile", None))),
            max_open_streams=max_open,
            retain_s=args.retain_seconds,
            drain_s=float(args.drain_seconds),
            share_cache=args.share_cache,
            idle_timeout_s=args.idle_timeout_seconds,
            tracing=tracing,
        ),
    )
    _configure_logging(parsed, args.log_format)
    if is_cpu:
        _prepare_cpu(parsed)
    try:
        validate_parsed_serve_args(parsed)
    except (TypeError, ValueError) as error:
        raise CannotServe(str(error)) from error
    return _run_server(parsed)


def _prepare_cpu(parsed: argparse.Namespace) -> None:
    compiler = missing_compiler(parsed, os.environ)
    if compiler is not None:
        raise CannotServe(COMPILER_MISSING.format(name=compiler))
    if not chosen_kv_cache(parsed, os.environ):
        parsed.kv_cache_memory_bytes = default_kv_cache_bytes(free_memory_bytes())
        logger.info(
            "VLLM_CPU_KVCACHE_SPACE (in GiB) is not set: the KV cache gets %.2f GiB, a quarter of the free memory",
            parsed.kv_cache_memory_bytes / 2**30,
        )


def _run_server(parsed: argparse.Namespace) -> int:
    import uvloop

    from stream2llm_pod.serving.endpoint import FAILURE_ATTRIBUTE

    try:
        uvloop.run(_serve_http(parsed))
    except KeyboardInterrupt:
        return 128 + signal.SIGTERM
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CannotServe(f"port {parsed.port} on {parsed.host} is in use; choose another with --port") from error
        raise
    failure = getattr(parsed, FAILURE_ATTRIBUTE, None)
    if failure is not None:
        print(f"stream2llm serve: {failure}", file=sys.stderr)
        return 1
    return 0


async def _serve_http(parsed: argparse.Namespace) -> None:
    """vLLM's `run_server` without its signal handler for the time in which the engine loads."""
    from vllm.entrypoints.launchers.api_server.entry import run_server_worker
    from vllm.entrypoints.launchers.launcher import setup_server
    from vllm.utils.system_utils import decorate_logs

    decorate_logs("APIServer", skip_if_decorated=True)
    await run_server_worker(*setup_server(parsed, reuse_port=False), parsed)


def _configure_logging(parsed: argparse.Namespace, form: str) -> None:
    """Our messages go where vLLM's go, in the same form."""
    from vllm.logger import configure_logging_from_args

    if form == "json":
        if getattr(parsed, "log_config_file", None):
            raise CannotServe("--log-format json and a logging configuration for vLLM cannot be given both")
        # All processes of vLLM read it, and its HTTP server.
        parsed.log_config_file = str(JSON_LOGGING)
    configure_logging_from_args(parsed)
    if form == "json":
        return
    theirs, ours = logging.getLogger("vllm"), logging.getLogger("stream2llm_pod")
    ours.handlers = list(theirs.handlers)
    ours.setLevel(theirs.level or logging.INFO)
    ours.propagate = False


def _pool(name: str) -> PoolKeys:
    try:
        return PoolKeys(name)
    except ValueError as error:
        raise CannotServe(f"--pool: {error}") from error


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise SystemExit(f"stream2llm serve: {variable}={text!r} is not a whole number") from None


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value


def _idle_timeout(text: str) -> int:
    value, most = int(text), settings.MAX_TIMEOUT_MS // 1000
    if not 1 <= value <= most:
        raise argparse.ArgumentTypeError(f"must be from 1 to {most}, not {value}")
    return value


def _policy(text: str) -> str:
    if text not in POLICIES:
        raise argparse.ArgumentTypeError(f"{text!r} is not known; choose one of {', '.join(POLICIES)}")
    return text


def _port(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 65_535:
        raise argparse.ArgumentTypeError(f"must be from 1 to 65535, not {value}")
    return value
