"""The address that a pod tells routers."""

from __future__ import annotations

import pytest

from stream2llm_pod.serving.advertising import advertised_url


@pytest.mark.parametrize(
    ("host", "redis_url", "tls", "url"),
    [
        ("10.1.2.3", "redis://h", False, "http://10.1.2.3:8000"),
        ("10.1.2.3", "redis://h", True, "https://10.1.2.3:8000"),
        ("fd00::1", "redis://h", False, "http://[fd00::1]:8000"),
        ("0.0.0.0", "redis://127.0.0.1:6379", False, "http://127.0.0.1:8000"),
        ("0.0.0.0", "rediss://user@127.0.0.1", False, "http://127.0.0.1:8000"),
        ("0.0.0.0", "unix:///run/redis.sock", False, "http://127.0.0.1:8000"),
    ],
)
def test_advertised_url(host: str, redis_url: str, tls: bool, url: str) -> None:
    assert advertised_url(host, 8000, redis_url, tls=tls) == url
