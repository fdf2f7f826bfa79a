"""Streams in front of vLLM's AsyncLLM, in the API server's process.

A stream is one ordinary engine request. Later chunks go to the engine core beside it, under the same internal id, so
vLLM's output path sees one plain request: one detokenizer, one finish, one set of statistics.

What the engine core counts for a stream comes back with every output of it, in `kv_transfer_params` (`stats_of`);
progress before the first output comes with vLLM's statistics, a few times a second, if those are on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import vllm
from vllm.exceptions import VLLMClientError
from vllm.inputs.engine import tokens_input
from vllm.sampling_params import RequestOutputKind, SamplingParams

from stream2llm.keys import DEFAULT_TENANT
from stream2llm_pod.engine.compat.selecting import checked_module
from stream2llm_pod.engine.protocol import Op, OpKind
from stream2llm_pod.engine.statistics import latest_progress
from stream2llm_pod.engine.streaming import STATS_KEY
from stream2llm_pod.engine.tenancy import TenantShare


class StreamTooLong(ValueError):
    """The prompt is longer than the engine can ever hold."""

    def __init__(self, tokens: int, limit_tokens: int) -> None:
        super().__init__(f"context of {tokens} tokens is beyond the limit of {limit_tokens} tokens")
        self.tokens, self.limit_tokens = tokens, limit_tokens


class UnknownStream(KeyError):
    """No stream of this id is open in the engine."""


class EngineRefusal(ValueError):
    """The engine cannot serve a stream with these parameters.

    code: `invalid_params`, or `unsupported_params` for what is valid but cannot be honoured.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


@dataclass(frozen=True, slots=True)
class StreamStats:
    """What the engine counted for one stream."""

    prefilled_before_finish_tokens: int = 0
    """Tokens of the final prompt that were computed when the finish arrived."""
    preemptions: int = 0
    recomputed_tokens: int = 0
    swapped_tokens: int = 0
    """Tokens that came back from host memory after preemptions."""
    invalidated_tokens: int = 0


def stats_of(output: Any) -> StreamStats | None:
    """The stream's counts so far, in a RequestOutput; complete in the final one. None if it carries none."""
    report = (getattr(output, "kv_transfer_params", None) or {}).get(STATS_KEY)
    return StreamStats(**report) if report else None


@dataclass(slots=True)
class _Stream:
    token_ids: list[int]
    params: SamplingParams
    lora_request: Any
    cache_salt: str | None
    asked: SamplingParams
    """The parameters for the whole answer; `params` are those for what is left of it."""
    carried: list[int]
    carried_text: str
    internal_id: str = ""


