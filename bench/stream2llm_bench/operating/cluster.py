"""The cluster of the bench: an API server with fake nodes, from the checkout's `tests/cluster`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stream2llm_bench.failing import Unavailable
from stream2llm_bench.progress import Say

ROOT = Path(__file__).resolve().parents[3]
STARTER = ROOT / "tests" / "cluster" / "fake_nodes.py"
STOP_S = 60
WRITES = frozenset(("create", "update", "patch", "delete"))


@dataclass(frozen=True, slots=True)
class Asked:
    """How many requests somebody has made of the API server; watches, which stay open, are left out."""

    reads: int
    writes: int

    def since(self, before: Asked) -> Asked:
        return Asked(self.reads - before.reads, self.writes - before.writes)


NOTHING = Asked(0, 0)


def count(lines: Iterable[str], user: str) -> Asked:
    """From an audit log, one JSON object a line."""
    reads = writes = 0
    for line in lines:
        # Parsing only what may be meant: a log has hundreds of thousands of others.
        if user in line:
            event = json.loads(line)
            if event["user"]["username"] == user and event["verb"] != "watch":
                if event["verb"] in WRITES:
                    writes += 1
                else:
                    reads += 1
    return Asked(reads, writes)


class Cluster:
    """Start it as a context; it is gone afterwards. Needs a checkout: it is the cluster of the project's tests."""

    def __init__(self, nodes: int, folder: Path, say: Say) -> None:
        self._nodes, self._folder, self._say = nodes, folder, say
        self._process: subprocess.Popen[str] | None = None
        self._kubectl = self._kubeconfig = ""
        self._audit_log = Path()

    def __enter__(self) -> Cluster:
        if not STARTER.is_file():
            raise Unavailable("bench operator needs a checkout of the repository: it starts the cluster of its tests")
        self._say(f"starting an API server with {self._nodes} fake nodes")
        command = [sys.executable, str(STARTER), "--nodes", str(self._nodes)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.__exit__()
            raise Unavailable("the cluster did not start")
        found = json.loads(line)
        self._kubectl, self._kubeconfig = found["kubectl"], found["kubeconfig"]
        self._audit_log = Path(found["audit_log"])
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def kubectl(self, *arguments: str, objects: Iterable[dict[str, Any]] = ()) -> str:
        """What kubectl prints. objects: given to it as a list. Raises Unavailable with what it said."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        result = subprocess.run(
            [self._kubectl, "--kubeconfig", self._kubeconfig, *arguments],
            input=json.dumps(listed),
            capture_output=True,
            text=True,
        )
        if result.returncode:
            raise Unavailable(f"kubectl {' '.join(arguments)}: {result.stderr.strip()[-2000:]}")
        return result.stdout

    @property
    def kubeconfig(self) -> str:
        """The administrator's."""
        return self._kubeconfig

    def login(self, account: str) -> tuple[str, str]:
        """A kubeconfig of a ServiceAccount that may do everything, and its user's name in the audit log."""
        self.kubectl("create", "serviceaccount", account)
        binding = ("create", "clusterrolebinding", account, "--clusterrole=cluster-admin")
        self.kubectl(*binding, f"--serviceaccount=default:{account}")
        token = self.kubectl("create", "token", account, "--duration=12h").strip()
        kubeconfig = json.loads(Path(self._kubeconfig).read_text())
        kubeconfig["users"][0]["user"] = {"token": token}
        path = self._folder / f"{account}.conf"
        path.write_text(json.dumps(kubeconfig))
        return str(path), f"system:serviceaccount:default:{account}"

    def asked(self, user: str) -> Asked:
        """By this user, since the beginning."""
        with self._audit_log.open(encoding="utf-8") as lines:
            return count(lines, user)
