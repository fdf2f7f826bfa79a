"""Where the programs of the real servers are. A test that asks for one that is absent is skipped, and says so."""

from __future__ import annotations

import shutil

import pytest


def redis_binary() -> str:
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("redis-server is not installed (Debian package redis-server)")
    return binary
