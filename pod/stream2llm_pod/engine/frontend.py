"""Streams in front of vLLM's AsyncLLM, in the API server's process.

A stream is one ordinary engine request. Later chunks go to the engine core beside it, under the same internal id, so
vLLM's output path sees one plain request: one detokenizer, one finish, one set of statistics.

Private names used here: `output_processor.external_req_ids`, `output_processor.request_states`,
`engine_core.add_request_async`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import EngineCoreRequest

from stream2llm_pod.engine.protocol import Op, OpKind
from stream2llm_pod.engine.statistics import latest_progress
from stream2llm_pod.engine.streaming import STATS_KEY


class StreamTooLong(ValueError):
    """The prompt is longer than the engine can ever hold."""

    def __init__(self, tokens: int, limit_tokens: int) -> None:
        super().__init__(f"context of {tokens} tokens is beyond the limit of {limit_tokens} tokens")
        self.tokens, self.limit_tokens = tokens, limit_tokens


class UnknownStream(KeyError):
    """No stream of this id is open in the engine."""


class EngineRefusal(ValueError):
    """The engine cannot serve a stream with these parameters."""


@dataclass(frozen=True, slots=True)
class StreamStats:
    """What the engine counted for one stream, delivered with its last output."""

    prefilled_before_finish_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    invalidated_tokens: int = 0


def stats_of(output: Any) -> StreamStats | None:
    """The stream's report in a final RequestOutput; None in all others."""
    report = (getattr(output, "kv_transfer_params", None) or {}).get(STATS_KEY)
    return StreamStats(**report) if report else None


@dataclass(slots=True)
class _Stream:
    token_ids: list[int]
    outputs: asyncio.Queue[Any]
    lora_request: Any = None
    cache_salt: str | None = None
    pump: asyncio.Task[None] | None = None
    internal_id: str = ""


