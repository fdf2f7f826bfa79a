"""Child processes are watched while they run and gone afterwards."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

import pytest
import redis

from stream2llm_bench.demo.children import Children
from stream2llm_bench.demo.ports import FIRST, LAST, free_port
from stream2llm_bench.demo.valkey import start_valkey
from stream2llm_bench.demo.working import work_folder
from stream2llm_bench.failing import Unavailable


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that is dead and only not yet collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(path: Path) -> str:
    while not path.exists() or not path.read_text():
        time.sleep(0.01)
    return path.read_text()


def test_a_dead_child_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        children.start("fine", python("import time; time.sleep(60)"))
        children.start("pod", python("print('no memory'); raise SystemExit(3)"))
        with pytest.raises(Unavailable, match=r"pod stopped with status 3(?s:.*)\| no memory"):
            children.wait_until(lambda: False, "the pod", 60, lambda line: None)


def test_waiting_ends_with_what_was_waited_for(tmp_path: Path) -> None:
    said: list[str] = []
    with Children(tmp_path) as children:
        children.wait_until(lambda: True, "nothing", 60, said.append)
        with pytest.raises(Unavailable, match="the moon: not ready after 0 s"):
            children.wait_until(lambda: False, "the moon", 0, said.append)
    assert said == ["waiting for nothing", "waiting for the moon"]


def test_whole_groups_end_even_after_an_error(tmp_path: Path) -> None:
    # The leader ends at the signal, its own child ignores it.
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(99)"
    )
    code = (
        "import subprocess, sys, time; "
        "p = subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdout=subprocess.PIPE);"
        "p.stdout.readline(); open(sys.argv[2], 'w').write(str(p.pid)); time.sleep(99)"
    )
    with pytest.raises(KeyboardInterrupt), Children(tmp_path) as children:  # noqa: PT012
        children.start("leader", [*python(code), stubborn, str(tmp_path / "pid")])
        grandchild = int(wait_for(tmp_path / "pid"))
        assert is_alive(grandchild)
        raise KeyboardInterrupt
    give_up_s = time.monotonic() + 10
    while is_alive(grandchild) and time.monotonic() < give_up_s:
        time.sleep(0.01)
    assert not is_alive(grandchild)


def test_a_program_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with Children(tmp_path) as children, pytest.raises(Unavailable, match="router cannot be started"):
        children.start("router", [str(tmp_path / "missing")])


@pytest.mark.redis
def test_valkey_refuses_to_evict_and_ends_with_its_children(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        url = start_valkey(children, tmp_path)
        with redis.Redis.from_url(url, protocol=2) as client:
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
            assert client.config_get("save") == {"save": ""}
            pid = client.info("server")["process_id"]
        assert is_alive(pid)
    assert not is_alive(pid)


def test_a_free_port_is_free() -> None:
    port = free_port()
    assert FIRST <= port <= LAST
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))


def test_logs_are_kept_only_after_a_failure() -> None:
    said: list[str] = []
    with work_folder(said.append) as good:
        (good / "log").write_text("x")
    assert not good.exists()
    with pytest.raises(RuntimeError), work_folder(said.append) as bad:
        raise RuntimeError
    assert said == [f"logs are kept in {bad}"]
    os.rmdir(bad)
