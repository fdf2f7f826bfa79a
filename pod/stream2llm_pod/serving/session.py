"""One stream on this pod: its state, its prompt, its request in the engine and its reply, driven by one task."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from stream2llm import events, logs
from stream2llm.entries import Append, Entry, Finish, Open, Update
from stream2llm.errors import ErrorCode
from stream2llm_pod.engine.naming import engine_id
from stream2llm_pod.serving.assembling import Change, Encoder, Template, TextAssembler, TokenAssembler, common_prefix
from stream2llm_pod.serving.auditing import Held
from stream2llm_pod.serving.clocks import RedisClock
from stream2llm_pod.serving.engine_streams import EngineStreamsLike, StreamStatsLike
from stream2llm_pod.serving.intake import Adoption
from stream2llm_pod.serving.metrics import ServingMetrics
from stream2llm_pod.serving.replies import Reply, ReplyEvent, ReplyWriter
from stream2llm_pod.serving.streams import Phase, Stream, answer_now, apply, expire, next_timeout_ms
from stream2llm_pod.serving.tracing import PodTracing, StreamSpans

logger = logging.getLogger(__name__)
T = TypeVar("T")

PROGRESS_INTERVAL_MS = 500
# Tokenising this much takes about a millisecond; more goes to a thread, so that other streams do not wait for it.
INLINE_CHARS = 4096
# Events outlive the longest silence that a stream may have by this much.
REPLY_GRACE_MS = 3_600_000


class OpenError(Exception):
    """An open that cannot be served."""

    def __init__(self, code: ErrorCode, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field


@dataclass(frozen=True, slots=True)
class Prepared:
    """An open, checked and understood: sampling parameters, the prompt's template, and the LoRA asked for."""

    sampling: Any
    template: Template
    lora: Any = None


@dataclass(frozen=True, slots=True)
class ServingContext:
    """What all sessions of a pod share.

    prepare: checks an open, raises OpenError; explain: the error code for an exception of the engine, None for one
    that nobody expects; engine_died: whether an exception means that there is no engine any
    more; stats_of: the engine's counts in a stream's last output.
    """

    pod: str
    engine: EngineStreamsLike
    encoder: Encoder
    prepare: Callable[[Open], Awaitable[Prepared]]
    explain: Callable[[Exception], ErrorCode | None]
    engine_died: Callable[[Exception], bool]
    stats_of: Callable[[Any], StreamStatsLike | None]
    replies: ReplyWriter
    clock: RedisClock
    metrics: ServingMetrics
    max_model_len: int
    vocabulary_tokens: int
    cache_salt: Callable[[str], str | None]
    tracing: PodTracing | None = None


