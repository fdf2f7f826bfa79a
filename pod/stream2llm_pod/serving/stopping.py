"""Ending the process at once, where there is nothing that could be lost."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from typing import Any, NoReturn


def end_at_once(number: int) -> NoReturn:
    """Kill the engine and exit with 128 + the signal's number, as a shell reports a process that a signal ended."""
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(128 + number)


def end_while_loading(number: int, frame: Any) -> NoReturn:
    """Signal handler for the time before the server runs: no stream is here yet, and vLLM's own way waits for an
    engine that does not listen while it loads."""
    print(f"stream2llm serve: {signal.Signals(number).name} while the engine was loading", file=sys.stderr, flush=True)
    end_at_once(number)


def handle_signals_while_loading() -> None:
    """Has SIGTERM and SIGINT end the process; the server replaces both handlers once it runs."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, end_while_loading)