class EngineStreams:
    """Opens, extends and ends streams in one engine. All methods belong to one event loop."""

    def __init__(self, engine_client: Any) -> None:
        self._engine = engine_client
        self._streams: dict[str, _Stream] = {}
        config = engine_client.vllm_config
        self.max_model_len = int(config.model_config.max_model_len)
        self.limit_tokens = self.max_model_len - 1
        blocks = config.cache_config.num_gpu_blocks
        self.kv_tokens = int(blocks - 1) * int(config.cache_config.block_size) if blocks else 0
        if self.kv_tokens:
            self.limit_tokens = min(self.limit_tokens, self.kv_tokens)

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    def known_tokens(self, stream_id: str) -> int:
        return len(self._stream(stream_id).token_ids)

    def progress(self, stream_id: str) -> tuple[int, int]:
        """(computed, invalidated) tokens as last reported by the engine core; it may lag by one step."""
        return latest_progress.get(self._stream(stream_id).internal_id, (0, 0))

    async def open(
        self,
        stream_id: str,
        token_ids: Sequence[int],
        params: SamplingParams,
        *,
        lora_request: Any = None,
        cache_salt: str | None = None,
    ) -> AsyncIterator[Any]:
        """Start a stream whose prompt begins with `token_ids` (at least one); returns its outputs, deltas.

        Raises StreamTooLong, EngineRefusal for parameters that streams cannot honour, and ValueError for an empty
        prefix or an id that is in use.
        """
        if stream_id in self._streams:
            raise ValueError(f"stream {stream_id!r} is open already")
        if not token_ids:
            raise ValueError("a stream needs at least one token to open")
        refuse_unsupported(params)
        self._check_length(len(token_ids))
        stream = self._streams[stream_id] = _Stream(list(token_ids), asyncio.Queue(), lora_request, cache_salt)
        own = params.clone()
        own.output_kind = RequestOutputKind.DELTA
        own.extra_args = {**(own.extra_args or {}), **Op(OpKind.OPEN).to_extra_args()}
        prompt: dict[str, Any] = {"prompt_token_ids": list(token_ids)}
        if cache_salt is not None:
            prompt["cache_salt"] = cache_salt
        stream.pump = asyncio.create_task(self._pump(stream_id, stream, prompt, own))
        registered = self._engine.output_processor.external_req_ids
        while stream_id not in registered:
            if stream.pump.done():
                self._streams.pop(stream_id, None)
                failure = stream.outputs.get_nowait()
                raise EngineRefusal(str(failure)) from failure
            await asyncio.sleep(0)
        stream.internal_id = registered[stream_id][0]
        return self._outputs(stream)

    async def append(self, stream_id: str, token_ids: Sequence[int]) -> None:
        """Add tokens at the end. Raises UnknownStream, StreamTooLong."""
        stream = self._stream(stream_id)
        if not token_ids:
            return
        self._check_length(len(stream.token_ids) + len(token_ids))
        stream.token_ids.extend(token_ids)
        await self._send(stream, list(token_ids), Op(OpKind.APPEND))

    async def update(self, stream_id: str, token_ids: Sequence[int]) -> None:
        """Replace the whole prompt (at least one token). Raises UnknownStream, StreamTooLong, ValueError."""
        await self._replace(stream_id, token_ids, last=False)

    async def finish(self, stream_id: str, token_ids: Sequence[int] | None = None) -> None:
        """The prompt is whole: as it is, or as `token_ids`, the complete list. Generation starts.

        Raises UnknownStream, StreamTooLong, ValueError.
        """
        if token_ids is not None:
            await self._replace(stream_id, token_ids, last=True)
            return
        stream = self._stream(stream_id)
        self._fix_prompt_length(stream)
        await self._send(stream, [0], Op(OpKind.FINISH, last=True, empty=True))

    async def abort(self, stream_id: str) -> None:
        """End a stream and free its KV cache; unknown ids are ignored."""
        stream = self._streams.pop(stream_id, None)
        if stream is None:
            return
        await self._engine.abort(stream_id)
        if stream.pump is not None:
            stream.pump.cancel()
        stream.outputs.put_nowait(None)

    async def _replace(self, stream_id: str, token_ids: Sequence[int], *, last: bool) -> None:
        stream = self._stream(stream_id)
        if not token_ids:
            raise ValueError("a prompt needs at least one token")
        self._check_length(len(token_ids))
        known = stream.token_ids
        extends = len(token_ids) > len(known) and list(token_ids[: len(known)]) == known
        stream.token_ids = list(token_ids)
        if last:
            self._fix_prompt_length(stream)
        if extends:
            # Same effect as the update, at a fraction of the bytes and hashing.
            await self._send(stream, list(token_ids[len(known) :]), Op(OpKind.APPEND, last=last))
        else:
            await self._send(stream, list(token_ids), Op(OpKind.UPDATE, last=last))

    def _stream(self, stream_id: str) -> _Stream:
        try:
            return self._streams[stream_id]
        except KeyError:
            raise UnknownStream(stream_id) from None

    def _check_length(self, tokens: int) -> None:
        if tokens > self.limit_tokens:
            raise StreamTooLong(tokens, self.limit_tokens)

    def _fix_prompt_length(self, stream: _Stream) -> None:
        """vLLM's front end knows the opening prompt only; usage figures and the detokenizer need the final one."""
        state = self._engine.output_processor.request_states.get(stream.internal_id)
        if state is not None:
            state.prompt_token_ids = list(stream.token_ids)
            state.prompt_len = len(stream.token_ids)

    async def _send(self, stream: _Stream, token_ids: list[int], op: Op) -> None:
        if stream.internal_id not in self._engine.output_processor.request_states:
            # It ended a moment ago; its last output is on its way to the reader.
            return
        await self._engine.engine_core.add_request_async(
            EngineCoreRequest(
                request_id=stream.internal_id,
                external_req_id=stream.internal_id,
                prompt_token_ids=token_ids,
                mm_features=None,
                sampling_params=SamplingParams(max_tokens=1, extra_args=op.to_extra_args()),
                pooling_params=None,
                arrival_time=time.time(),
                # Both go into the block hashes, which an update takes over as they are.
                lora_request=stream.lora_request,
                cache_salt=stream.cache_salt,
                data_parallel_rank=None,
            )
        )

    async def _pump(self, stream_id: str, stream: _Stream, prompt: dict[str, Any], params: SamplingParams) -> None:
        try:
            async for output in self._engine.generate(prompt, params, stream_id, lora_request=stream.lora_request):
                stream.outputs.put_nowait(output)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            stream.outputs.put_nowait(error)
        finally:
            latest_progress.pop(stream.internal_id, None)
            if self._streams.get(stream_id) is stream:
                del self._streams[stream_id]
            stream.outputs.put_nowait(None)

    async def _outputs(self, stream: _Stream) -> AsyncIterator[Any]:
        while (item := await stream.outputs.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item


def refuse_unsupported(params: SamplingParams) -> None:
    """Raise EngineRefusal for what a stream cannot honour; it is never ignored."""
    if params.n != 1:
        raise EngineRefusal(f"n must be 1, not {params.n}")
    if params.prompt_logprobs is not None:
        raise EngineRefusal("prompt_logprobs are not available for streams")
