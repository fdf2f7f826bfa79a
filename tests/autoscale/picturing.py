"""What people would see of the pool at this moment, left in the run's folder."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from pool_loop import NAME, NAMESPACE, PoolLoop

WATCHED_MS = 40_000
"""How long the page is looked at, so that it has some history. In the browser's own time."""
LOOK_S = 1.0


def picture(loop: PoolLoop, redis_url: str, folder: Path) -> None:
    """`top.txt`, and `dashboard.png` where there is a browser."""
    top = [sys.executable, "-m", "stream2llm.commands.main", "top", "--once", "--redis", redis_url]
    shown = subprocess.run([*top, "--pool", f"{NAMESPACE}/{NAME}"], capture_output=True, text=True, check=True)
    (folder / "top.txt").write_text(shown.stdout)
    browser = shutil.which("chromium")
    if browser is None:
        return
    router = loop.node.pods("router")[0]
    with _in_step(f"http://{router.address}:{router.port}") as url:
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += ["--window-size=1240,580", f"--user-data-dir={folder / 'browser'}"]
        command += [f"--virtual-time-budget={WATCHED_MS}", f"--screenshot={folder / 'dashboard.png'}"]
        subprocess.run([*command, f"{url}/dashboard"], capture_output=True, timeout=300, check=True)
    shutil.rmtree(folder / "browser", ignore_errors=True)


@contextmanager
def _in_step(url: str) -> Iterator[str]:
    """The same pages from another address, each look a second after the one before.

    The browser's time runs ahead of ours but for requests, which it waits for; so its seconds are real ones.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.endswith(".json"):
                time.sleep(LOOK_S)
            if self.path == "/favicon.ico":
                return self.send_error(404)
            with urllib.request.urlopen(url + self.path, timeout=30) as answer:
                body, kind = answer.read(), answer.headers["Content-Type"]
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return None

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
