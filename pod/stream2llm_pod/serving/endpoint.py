"""vLLM endpoint plug-in: takes streams beside the OpenAI endpoints of the same server."""

from __future__ import annotations

import asyncio
import logging
import signal
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from stream2llm_pod.serving.stopping import end_at_once

if TYPE_CHECKING:
    from stream2llm_pod.serving.pod import ServingPod

logger = logging.getLogger(__name__)

SETTINGS_ATTRIBUTE = "stream2llm_serving"
"""Where `stream2llm serve` puts its ServingSettings in vLLM's parsed arguments."""
FAILURE_ATTRIBUTE = "stream2llm_failure"
"""Where it finds, once the server has ended, why that was nobody's wish."""


class StreamEndpoint:
    """Starts a ServingPod with the server and drains it before the server goes."""

    name = "stream2llm"
    required_tasks = ("generate",)

    def __init__(self) -> None:
        self._pod: ServingPod | None = None
        self._lifetime: asyncio.Task[None] | None = None

    def attach_router(self, app: FastAPI) -> None:
        """Add `GET /ready`: 200 while the pod takes streams, 503 before and while it drains."""

        async def ready(request: Request) -> JSONResponse:
            pod = self._pod
            state = "starting" if pod is None else "draining" if pod.draining else "ready" if pod.ready else "starting"
            body = {"state": state, "open_streams": 0 if pod is None else pod.open_streams}
            return JSONResponse(body, status_code=200 if state == "ready" else 503)

        app.add_api_route("/ready", ready, methods=["GET"], response_model=None)

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        serving = getattr(args, SETTINGS_ATTRIBUTE, None)
        if engine_client is None or serving is None:
            logger.warning("streams are not served: this server was not started by `stream2llm serve`")
            return
        from stream2llm_pod.serving.pod import ServingPod

        self._pod = ServingPod(engine_client, state, args, serving)
        self._lifetime = asyncio.create_task(self._live(self._pod, state, args), name="stream2llm")

    async def _live(self, pod: ServingPod, state: Any, args: Namespace) -> None:
        """Wait for the HTTP server, serve streams, and on a signal drain before the server is told to stop."""
        try:
            # Only from then on are the server's own signal handlers in place, so that ours replace them.
            while not hasattr(state, "server"):
                await asyncio.sleep(0.01)
            server = state.server
            asked = asyncio.Event()
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, _on_signal, number, asked)
            while not server.started and not server.should_exit:
                await asyncio.sleep(0.01)
            await pod.start()
            await _either(asked, server)
            if not asked.is_set():
                setattr(args, FAILURE_ATTRIBUTE, "the server has ended by itself; its engine's last words are above")
            else:
                logger.info("draining: %d streams open, at most %g s", pod.open_streams, pod.settings.drain_s)
                await pod.drain(pod.settings.drain_s)
            await pod.stop()
            server.should_exit = True
        except Exception as error:
            logger.exception("streams cannot be served; stopping the server")
            setattr(args, FAILURE_ATTRIBUTE, f"streams cannot be served: {str(error) or type(error).__name__}")
            if hasattr(state, "server"):
                state.server.should_exit = True


async def _either(asked: asyncio.Event, server: Any) -> None:
    """Until a signal asks for the end or the server ends by itself (its engine died)."""
    while not asked.is_set() and not server.should_exit:
        try:
            async with asyncio.timeout(1.0):
                await asked.wait()
        except TimeoutError:
            continue


def _on_signal(number: int, asked: asyncio.Event) -> None:
    if not asked.is_set():
        asked.set()
        return
    # Told twice: whoever sent it does not want to wait for anything.
    end_at_once(number)


def make_plugin() -> StreamEndpoint:
    """Entry point of the group `vllm.endpoint_plugins`."""
    return StreamEndpoint()
