"""What people would see of the pool at this moment, left in the run's folder."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from pool_loop import NAME, NAMESPACE, PoolLoop

WATCHED_MS = 45_000
"""How long the page is looked at, so that it has some history. In the browser's own time, which runs ahead."""


def picture(loop: PoolLoop, redis_url: str, folder: Path) -> None:
    """`top.txt`, and `dashboard.png` where there is a browser."""
    top = [sys.executable, "-m", "stream2llm.commands.main", "top", "--once", "--redis", redis_url]
    shown = subprocess.run([*top, "--pool", f"{NAMESPACE}/{NAME}"], capture_output=True, text=True, check=True)
    (folder / "top.txt").write_text(shown.stdout)
    browser = shutil.which("chromium")
    if browser is None:
        return
    router = loop.node.pods("router")[0]
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1200,560"]
    command += [f"--user-data-dir={folder / 'browser'}", f"--virtual-time-budget={WATCHED_MS}"]
    command += [f"--screenshot={folder / 'dashboard.png'}", f"http://{router.address}:{router.port}/dashboard"]
    subprocess.run(command, capture_output=True, timeout=300, check=True)
    shutil.rmtree(folder / "browser", ignore_errors=True)