@dataclass(slots=True, eq=False, weakref_slot=True)
class Session:
    """A stream's life on this pod, from `adopt` to its terminal event.

    `deliver` is called by the intake and never waits; `run` does everything else and returns when the stream is over.
    """

    tenant: str
    opening: Open
    adoption: Adoption
    ctx: ServingContext
    applied_seq: int = 1
    stream: Stream = field(init=False)
    reply: Reply = field(init=False)
    _engine_id: str = field(init=False)
    _assembler: TextAssembler | TokenAssembler | None = None
    _pump: asyncio.Task[None] | None = None
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _over: bool = False
    _sent_finish: bool = False
    _handed: int = 0
    _prompt_tokens: int = 0
    _next_token: int = 0
    _advanced_seq: int = 0
    _quiet_looks: int = 0
    _pending_bytes: int = 0
    _answering: bool = False
    _progress_ms: int = 0
    _progress: tuple[int, int, int] = (0, 0, 0)
    _first_token_ms: int | None = None
    _spans: StreamSpans | None = None

    def __post_init__(self) -> None:
        options = self.opening.options
        self.stream = Stream(
            options=options,
            opened_ms=self.adoption.opened_ms,
            touched_ms=self.ctx.clock.now_ms(),
            vocabulary_tokens=self.ctx.vocabulary_tokens,
        )
        live_ms = max(options.idle_timeout_ms, options.deadline_ms or 0) + REPLY_GRACE_MS
        adoption = self.adoption
        self.reply = Reply(
            self.tenant,
            self.opening.stream,
            adoption.attempt,
            adoption.incarnation,
            adoption.open_id,
            live_ms,
            _weakly(self._fenced),
            written_tokens=len(adoption.carried.token_ids),
        )
        self._next_token = len(adoption.carried.token_ids)
        self._first_token_ms = adoption.carried.first_token_ms
        # One pod may see a stream again in a later attempt, or another stream of that id, while the engine still
        # forgets the former.
        self._engine_id = engine_id(self.tenant, self.opening.stream, adoption.open_id, adoption.attempt)
        self._settle_prompt(self.applied_seq)
        if self.ctx.tracing is not None:
            self._spans = self.ctx.tracing.of_stream(
                self.tenant, self.opening.stream, adoption, self.opening.traceparent, self.ctx.clock.now_ms()
            )

    @property
    def attempt(self) -> int:
        return self.adoption.attempt

    @property
    def open_id(self) -> str:
        return self.adoption.open_id

    @property
    def pending_bytes(self) -> int:
        """Bytes of text delivered and not yet looked at."""
        return 0 if self._over else self._pending_bytes

    @property
    def over(self) -> bool:
        return self._over

    @property
    def known_tokens(self) -> int:
        """Prompt tokens handed to the engine so far."""
        return self._prompt_tokens or (len(self._assembler.ids) if self._assembler else 0)

    @property
    def backlog_tokens(self) -> int:
        """Prompt tokens that are here and, as far as the engine has told, not computed yet."""
        return 0 if self._over or self._answering else max(self.known_tokens - self._progress[1], 0)

    def held(self) -> Held:
        """What Redis must know too."""
        adoption = self.adoption
        return Held(
            adoption.attempt, adoption.incarnation, adoption.open_id, self.applied_seq, self.reply.written_tokens
        )

    def deliver(self, entry: Entry, seq: int, arrived_ms: int, ingress_id: str) -> None:
        """Apply one entry; a sequence number that has been applied changes nothing."""
        if self._over or seq <= self.applied_seq:
            return
        self.applied_seq = seq
        self._pending_bytes += _size_bytes(entry)
        refusal = apply(self.stream, entry, arrived_ms, self.ctx.clock.now_ms())
        if refusal is not None:
            self.refuse(refusal.code, refusal.message, refusal.field, ingress_id)
        self._settle_prompt(seq)
        self._wake.set()

    def _settle_prompt(self, seq: int) -> None:
        """Note which entry was the last that the prompt is made of; an earlier attempt may have settled it."""
        if seq == self.adoption.prompt_seq:
            answer_now(self.stream, self.ctx.clock.now_ms())
        if self.stream.generates() and not self.reply.prompt_seq:
            self.reply.prompt_seq = seq

    def skip(self, seq: int) -> None:
        """Count a sequence number as applied whose entry cannot be read."""
        self.applied_seq = max(self.applied_seq, seq)

    def drop(self) -> None:
        """Leave the stream to another attempt, without a word."""
        self._fenced()

    def lose(self, message: str) -> None:
        """End the stream because Redis has lost it, or part of it."""
        if not self._over:
            self.ctx.metrics.rejected(ErrorCode.LOST)
            self.ctx.replies.lose(self.reply, message)
            self._fenced()

    def refuse(self, code: ErrorCode, message: str, field: str | None, ingress_id: str | None) -> None:
        """Tell the reader of an entry that was left out, unless an earlier attempt has."""
        if ingress_id in self.adoption.carried.told:
            return
        self.ctx.metrics.rejected(code)
        self._send(events.ErrorEvent(code, message, field, False, ingress_id))

    def end_with_error(self, code: ErrorCode, message: str, field: str | None = None) -> None:
        """The terminal error, if nothing terminal has been said."""
        if self._over:
            return
        self._over = True
        self.stream.phase = Phase.ENDED
        self.ctx.metrics.rejected(code)
        self._send(events.ErrorEvent(code, message, field, True, None), terminal=True)
        self._wake.set()
        self._note_end(code)

    async def run(self) -> None:
        """Serve the stream to its end."""
        try:
            await self._serve()
        except OpenError as error:
            self.end_with_error(error.code, error.message, error.field)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._fail(error)
        finally:
            await self._leave_engine()

    async def _serve(self) -> None:
        self._send(events.Accepted(self.ctx.pod, self.attempt))
        prepared = await self.ctx.prepare(self.opening)
        self._assembler = TextAssembler(self.ctx.encoder, prepared.template)
        while not self._over:
            self._wake.clear()
            self._pending_bytes = 0
            if (timeout := expire(self.stream, self.ctx.clock.now_ms())) is not None and not timeout.finish:
                self.end_with_error(timeout.code, timeout.message)
                continue
            self._settle_prompt(self.applied_seq)
            if self._over:
                continue
            if self.stream.cancelled:
                self._end("cancelled")
            elif self.stream.generates():
                await self._finish(prepared)
                await self._wait()
            else:
                await self._advance(prepared)
                self._report_progress()
                await self._wait()

    async def _wait(self) -> None:
        """Until something arrives, the stream is over, or its time is."""
        at_ms = next_timeout_ms(self.stream)
        delay_s = None if at_ms is None else max(at_ms - self.ctx.clock.now_ms(), 0) / 1000 + 0.001
        if self._pump is not None and not self._sent_finish and self._progress[1] < self._handed:
            # The engine is still computing what it has: look again, so that the reader sees it get on, but ever more
            # seldom while it does not.
            look_again_s = PROGRESS_INTERVAL_MS / 1000 * 2 ** min(self._quiet_looks, 5)
            delay_s = look_again_s if delay_s is None else min(look_again_s, delay_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._wake.wait()

    async def _advance(self, prepared: Prepared) -> None:
        """Hand the engine what has arrived since the last time."""
        if self._advanced_seq == self.applied_seq:
            return
        self._advanced_seq = self.applied_seq
        change = await self._change(prepared)
        ids = self._ids()
        self._check_length(len(ids))
        if self._pump is None:
            if ids:
                await self._open(prepared, ids)
        elif change.keep < self._handed:
            self._handed = len(ids)
            await self.ctx.engine.update(self._engine_id, list(ids))
        elif change.new:
            self._handed = len(ids)
            await self.ctx.engine.append(self._engine_id, change.new)

    async def _finish(self, prepared: Prepared) -> None:
        """Hand over the whole prompt and let the engine generate."""
        if self._sent_finish:
            return
        self._sent_finish = True
        if self.stream.is_text is False:
            if not isinstance(self._assembler, TokenAssembler):
                self._assembler = TokenAssembler(self.ctx.encoder, prepared.template)
            final = self._assembler.complete(self.stream.tokens)
        else:
            assert isinstance(self._assembler, TextAssembler)
            context = self.stream.context()
            final = await _maybe_in_thread(len(context), self._assembler.complete, context)
        carried = self.adoption.carried.token_ids
        self._check_length(len(final) + len(carried))
        if not final:
            raise OpenError(ErrorCode.MALFORMED, "the prompt is empty: there is nothing to answer")
        before, self._prompt_tokens = self._ids(), len(final)
        if carried and len(carried) >= (prepared.sampling.max_tokens or len(carried) + 1):
            self._end("length")
        elif self._pump is None:
            await self._open(prepared, final)
            await self.ctx.engine.finish(self._engine_id)
        else:
            await self.ctx.engine.finish(self._engine_id, None if final == before else final)

    async def _change(self, prepared: Prepared) -> Change:
        if self.stream.is_text is not False:
            assert isinstance(self._assembler, TextAssembler)
            context = self.stream.context()
            return await _maybe_in_thread(len(context), self._assembler.advance, context)
        if isinstance(self._assembler, TokenAssembler):
            return self._assembler.advance(self.stream.tokens)
        # The prefix is in the engine already, but for its end that text might have merged with.
        before = self._ids()
        self._assembler = TokenAssembler(self.ctx.encoder, prepared.template)
        self._assembler.advance(self.stream.tokens)
        keep = common_prefix(before, self._assembler.ids)
        return Change(keep, self._assembler.ids[keep:])

    async def _open(self, prepared: Prepared, ids: list[int]) -> None:
        outputs = await self.ctx.engine.open(
            self._engine_id,
            list(ids),
            prepared.sampling,
            lora_request=prepared.lora,
            cache_salt=self.ctx.cache_salt(self.tenant),
            carried=self.adoption.carried.token_ids,
            carried_text=self.adoption.carried.text,
            tenant=self.tenant,
            weight=self.adoption.weight,
        )
        self._handed = len(ids)
        self._pump = asyncio.create_task(self._read(outputs), name=f"outputs of {self._engine_id}")

    async def _read(self, outputs: AsyncIterator[Any]) -> None:
        """Pass the engine's outputs on to the reply."""
        try:
            async for output in outputs:
                if self._over:
                    return
                self._pass_on(output)
            self.end_with_error(ErrorCode.ENGINE_ERROR, "the engine ended the stream without a reason")
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """End the stream for an exception that came out of the engine, or out of a mistake of ours."""
        if self._over:
            return
        if self.ctx.engine_died(error):
            # The stream may do well on another pod, and the routers know whether it has been at the end of many.
            self.drop()
            return
        code = self.ctx.explain(error)
        if code is None:
            logger.error(
                *("stream %s/%s failed", self.tenant, self.opening.stream),
                exc_info=error,
                extra=logs.about(self.tenant, self.opening.stream),
            )
            self.end_with_error(ErrorCode.INTERNAL, f"the pod failed: {type(error).__name__}")
        else:
            self.end_with_error(code, str(error) or type(error).__name__)

    def _pass_on(self, output: Any) -> None:
        completion = output.outputs[0]
        tokens = tuple(completion.token_ids)
        self._answering = True
        if tokens or completion.text:
            if self._first_token_ms is None:
                self._note_first_token()
            self._send(
                events.Token(self._next_token, completion.text, tokens),
                first_token=self._next_token,
                tokens=len(tokens),
            )
            self._next_token += len(tokens)
        if not output.finished:
            return
        if completion.finish_reason in ("stop", "length", "repetition"):
            self._end(completion.finish_reason, self.ctx.stats_of(output))
        else:
            reason = completion.stop_reason or completion.finish_reason
            self.end_with_error(ErrorCode.ENGINE_ERROR, f"the engine gave the stream up: {reason}")

    def _note_first_token(self) -> None:
        now_ms = self.ctx.clock.now_ms()
        self._first_token_ms = now_ms
        metrics = self.ctx.metrics
        metrics.open_to_first_token.observe(max(now_ms - self.adoption.opened_ms, 0) / 1000)
        if self.stream.finished_ms is not None:
            ttft_ms = max(now_ms - self.stream.finished_ms, 0)
            metrics.ttft.observe(ttft_ms / 1000)
            metrics.recent_ttft.note(time.monotonic(), ttft_ms)
        if self._spans is not None:
            self._spans.first_token(self.stream.finished_ms, now_ms, self._prompt_tokens)

    def _end(self, finish_reason: str, stats: StreamStatsLike | None = None) -> None:
        """The terminal `done`."""
        if self._over:
            return
        self._over = True
        self.stream.phase = Phase.ENDED
        if self._prompt_tokens and stats is not None:
            share = stats.prefilled_before_finish_tokens / self._prompt_tokens
            self.ctx.metrics.prefilled_before_finish.observe(share)
        usage = {
            "prompt_tokens": self.known_tokens,
            "completion_tokens": self._next_token,
            "total_tokens": self.known_tokens + self._next_token,
        }
        first_ms, finished_ms = self._first_token_ms, self.stream.finished_ms
        timings: dict[str, int | float | None] = {
            "open_to_finish_ms": _between(self.adoption.opened_ms, finished_ms),
            "ttft_ms": _between(finished_ms, first_ms),
            "open_to_first_token_ms": _between(self.adoption.opened_ms, first_ms),
            "prefilled_before_finish_tokens": stats.prefilled_before_finish_tokens if stats else 0,
            "preemptions": stats.preemptions if stats else 0,
            "recomputed_tokens": stats.recomputed_tokens if stats else 0,
            "swapped_tokens": stats.swapped_tokens if stats else 0,
            "attempts": self.attempt,
        }
        self._send(events.Done(finish_reason, usage, timings), terminal=True)
        self._wake.set()
        self._note_end("", f"{finish_reason}, {self._next_token} tokens, first after {timings['ttft_ms']} ms")

    def _note_end(self, error: str, outcome: str = "") -> None:
        """Of each stream one line in the log, without anything that was sent."""
        logger.info(
            *("stream %s/%s ended: %s", self.tenant, self.opening.stream, error or outcome),
            extra=logs.about(self.tenant, self.opening.stream),
        )
        if self._spans is not None:
            self._spans.ended(self.stream.finished_ms, self.ctx.clock.now_ms(), error)

    def _report_progress(self) -> None:
        """A `prefill` event if something changed, at most every half a second; the next one makes up for it."""
        progress = (self._handed, *self._engine_progress())
        now_ms = self.ctx.clock.now_ms()
        self._quiet_looks = self._quiet_looks + 1 if progress == self._progress else 0
        if progress == self._progress or now_ms - self._progress_ms < PROGRESS_INTERVAL_MS:
            return
        self._progress, self._progress_ms = progress, now_ms
        self._send(events.Prefill(*progress))

    def _engine_progress(self) -> tuple[int, int]:
        try:
            return self.ctx.engine.progress(self._engine_id)
        except KeyError:
            return self._progress[1:]

    def _check_length(self, prompt_tokens: int) -> None:
        if prompt_tokens >= self.ctx.max_model_len:
            raise OpenError(
                ErrorCode.CONTEXT_TOO_LONG, too_long_message(prompt_tokens, self.ctx.max_model_len), "context"
            )

    def _ids(self) -> list[int]:
        return [] if self._assembler is None else self._assembler.ids

    def _send(self, event: Any, *, terminal: bool = False, first_token: int = -1, tokens: int = 0) -> None:
        fields = events.encode(event)
        self.ctx.replies.send(self.reply, ReplyEvent(fields["event"], fields["data"], terminal, first_token, tokens))

    def _fenced(self) -> None:
        """Another attempt holds the stream: stop without a word."""
        self._over = True
        self.stream.phase = Phase.ENDED
        self._wake.set()

    async def _leave_engine(self) -> None:
        if self._pump is None:
            return
        if not self._pump.done() or asyncio.current_task() is self._pump:
            with contextlib.suppress(Exception):
                await self.ctx.engine.abort(self._engine_id)
        self._pump.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await self._pump


def _weakly(method: Callable[[], None]) -> Callable[[], None]:
    """`method` while its object is there. A reply that kept its session would keep the whole prompt, until the garbage
    collector happens to look at both."""
    reference = weakref.WeakMethod(method)

    def call() -> None:
        if (found := reference()) is not None:
            found()

    return call


def _size_bytes(entry: Entry) -> int:
    """Roughly what an entry takes in memory until its text has become tokens."""
    match entry:
        case Append() | Finish():
            return len(entry.text or "") + 4 * len(entry.tokens or ())
        case Update():
            return sum(len(item.text or "") for item in entry.context)
    return 0


def too_long_message(prompt_tokens: int, limit_tokens: int) -> str:
    return (
        f"the prompt has {prompt_tokens} tokens so far; the model's length is {limit_tokens},"
        " with at least one for the answer"
    )


def _between(start_ms: int | None, end_ms: int | None) -> int | None:
    return None if start_ms is None or end_ms is None else max(end_ms - start_ms, 0)


async def _maybe_in_thread(chars: int, work: Callable[[str], T], text: str) -> T:
    if chars <= INLINE_CHARS:
        return work(text)
    return await asyncio.to_thread(work, text)
