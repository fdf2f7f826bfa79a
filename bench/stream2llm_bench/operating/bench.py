"""`bench operator`: our operator beside a bare one, on one cluster with hundreds of nodes and resources."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stream2llm_bench.comparing import ratio_of_pairs
from stream2llm_bench.demo.children import Child, Children
from stream2llm_bench.demo.ports import free_port
from stream2llm_bench.failing import Unavailable
from stream2llm_bench.operating import bare
from stream2llm_bench.operating.cluster import NOTHING, ROOT, Asked, Cluster
from stream2llm_bench.progress import counting
from stream2llm_bench.reporting import Report, Table

NAMESPACE = "bench"
TIMEOUT_S = 900.0
QUIET_S = 10.0
"""Nothing was written for so long: everything is as it should be."""
PASSES = "stream2llm_operator_reconcile_seconds_count"
WRITES = "stream2llm_operator_writes_total"


@dataclass(slots=True)
class Measured:
    """Of one operator. Seconds from creating a resource until its last child is there, alone and beside the others."""

    alone_s: list[float] = field(default_factory=list)
    crowded_s: list[float] = field(default_factory=list)
    rss_mib: float = 0.0
    steady: Asked = NOTHING
    """Requests while every resource was looked at again and nothing had to be done."""
    passes: int = 0
    """How many passes that were."""

    def figures(self) -> dict[str, Any]:
        return {
            "create_to_applied_s": round(statistics.median(self.alone_s), 3),
            "create_to_applied_s_crowded": round(statistics.median(self.crowded_s), 3),
            "requests_per_steady_reconcile": round((self.steady.reads + self.steady.writes) / self.passes, 3),
            "writes_per_steady_reconcile": round(self.steady.writes / self.passes, 3),
            "rss_mib": round(self.rss_mib, 1),
        }


class OperatorBench:
    name = "operator"
    help = "our operator beside a bare kopf operator, on an API server with fake nodes"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--nodes", type=int, default=500, help="fake nodes (default 500)")
        parser.add_argument("--resources", type=int, default=200, help="resources of each operator (default 200)")
        parser.add_argument("--pairs", type=int, default=7, help="resources timed, each time (default 7)")

    def run(self, args: argparse.Namespace, progress: Callable[[str], None]) -> Report:
        for name in ("nodes", "resources", "pairs"):
            if getattr(args, name) < 1:
                raise ValueError(f"--{name} must be at least 1, not {getattr(args, name)}")
        if args.resources < args.pairs:
            raise ValueError(f"--resources must be at least --pairs ({args.pairs}), not {args.resources}")
        ours, peer = Measured(), Measured()
        with (
            tempfile.TemporaryDirectory() as name,
            Cluster(args.nodes, Path(name), progress) as cluster,
            Children(Path(name)) as children,
        ):
            _measure(cluster, children, args, ours, peer, progress)
        return report(ours, peer, args)


def _measure(
    cluster: Cluster,
    children: Children,
    args: argparse.Namespace,
    ours: Measured,
    peer: Measured,
    progress: Callable[[str], None],
) -> None:
    cluster.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
    cluster.kubectl("apply", "-f", "-", objects=[bare.definition()])
    crds = ("crd/streamingprefills.stream2llm.io", f"crd/{bare.PLURAL}.{bare.GROUP}")
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", *crds)
    cluster.kubectl("create", "namespace", NAMESPACE)
    api = _Api(cluster.kubeconfig)
    our_config, our_user = cluster.login("ours")
    peer_config, peer_user = cluster.login("bare")
    health, metrics = free_port(), free_port()
    command = [sys.executable, "-m", "stream2llm.commands.main", "operator", "--image-pull-policy", "Never"]
    command += ["--health", f"127.0.0.1:{health}", "--metrics", f"127.0.0.1:{metrics}"]
    our_child = children.start("operator", command, {"KUBECONFIG": our_config})
    peer_child = children.start(
        "bare", [sys.executable, "-m", "stream2llm_bench.operating.bare"], {"KUBECONFIG": peer_config}
    )
    children.wait_until(lambda: _answers(f"http://127.0.0.1:{health}/readyz"), "the operator", TIMEOUT_S, progress)
    # The bare one has no such address: its first resource shows that it is at work.
    _pair(api, "warm", children, Measured(), Measured(), alone=True)

    with counting(progress, "resources one by one", args.pairs) as step:
        for number in range(args.pairs):
            _pair(api, f"alone-{number}", children, ours, peer, alone=True)
            step()
    progress(f"{args.resources} resources of each")
    for number in range(args.resources - args.pairs - 1):
        api.create_ours(f"many-{number}")
        api.create_bare(f"many-{number}")
    children.wait_until(lambda: api.deployments() >= 3 * args.resources, "all Deployments", TIMEOUT_S, progress)
    _settle(metrics, children, progress)
    ours.rss_mib, peer.rss_mib = _rss_mib(our_child), _rss_mib(peer_child)

    progress("every resource once more")
    before = cluster.asked(our_user), cluster.asked(peer_user), _metric(metrics, PASSES)
    for plural in ("streamingprefills.stream2llm.io", f"{bare.PLURAL}.{bare.GROUP}"):
        cluster.kubectl("annotate", "--namespace", NAMESPACE, plural, "--all", "bench.stream2llm.io/look=again")
    children.wait_until(
        lambda: _metric(metrics, PASSES) >= before[2] + args.resources, "all passes", TIMEOUT_S, progress
    )
    _settle(metrics, children, progress)
    ours.steady, ours.passes = cluster.asked(our_user).since(before[0]), int(_metric(metrics, PASSES) - before[2])
    peer.steady, peer.passes = cluster.asked(peer_user).since(before[1]), args.resources

    with counting(progress, f"resources beside {args.resources} others", args.pairs) as step:
        for number in range(args.pairs):
            _pair(api, f"crowded-{number}", children, ours, peer, alone=False)
            step()


def _pair(api: _Api, name: str, children: Children, ours: Measured, peer: Measured, *, alone: bool) -> None:
    # Deployments are the last children that ours makes, and the only ones of the other.
    for measured, create, last in (
        (ours, api.create_ours, (name, f"{name}-router")),
        (peer, api.create_bare, (f"bare-{name}",)),
    ):
        started_s = time.monotonic()
        create(name)
        while not all(api.is_there(deployment) for deployment in last):
            children.check()
            if time.monotonic() - started_s > TIMEOUT_S:
                raise Unavailable(f"Deployments {last} never came\n{children.tails()}")
            time.sleep(0.005)
        (measured.alone_s if alone else measured.crowded_s).append(time.monotonic() - started_s)


class _Api:
    """What the bench asks of the API server, as the administrator."""

    def __init__(self, kubeconfig: str) -> None:
        from kubernetes import client, config

        api = config.new_client_from_config(kubeconfig)  # type: ignore[no-untyped-call]
        self._apps, self._custom = client.AppsV1Api(api), client.CustomObjectsApi(api)
        self._refused = client.ApiException

    def create_ours(self, name: str) -> None:
        """A resource on GPUs, whose product is found among the nodes."""
        spec = {
            "model": {"name": "llama", "source": {"huggingFace": {"repo": "meta-llama/Llama-3.1-8B-Instruct"}}},
            "streams": {"redis": {"url": "redis://redis.bench:6379"}},
            "router": {"replicas": 1},
        }
        body = {"apiVersion": "stream2llm.io/v1alpha1", "kind": "StreamingPrefill", "metadata": {"name": name}}
        self._custom.create_namespaced_custom_object(
            "stream2llm.io", "v1alpha1", NAMESPACE, "streamingprefills", {**body, "spec": spec}
        )

    def create_bare(self, name: str) -> None:
        body = {"apiVersion": f"{bare.GROUP}/{bare.VERSION}", "kind": bare.KIND, "metadata": {"name": f"bare-{name}"}}
        self._custom.create_namespaced_custom_object(bare.GROUP, bare.VERSION, NAMESPACE, bare.PLURAL, body)

    def is_there(self, name: str) -> bool:
        """Whether there is this Deployment."""
        try:
            self._apps.read_namespaced_deployment(name, NAMESPACE)
        except self._refused as error:
            if error.status == 404:
                return False
            raise
        return True

    def deployments(self) -> int:
        return len(self._apps.list_namespaced_deployment(NAMESPACE).items)


def _settle(metrics: int, children: Children, progress: Callable[[str], None]) -> None:
    """Returns once our operator has written nothing for a while."""
    seen, since_s = -1.0, time.monotonic()

    def quiet() -> bool:
        nonlocal seen, since_s
        if (now := _metric(metrics, WRITES)) != seen:
            seen, since_s = now, time.monotonic()
        return time.monotonic() - since_s >= QUIET_S

    children.wait_until(quiet, "quiet", TIMEOUT_S, progress)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _metric(port: int, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def _rss_mib(child: Child) -> float:
    for line in Path(f"/proc/{child.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise Unavailable("/proc does not tell how much memory a process has")


def report(ours: Measured, peer: Measured, args: argparse.Namespace) -> Report:
    mine, theirs = ours.figures(), peer.figures()
    ratio = ratio_of_pairs(ours.alone_s, peer.alone_s)
    crowded = ratio_of_pairs(ours.crowded_s, peer.crowded_s)
    growth = mine["create_to_applied_s_crowded"] / mine["create_to_applied_s"]
    rows = [
        _row("create to all applied, s", "create_to_applied_s", mine, theirs),
        _row(f"the same beside {args.resources} others, s", "create_to_applied_s_crowded", mine, theirs),
        _row("API requests per steady pass", "requests_per_steady_reconcile", mine, theirs),
        _row("writes among them", "writes_per_steady_reconcile", mine, theirs),
        _row(f"memory with {args.resources} resources, MiB", "rss_mib", mine, theirs),
    ]
    return Report(
        OperatorBench.name,
        {
            "writes_per_steady_reconcile": mine["writes_per_steady_reconcile"],
            "create_to_applied_s": mine["create_to_applied_s"],
            "rss_mib_at_200": mine["rss_mib"],
            "requests_per_steady_reconcile": mine["requests_per_steady_reconcile"],
            "create_to_applied_s_crowded": mine["create_to_applied_s_crowded"],
            "create_ratio": round(ratio.median, 3),
            "create_ratio_spread": [round(bound, 3) for bound in ratio.spread],
            "crowded_ratio": round(crowded.median, 3),
            "bare": {("rss_mib_at_200" if name == "rss_mib" else name): value for name, value in theirs.items()},
            "nodes": args.nodes,
            "resources": args.resources,
        },
        [Table(f"{args.nodes} nodes, {args.resources} resources", ("", "ours", "bare"), rows)],
        lambda path: draw(ours, peer, path),
        [
            "Ours makes eleven objects of a resource, the bare operator one Deployment.",
            f"Beside {args.resources} others ours takes {growth:.2f} times as long as alone.",
        ],
    )


def _row(title: str, name: str, mine: dict[str, Any], theirs: dict[str, Any]) -> tuple[str, ...]:
    return title, f"{mine[name]:g}", f"{theirs[name]:g}"


def draw(ours: Measured, peer: Measured, path: Path) -> None:
    """Every timed resource, alone and beside the others."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3))
    for label, measured in (("ours, 11 objects", ours), ("bare kopf, 1 object", peer)):
        seconds = [*measured.alone_s, *measured.crowded_s]
        axes.plot(range(1, len(seconds) + 1), seconds, "o-", label=label)
    axes.axvline(len(ours.alone_s) + 0.5, color="black", linewidth=0.8, linestyle=":")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("resource: alone, then beside all the others")
    axes.set_ylabel("create to applied, s")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


BENCH = OperatorBench()
