"""Which error code an exception of the engine becomes."""

from __future__ import annotations

import pytest
from vllm.exceptions import GenerationError, RetryableRequestError
from vllm.v1.engine.exceptions import EngineDeadError

from stream2llm.errors import ErrorCode
from stream2llm_pod.engine.frontend import EngineRefusal, StreamTooLong, UnknownStream
from stream2llm_pod.serving.pod import explain

pytestmark = pytest.mark.simulated


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StreamTooLong(9, 8), ErrorCode.CONTEXT_TOO_LONG),
        (EngineDeadError(), ErrorCode.ENGINE_ERROR),
        (GenerationError(), ErrorCode.ENGINE_ERROR),
        # A paused engine from vLLM 0.33 on.
        (RetryableRequestError("Generation is paused."), ErrorCode.ENGINE_ERROR),
        (UnknownStream("s"), ErrorCode.ENGINE_ERROR),
        (EngineRefusal("invalid_params", "no"), ErrorCode.INVALID_PARAMS),
        (EngineRefusal("unsupported_params", "no"), ErrorCode.UNSUPPORTED_PARAMS),
        (RuntimeError("a bug of ours"), None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_the_code_of_an_exception(error: Exception, code: ErrorCode | None) -> None:
    assert explain(error) is code
