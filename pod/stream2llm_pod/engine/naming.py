"""What a stream is called inside the engine."""

from __future__ import annotations

from stream2llm import logs


def engine_id(tenant: str, stream: str, open_id: str, attempt: int) -> str:
    """The request id of a stream: no other one of this engine has it, ever."""
    return f"{tenant}/{stream}/{open_id}/{attempt}"


def about_request(request_id: str) -> dict[str, str]:
    """`extra` of a log call about a request: tenant and stream of one that is a stream."""
    parts = request_id.split("/")
    return logs.about(parts[0], parts[1]) if len(parts) == 4 else {}
