"""Feeds streams to an engine core, simulated or real, and gathers when each got its first token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stream2llm_bench.simulating.outcome import Outcome
from stream2llm_bench.workloads.streams import Piece, Stream

FIRST_TOKEN = 10
"""Lower ids are left out: many vocabularies begin with special tokens."""


class Serving:
    """Sends the messages of one run to an engine core, and notes when each stream got its first token."""

    def __init__(
        self, core: Any, streaming: bool, answered: Callable[[], None] = lambda: None, *, stock: bool = False
    ) -> None:
        """streaming: False sends each prompt when it is whole; answered: called for each stream with a first token;
        stock: the core has vLLM's own scheduler, and streams are its streaming-input sessions, which only append."""
        from vllm.sampling_params import SamplingParams
        from vllm.v1.engine import EngineCoreRequest

        from stream2llm_pod.engine.protocol import Op, OpKind

        def parameters(op: Op | None) -> Any:
            extra_args = None if op is None else op.to_extra_args()
            return SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, extra_args=extra_args)

        self._core, self._answered = core, answered
        self._vocabulary = int(core.vllm_config.model_config.get_vocab_size())
        self._request_class = EngineCoreRequest
        # vLLM copies the parameters of each request, so one of each kind will do.
        self._whole = parameters(None)
        self._parameters = {
            (kind, last): parameters(Op(kind, last=last))
            for kind in (OpKind.OPEN, OpKind.APPEND, OpKind.UPDATE)
            for last in (False, True)
        }
        self._kinds = (OpKind.OPEN, OpKind.APPEND, OpKind.UPDATE)
        self._streaming, self._stock = streaming, stock
        self._turns: dict[str, int] = {}
        """Tokens that a stock session gives before that of its last message: one for each message."""
        self._asked_s: dict[str, float] = {}
        self._finished_s: dict[str, float] = {}
        self._first_s: dict[str, float] = {}

    def expect(self, stream: Stream, at: Callable[[float, Callable[[], None]], None]) -> None:
        """Have all messages of `stream` sent at their times."""
        if not self._streaming:
            stream = stream.waiting()
        name, last_number = stream.name, len(stream.messages) - 1
        self._asked_s[name] = stream.starts_s
        opening, appending, updating = self._kinds
        for number, message in enumerate(stream.messages):
            kind = opening if number == 0 else updating if message.replaces else appending
            last = number == last_number
            parameters = self._parameters[kind, last] if self._streaming and not self._stock else self._whole
            when_s = stream.starts_s + message.after_s
            if last:
                self._finished_s[name] = when_s
            session = self._stock and self._streaming
            if session and message.replaces:
                raise ValueError("vLLM's streaming input only appends; this stream replaces what it sent")
            at(when_s, self._sending(name, message.pieces, parameters, when_s, resumable=session))
            if session and last:
                # A message that is not resumable ends the session once everything before it is computed.
                at(when_s, self._sending(name, message.pieces[:1], parameters, when_s))
        if self._stock and self._streaming:
            self._turns[name] = last_number

    def _sending(
        self, name: str, pieces: tuple[Piece, ...], parameters: Any, when_s: float, *, resumable: bool = False
    ) -> Callable[[], None]:
        def send() -> None:
            token_ids: list[int] = []
            for identity, tokens in pieces:
                token_ids += [FIRST_TOKEN + identity % (self._vocabulary - FIRST_TOKEN)] * tokens
            request = self._request_class(
                request_id=name,
                external_req_id=name,
                prompt_token_ids=token_ids,
                mm_features=None,
                sampling_params=parameters,
                pooling_params=None,
                arrival_time=when_s,
                lora_request=None,
                cache_salt=None,
                data_parallel_rank=None,
                resumable=resumable,
            )
            self._core.add_request(*self._core.preprocess_add_request(request))

        return send

    def note(self, output: Any, now_s: float) -> None:
        """One output of the engine, from a step that ended at `now_s`."""
        if output.new_token_ids and self._turns.get(output.request_id, 0) > 0:
            self._turns[output.request_id] -= 1
        elif output.new_token_ids and output.request_id not in self._first_s:
            self._first_s[output.request_id] = now_s
            self._answered()

    def end(self, streams: Sequence[Stream]) -> Outcome:
        """RuntimeError if a stream is left unanswered or the scheduler had an alarm. Under vLLM's own scheduler streams
        may be left: their times are infinite."""
        if self._stock:
            return self._stock_end(streams)
        counters = self._core.scheduler.counters
        unanswered = [stream.name for stream in streams if stream.name not in self._first_s]
        if unanswered or counters.internal_errors or counters.failed_requests:
            raise RuntimeError(
                f"{len(unanswered)} streams unanswered, {counters.failed_requests} failed, "
                f"{counters.internal_errors} errors in planning"
            )
        outcome = Outcome(
            recomputed_tokens=counters.recomputed_tokens,
            invalidated_tokens=counters.invalidated_tokens,
            fallback_steps=counters.fallback_steps,
            completion_s=max(self._first_s.values()),
        )
        for stream in streams:
            first_s = self._first_s[stream.name]
            outcome.ttft_s.append(first_s - self._finished_s[stream.name])
            outcome.asker_s.append(first_s - self._asked_s[stream.name])
            outcome.tenants.append(stream.tenant)
        for (kind, _), count in counters.preemptions.items():
            outcome.preemptions[str(kind)] = outcome.preemptions.get(str(kind), 0) + count
        return outcome

    def _stock_end(self, streams: Sequence[Stream]) -> Outcome:
        outcome = Outcome(completion_s=max(self._first_s.values(), default=0.0))
        for stream in streams:
            first_s = self._first_s.get(stream.name, float("inf"))
            outcome.unanswered += first_s == float("inf")
            outcome.ttft_s.append(first_s - self._finished_s[stream.name])
            outcome.asker_s.append(first_s - self._asked_s[stream.name])
            outcome.tenants.append(stream.tenant)
        return outcome