class EngineStreams:
    """Opens, extends and ends streams in one engine. All methods belong to one event loop."""

    def __init__(self, engine_client: Any) -> None:
        self._front_end = checked_module(vllm.__version__, front_end=True).FrontEnd(engine_client)
        self._streams: dict[str, _Stream] = {}
        config = engine_client.vllm_config
        self.max_model_len = int(config.model_config.max_model_len)
        self.limit_tokens = self.max_model_len - 1
        """Longest prompt, in tokens: one more must fit into the model, and all of it into the KV cache."""
        blocks = config.cache_config.num_gpu_blocks
        self.kv_tokens = int(blocks - 1) * int(config.cache_config.block_size) if blocks else 0
        if self.kv_tokens:
            self.limit_tokens = min(self.limit_tokens, self.kv_tokens)

    @property
    def open_streams(self) -> int:
        """Streams that have not ended, generating ones included."""
        return len(self._streams)

    def known_tokens(self, stream_id: str) -> int:
        """Prompt tokens handed over so far. Raises UnknownStream."""
        return len(self._stream(stream_id).token_ids)

    def progress(self, stream_id: str) -> tuple[int, int]:
        """(computed, invalidated) tokens as last reported by the engine core; it may lag by a tenth of a second.

        Raises UnknownStream.
        """
        return latest_progress.get(self._stream(stream_id).internal_id, (0, 0))

    async def open(
        self,
        stream_id: str,
        token_ids: Sequence[int],
        params: SamplingParams,
        *,
        lora_request: Any = None,
        cache_salt: str | None = None,
        carried: Sequence[int] = (),
        carried_text: str = "",
        tenant: str = DEFAULT_TENANT,
        weight: float = 1.0,
    ) -> AsyncIterator[Any]:
        """Start a stream whose prompt begins with `token_ids` (at least one); returns its outputs once it is known.

        The outputs are vLLM's RequestOutput, deltas, and begin after the finish. A stream that the engine gives up ends
        with finish reason `error` and the reason in `stop_reason`; an aborted one with `abort`. Closing the iterator
        early aborts the stream.

        carried: the first tokens of the answer, fewer than `max_tokens`, and `carried_text` what of their text was
        passed on, where another engine has begun to answer. The outputs are what follows. The carried tokens count for
        max_tokens, min_tokens, stop strings, structured outputs and penalties (exactly, but for a token that comes
        again: its presence_penalty counts twice).

        tenant and weight: who shares the engine with others by which weight; the last weight given holds for all of the
        tenant's streams.

        Raises StreamTooLong, EngineRefusal for parameters that streams cannot honour or vLLM refuses, and ValueError
        for an empty prefix or an id that is in use.
        """
        if stream_id in self._streams:
            raise ValueError(f"stream {stream_id!r} is open already")
        if not token_ids:
            raise ValueError("a stream needs at least one token to open")
        refuse_unsupported(params)
        self._check_length(len(token_ids))
        own = params.clone()
        own.output_kind = RequestOutputKind.DELTA
        asked = own.clone()
        continue_answer(own, carried)
        own.extra_args = {
            **(own.extra_args or {}),
            **Op(OpKind.OPEN, carried=tuple(carried)).to_extra_args(),
            **TenantShare(tenant, weight).to_extra_args(),
        }
        prompt = tokens_input(list(token_ids), cache_salt=cache_salt)
        stream = self._streams[stream_id] = _Stream(
            list(token_ids), own, lora_request, cache_salt, asked, list(carried), carried_text
        )
        try:
            collector = await self._front_end.start(stream_id, prompt, own, lora_request)
        except BaseException as error:
            del self._streams[stream_id]
            if isinstance(error, (ValueError, VLLMClientError)):
                raise EngineRefusal("invalid_params", str(error)) from error
            raise
        stream.internal_id = collector.request_id
        latest_progress[stream.internal_id] = (0, 0)
        return self._outputs(stream_id, stream, collector)

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
        if stream.carried:
            await self._replace(stream_id, list(stream.token_ids), last=True)
            return
        self._fix_prompt(stream, list(stream.token_ids))
        await self._send(stream, [0], Op(OpKind.FINISH, last=True, empty=True))

    async def abort(self, stream_id: str) -> None:
        """End a stream and free its KV cache; unknown ids are ignored."""
        stream = self._streams.get(stream_id)
        if stream is not None and stream.internal_id:
            self._forget(stream_id, stream)
            await self._front_end.abort(stream.internal_id)

    async def _replace(self, stream_id: str, token_ids: Sequence[int], *, last: bool) -> None:
        stream = self._stream(stream_id)
        if not token_ids:
            raise ValueError("a prompt needs at least one token")
        known, new = stream.token_ids, list(token_ids)
        if last:
            self._fix_prompt(stream, list(new))
            new += stream.carried
        self._check_length(len(new))
        stream.token_ids = new
        if len(new) > len(known) and new[: len(known)] == known:
            # Same effect as the update, at a fraction of the bytes and hashing.
            await self._send(stream, new[len(known) :], Op(OpKind.APPEND, last=last))
        else:
            await self._send(stream, list(new), Op(OpKind.UPDATE, last=last))

    def _fix_prompt(self, stream: _Stream, prompt: list[int]) -> None:
        self._front_end.fix_prompt(stream.internal_id, prompt, stream.asked, stream.carried, stream.carried_text)

    def _stream(self, stream_id: str) -> _Stream:
        stream = self._streams.get(stream_id)
        if stream is None or not stream.internal_id:
            raise UnknownStream(stream_id)
        return stream

    def _check_length(self, tokens: int) -> None:
        if tokens > self.limit_tokens:
            raise StreamTooLong(tokens, self.limit_tokens)

    async def _send(self, stream: _Stream, token_ids: list[int], op: Op) -> None:
        # One that ended a moment ago has its last output on the way to the reader.
        if self._front_end.knows(stream.internal_id):
            params = SamplingParams(max_tokens=1, extra_args=op.to_extra_args())
            await self._front_end.send(stream.internal_id, token_ids, params, stream.lora_request, stream.cache_salt)

    async def _outputs(self, stream_id: str, stream: _Stream, collector: Any) -> AsyncIterator[Any]:
        report: dict[str, int] | None = None
        finished = False
        try:
            while not finished:
                try:
                    output = await collector.get()
                except (ValueError, VLLMClientError) as error:
                    # From 0.33 on vLLM tells so what only the core finds out, as a grammar that does not compile.
                    raise EngineRefusal("invalid_params", str(error)) from error
                report = (output.kv_transfer_params or {}).get(STATS_KEY, report)
                finished = output.finished
                if finished and report is not None:
                    # A stop string is found on this side, and then the core's last word is not heard.
                    output.kv_transfer_params = {**(output.kv_transfer_params or {}), STATS_KEY: report}
                yield output
        finally:
            self._forget(stream_id, stream)
            if not finished:
                await self._front_end.abort(stream.internal_id)

    def _forget(self, stream_id: str, stream: _Stream) -> None:
        latest_progress.pop(stream.internal_id, None)
        if self._streams.get(stream_id) is stream:
            del self._streams[stream_id]


def continue_answer(params: SamplingParams, carried: Sequence[int]) -> None:
    """Change `params` for a request whose prompt ends in the `carried` first tokens of its answer.

    To the engine these are part of the prompt. Their frequency and presence penalties become a bias on their logits.
    """
    if not carried:
        return
    if params.max_tokens is not None:
        params.max_tokens = max(params.max_tokens - len(carried), 1)
    params.min_tokens = max(params.min_tokens - len(carried), 0)
    if params.frequency_penalty or params.presence_penalty:
        bias = dict(params.logit_bias or {})
        for token_id, times in Counter(carried).items():
            penalty = params.frequency_penalty * times + params.presence_penalty
            bias[token_id] = bias.get(token_id, 0.0) - penalty
        params.logit_bias = bias


def refuse_unsupported(params: SamplingParams) -> None:
    """Raise EngineRefusal for what a stream cannot honour; it is never ignored."""
    if params.n != 1:
        raise EngineRefusal("unsupported_params", f"n must be 1, not {params.n}")
    if params.prompt_logprobs is not None:
        raise EngineRefusal("unsupported_params", "prompt_logprobs are not available for streams")
