"""TLS to a real Redis, with certificates made here: every program speaks it, and none goes without in silence."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import redis
import trustme
from running_router import running_router
from server_binaries import redis_binary
from standin_pod import StandInPod

from stream2llm import AsyncClient, Client, RedisTLS, Unreachable
from stream2llm.connecting import CA_FILE_VARIABLE, CERT_FILE_VARIABLE, KEY_FILE_VARIABLE, URL_VARIABLE, connect
from stream2llm.keys import PoolKeys
from stream2llm_bench.demo.ports import free_port
from stream2llm_pod.serving.command import CannotServe, check_redis

pytestmark = pytest.mark.redis
PASSWORD = "a-password-that-no-output-may-hold"
COMMAND = [sys.executable, "-m", "stream2llm.commands.main"]


@dataclass
class SecureServer:
    """A Redis that speaks TLS only, wants a client certificate and a password."""

    port: int
    ours: RedisTLS
    strangers: RedisTLS
    password_file: str

    @property
    def strangers_ca(self) -> RedisTLS:
        """Our certificate, and trust in an authority that did not sign the server's."""
        stranger = str(Path(self.ours.ca_file or "").with_name("stranger-ca.pem"))
        return RedisTLS(stranger, self.ours.cert_file, self.ours.key_file)

    @property
    def url(self) -> str:
        return f"rediss://127.0.0.1:{self.port}"


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureServer]:
    binary = redis_binary()
    folder = tmp_path_factory.mktemp("tls")
    ours, stranger = trustme.CA(), trustme.CA()
    ours.cert_pem.write_to_path(folder / "ca.pem")
    stranger.cert_pem.write_to_path(folder / "stranger-ca.pem")
    for name, authority in (("server", ours), ("client", ours), ("stranger", stranger)):
        certificate = authority.issue_cert("127.0.0.1")
        certificate.private_key_pem.write_to_path(folder / f"{name}.key")
        certificate.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
    (folder / "users.acl").write_text(f"user default on >{PASSWORD.replace(' ', '_')} ~* &* +@all\n")
    (folder / "password").write_text(PASSWORD + "\n")
    port = free_port()
    command = [binary, "--port", "0", "--tls-port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    command += [
        "--save",
        "",
        "--tls-cert-file",
        str(folder / "server.pem"),
        "--tls-key-file",
        str(folder / "server.key"),
    ]
    command += ["--tls-ca-cert-file", str(folder / "ca.pem"), "--tls-auth-clients", "yes"]
    command += ["--aclfile", str(folder / "users.acl")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def files(ca: str, name: str) -> RedisTLS:
        return RedisTLS(str(folder / ca), str(folder / f"{name}.pem"), str(folder / f"{name}.key"))

    server = SecureServer(port, files("ca.pem", "client"), files("ca.pem", "stranger"), str(folder / "password"))
    try:
        give_up_s = time.monotonic() + 15
        while True:
            try:
                connect(server.url, server.password_file, tls=server.ours, retries=0).ping()
                break
            except redis.RedisError:
                assert time.monotonic() < give_up_s
                assert process.poll() is None
                time.sleep(0.02)
        yield server
    finally:
        process.kill()
        process.wait()


def test_both_clients_speak_tls_with_a_certificate_of_their_own(secure: SecureServer) -> None:
    with Client(secure.url, tls=secure.ours, password_file=secure.password_file) as client:
        client.open(prompt="{context}", stream="sync")

    async def opened() -> None:
        async with AsyncClient(secure.url, tls=secure.ours, password_file=secure.password_file) as client:
            await client.open(prompt="{context}", stream="async")

    asyncio.run(opened())
    with connect(secure.url, secure.password_file, tls=secure.ours) as redis_client:
        entries = redis_client.xrange("s2l:{default/default}:ingress:default")
    assert [fields[b"stream"] for _, fields in entries] == [b"sync", b"async"]  # type: ignore[union-attr]


def test_a_server_of_another_authority_is_not_trusted(secure: SecureServer) -> None:
    with (
        pytest.raises(Unreachable, match="certificate verify failed"),
        Client(secure.url, tls=secure.strangers_ca, password_file=secure.password_file) as client,
    ):
        client.send({b"stream": b"s", b"op": b"cancel"}, tries=1)


@pytest.mark.parametrize("certificate", ["none", "stranger"])
def test_the_server_sees_our_certificate(secure: SecureServer, certificate: str) -> None:
    tls = secure.strangers if certificate == "stranger" else RedisTLS(secure.ours.ca_file)
    with (
        pytest.raises(Unreachable),
        Client(secure.url, tls=tls, password_file=secure.password_file) as client,
    ):
        client.send({b"stream": b"s", b"op": b"cancel"}, tries=1)


@pytest.mark.parametrize("by", ["arguments", "environment"])
def test_commands_take_the_files_by_argument_or_environment(secure: SecureServer, by: str) -> None:
    tls = secure.ours
    command = [*COMMAND, "send", "open", f"by-{by}", "prompt={context}", "--redis", secure.url]
    command += ["--redis-password-file", secure.password_file]
    environment = dict(os.environ)
    if by == "arguments":
        command += ["--redis-ca-file", str(tls.ca_file), "--redis-cert-file", str(tls.cert_file)]
        command += ["--redis-key-file", str(tls.key_file)]
    else:
        environment |= {
            CA_FILE_VARIABLE: str(tls.ca_file),
            CERT_FILE_VARIABLE: str(tls.cert_file),
            KEY_FILE_VARIABLE: str(tls.key_file),
        }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("-0")
    assert PASSWORD not in done.stdout + done.stderr


def test_certificates_beside_an_unencrypted_url_are_an_error_and_not_dropped(secure: SecureServer) -> None:
    command = [*COMMAND, "send", "open", "s", "prompt={context}", "--redis", f"redis://127.0.0.1:{secure.port}"]
    done = subprocess.run(
        [*command, "--redis-ca-file", str(secure.ours.ca_file)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "certificates are for rediss://" in done.stderr


@pytest.mark.e2e
def test_the_router_speaks_tls_on_both_sides(secure: SecureServer, tmp_path: Path) -> None:
    """Its forwarding, its readers and its commands towards Redis, and HTTPS towards applications."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(tmp_path / "http.key")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "http.pem")
    tls = secure.ours
    files = ["--redis-ca-file", str(tls.ca_file), "--redis-cert-file", str(tls.cert_file)]
    files += ["--redis-key-file", str(tls.key_file), "--redis-password-file", secure.password_file]
    https = ["--http-cert-file", str(tmp_path / "http.pem"), "--http-key-file", str(tmp_path / "http.key")]
    verify = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    keys = PoolKeys("tests/tls")

    def connected() -> redis.Redis:
        return connect(secure.url, secure.password_file, tls=tls)

    pod = StandInPod(connected, keys)
    arguments = [*files, *https, "--http-auth", "none"]
    try:
        with (
            running_router(secure.url, keys.pool, tmp_path, *arguments, scheme="https", verify=verify) as router,
            httpx.Client(base_url=router.url, verify=verify, timeout=30) as caller,
        ):
            body = b'{"op": "open", "prompt": "{context}"}\n{"op": "finish", "text": "over TLS"}\n'
            answer = caller.post("/v1/streams:run", content=body)
            assert "event: done" in answer.text
            assert caller.get("/v1/models").status_code == 200
            assert PASSWORD not in router.said()
            with pytest.raises(httpx.ConnectError):
                httpx.get(f"{router.url}/health")
    finally:
        pod.stop()


def test_the_pod_checks_its_server_over_tls(secure: SecureServer, monkeypatch: pytest.MonkeyPatch) -> None:
    check_redis(secure.url, secure.password_file, secure.ours)
    monkeypatch.setenv(URL_VARIABLE, f"rediss://:{PASSWORD}@127.0.0.1:{secure.port}")
    with pytest.raises(CannotServe, match="certificate verify failed") as caught:
        check_redis(os.environ[URL_VARIABLE], None, secure.strangers_ca)
    assert PASSWORD not in str(caught.value)
