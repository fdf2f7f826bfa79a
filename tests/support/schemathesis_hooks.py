"""What schemathesis must be told of bodies that are one JSON object a line."""

from __future__ import annotations

from typing import Any

import schemathesis


@schemathesis.serializer("application/x-ndjson")
def ndjson(context: Any, value: Any) -> Any:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")
