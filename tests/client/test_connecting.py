"""Redis URLs and passwords."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import redis

from stream2llm.connecting import (
    CA_FILE_VARIABLE,
    CERT_FILE_VARIABLE,
    KEY_FILE_VARIABLE,
    PASSWORD_VARIABLE,
    URL_VARIABLE,
    BadRedisURL,
    RedisTLS,
    add_redis_arguments,
    check_answers_bytes,
    check_url,
    connect,
    connect_async,
    shown_url,
)
from stream2llm.settings import BLOCK_MS, SOCKET_TIMEOUT_S


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    files = (CA_FILE_VARIABLE, CERT_FILE_VARIABLE, KEY_FILE_VARIABLE)
    for name in (URL_VARIABLE, PASSWORD_VARIABLE, "STREAM2LLM_POOL", "STREAM2LLM_TENANT", *files):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("url", ["redis://h", "rediss://h:1/2", "unix:///run/redis.sock", "redis://user@h"])
def test_usable_urls(url: str) -> None:
    assert check_url(url) == url


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://:secret@h", "must begin with redis://"),
        ("localhost:6379", "must begin with redis://"),
        ("", "must begin with redis://"),
        ("redis+sentinel://a,b", "needs the master's name after the hosts"),
        ("redis+sentinel://a,/m", "needs HOST:PORT"),
        ("redis+cluster://a/0", "needs no path"),
        ("redis+raft://a", "must begin with redis:// or rediss://"),
        ("redis://:secret@h", "shows in process lists"),
        ("redis://user:secret@h", "shows in process lists"),
        ("redis://h?password=secret", "shows in process lists"),
    ],
)
def test_unusable_urls_say_why_and_keep_the_secret(url: str, words: str) -> None:
    with pytest.raises(BadRedisURL, match=words) as caught:
        check_url(url)
    assert "secret" not in str(caught.value)


def test_a_password_may_be_in_a_url_from_the_environment_or_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "redis://:secret@h"
    assert check_url(url, allow_password=True) == url
    monkeypatch.setenv(URL_VARIABLE, url)
    assert check_url(url) == url


def test_passwords_come_from_file_or_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def password(file: Path | None = None) -> object:
        return connect("redis://h", str(file) if file else None).connection_pool.connection_kwargs["password"]

    assert password() is None
    monkeypatch.setenv(PASSWORD_VARIABLE, "from environment")
    assert password() == "from environment"
    (tmp_path / "password").write_text("from file\n")
    assert password(tmp_path / "password") == "from file"


@pytest.mark.parametrize("make", [connect, connect_async])
def test_what_matters_is_pinned(make: object) -> None:
    kwargs = make("redis://h", retries=0).connection_pool.connection_kwargs  # type: ignore[operator]
    assert kwargs["protocol"] == 2
    assert kwargs["decode_responses"] is False
    assert kwargs["socket_timeout"] == SOCKET_TIMEOUT_S > BLOCK_MS / 1000
    assert kwargs["retry"].get_retries() == 0


def test_a_client_that_decodes_is_refused() -> None:
    with pytest.raises(ValueError, match="decode_responses=False"):
        check_answers_bytes(redis.Redis(decode_responses=True))


def test_arguments_take_their_defaults_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(URL_VARIABLE, "redis://there")
    monkeypatch.setenv("STREAM2LLM_POOL", "a/b")
    monkeypatch.setenv("STREAM2LLM_TENANT", "t")
    parser = argparse.ArgumentParser()
    add_redis_arguments(parser)
    args = parser.parse_args([])
    assert (args.redis, args.pool, args.tenant, args.redis_password_file) == ("redis://there", "a/b", "t", None)


def test_a_user_of_the_url_keeps_the_password_from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "from environment")
    kwargs = connect("redis://acme@h").connection_pool.connection_kwargs
    assert (kwargs["username"], kwargs["password"]) == ("acme", "from environment")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:1/2", "redis://h:1/2"),
        ("rediss://user:secret@h:1", "rediss://h:1"),
        ("redis://:sec@ret@h", "redis://h"),
        ("redis://h?password=secret", "redis://h"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert shown_url(url) == shown


def test_certificates_come_from_arguments_or_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ca", "other", "cert", "key"):
        (tmp_path / name).write_text(name)
    ca, cert, key = (str(tmp_path / name) for name in ("ca", "cert", "key"))
    monkeypatch.setenv(CA_FILE_VARIABLE, ca)
    kwargs = connect("rediss://h").connection_pool.connection_kwargs
    assert (kwargs["ssl_ca_certs"], kwargs.get("ssl_certfile")) == (ca, None)
    parser = argparse.ArgumentParser()
    add_redis_arguments(parser)
    args = parser.parse_args(["--redis-cert-file", cert, "--redis-key-file", key])
    tls = RedisTLS.from_arguments(args)
    assert tls == RedisTLS(ca, cert, key)
    kwargs = connect_async("rediss://h", tls=tls).connection_pool.connection_kwargs
    assert (kwargs["ssl_ca_certs"], kwargs["ssl_certfile"], kwargs["ssl_keyfile"]) == (ca, cert, key)
    other = RedisTLS(str(tmp_path / "other"))
    assert connect("rediss://h", tls=other).connection_pool.connection_kwargs["ssl_ca_certs"] == other.ca_file


def test_certificates_that_would_not_be_used_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "pem"
    file.write_text("x")
    with pytest.raises(BadRedisURL, match="certificates are for rediss://"):
        connect("redis://h", tls=RedisTLS(str(file)))
    with pytest.raises(BadRedisURL, match="needs both"):
        connect("rediss://h", tls=RedisTLS(None, str(file)))
    with pytest.raises(FileNotFoundError):
        connect("rediss://h", tls=RedisTLS(str(tmp_path / "nothing")))
