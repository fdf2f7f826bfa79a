"""One pool in a real cluster, as a person and a producer use it: kubectl, redis-cli and HTTP."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from dataclasses import dataclass
from typing import Any

import cpu_pool
import redis
from node import RealCluster

NAME = "tiny"
OURS = "serviceaccounts,networkpolicies,services,poddisruptionbudgets,deployments,jobs,configmaps,pods,replicasets"
MANAGED = ("-l", "app.kubernetes.io/managed-by=stream2llm-operator")


@dataclass(frozen=True, slots=True)
class Pool:
    """The StreamingPrefill `tiny` of a namespace."""

    cluster: RealCluster
    namespace: str

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.cluster.kubectl("--namespace", self.namespace, *arguments, stdin=stdin)

    def apply(self, spec: dict[str, Any]) -> None:
        body = cpu_pool.resource(NAME, spec, self.namespace)
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(body))

    def get(self, kind: str, name: str = NAME) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", kind, name, "-o", "json"))
        return found

    def condition(self, kind: str) -> tuple[str, str, str]:
        """Status, reason and message of a condition; empty before there is one."""
        for each in self.get("spf").get("status", {}).get("conditions", ()):
            if each["type"] == kind:
                return each["status"], each["reason"], each["message"]
        return "", "", ""

    def wait(self, condition: str, timeout_s: int = 600) -> None:
        """`kubectl wait`. Raises RuntimeError with the conditions where it does not come."""
        try:
            self.kubectl("wait", f"--for=condition={condition}", f"spf/{NAME}", f"--timeout={timeout_s}s")
        except RuntimeError as error:
            conditions = self.get("spf").get("status", {}).get("conditions")
            raise RuntimeError(f"{error}; conditions: {json.dumps(conditions, indent=1)}") from None

    def objects(self) -> list[str]:
        """Everything there is that the operator has made, or that was made for that."""
        items = json.loads(self.kubectl("get", OURS, *MANAGED, "-o", "json"))["items"]
        return sorted(f"{item['kind']}/{item['metadata']['name']}" for item in items)

    def pods(self) -> list[dict[str, Any]]:
        """The serving pods, without those that are going."""
        selector = f"stream2llm.io/pods={NAME}"
        items: list[dict[str, Any]] = json.loads(self.kubectl("get", "pods", "-l", selector, "-o", "json"))["items"]
        return [item for item in items if "deletionTimestamp" not in item["metadata"]]

    # ------------------------------------------------------------------ Redis
    @property
    def key_prefix(self) -> str:
        return str(self.get("spf")["status"]["ingressKeyPrefix"])

    @property
    def redis_host(self) -> str:
        """The address of the cluster's Valkey."""
        return self.cluster.kubectl(
            *("--namespace", cpu_pool.SYSTEM_NAMESPACE, "get", "service", f"{cpu_pool.RELEASE}-valkey"),
            *("-o", "jsonpath={.spec.clusterIP}"),
        )

    def redis(self) -> redis.Redis:
        """A client, for tests that send much."""
        return redis.Redis(self.redis_host, decode_responses=True)

    def redis_cli(self, *arguments: str, stdin: str | None = None) -> str:
        """A plain redis-cli on this machine. Raises RuntimeError with what it said."""
        result = subprocess.run(
            ["redis-cli", "-h", self.redis_host, "-e", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
        )
        if result.returncode:
            raise RuntimeError(f"redis-cli {' '.join(arguments)}: {result.stdout.strip()} {result.stderr.strip()}")
        return result.stdout.strip()

    def send(self, stream: str, operation: str, **fields: str) -> None:
        """One ingress entry."""
        pairs = [part for pair in fields.items() for part in pair]
        key = f"{self.key_prefix}:ingress:default"
        self.redis_cli("XADD", key, "*", "stream", stream, "op", operation, *pairs)

    def events(self, stream: str) -> list[tuple[str, dict[str, Any]]]:
        """The reply so far."""
        key = f"{self.key_prefix}:reply:default:{stream}"
        entries = json.loads(self.redis_cli("--json", "XRANGE", key, "-", "+"))
        found = []
        for _, fields in entries:
            named = dict(zip(fields[::2], fields[1::2], strict=True))
            found.append((named["event"], json.loads(named["data"])))
        return found

    def keys_without_expiry(self, prefix: str) -> list[str]:
        """Keys of the pool that stay for ever."""
        # In a pattern a brace stands for itself and a bracket does not; a prefix has no brackets.
        keys = self.redis_cli("--scan", "--pattern", f"{prefix}:*").split()
        return sorted(key for key in keys if self.redis_cli("TTL", key) == "-1")

    # ------------------------------------------------------------------- HTTP
    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """To vLLM's own endpoints of a serving pod; routers want a token."""
        (address, *_) = [pod["status"]["podIP"] for pod in self.pods()]
        request = urllib.request.Request(
            f"http://{address}:8000{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        return self.fetch(request)

    def fetch(self, request: str | urllib.request.Request) -> dict[str, Any]:
        """The JSON that a URL answers with."""
        with urllib.request.urlopen(request, timeout=180) as answer:
            found: dict[str, Any] = json.loads(answer.read())
        return found

    def save_logs(self) -> None:
        """What pods have said, beside the logs of the cluster's programs: they are gone with the namespace."""
        folder = self.cluster.work / "pods" / self.namespace
        folder.mkdir(parents=True, exist_ok=True)
        for kind in ("pods", "events", "spf"):
            (folder / f"{kind}.yaml").write_text(self.kubectl("get", kind, "-o", "yaml"))
        for name in self.kubectl("get", "pods", "-o", "name").split():
            log = self.cluster.plane.kubectl("-n", self.namespace, "logs", name, "--all-containers", check=False)
            (folder / f"{name.replace('/', '-')}.log").write_text(log.stdout + log.stderr)
