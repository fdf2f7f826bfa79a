"""Feeds a workload to an engine core, and gathers when each stream got its first token."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stream2llm_bench.preemption.workloads import Arriving

OUTPUT_TOKENS = 4
FIRST_TOKEN = 10
"""Lower ids are left out: many vocabularies begin with special tokens."""


@dataclass(slots=True)
class Outcome:
    """What one run gave."""

    ttft_ms: list[float] = field(default_factory=list)
    """From the arrival of a stream's last chunk to its first token, in the order of the first tokens."""
    ttft_ms_of: dict[str, float] = field(default_factory=dict)
    """The same by stream."""
    prefill_tokens: int = 0
    recomputed_tokens: int = 0
    preemptions: dict[str, int] = field(default_factory=dict)
    """By kind."""
    completion_s: float = 0.0
    tokens: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """What each stream answered."""


class Replay:
    """One run of a workload. Call `send` for each chunk in the order of `arrivals`, `note` for each output."""

    def __init__(self, core: Any, streams: Sequence[Arriving], clock: Callable[[], float]) -> None:
        self._core, self._clock = core, clock
        self._vocabulary = int(core.vllm_config.model_config.get_vocab_size())
        self._shares = {stream.name: (stream.tenant, stream.weight) for stream in streams if stream.tenant}
        self._finished_s: dict[str, float] = {}
        self._answers: dict[str, list[int]] = {}
        self._given_up = False
        self.outcome = Outcome()
        self.arrivals = sorted(
            (when_s, stream.name, i, tokens, i == len(stream.chunks) - 1)
            for stream in streams
            for i, (when_s, tokens) in enumerate(stream.chunks)
        )
        """(seconds, stream, number of the chunk, its tokens, whether it is the last)."""
        self.unanswered = len(streams)

    def send(self, stream: str, number: int, tokens: int, last: bool) -> None:
        if self._given_up:
            return
        from vllm.sampling_params import SamplingParams
        from vllm.v1.engine import EngineCoreRequest

        from stream2llm_pod.engine.protocol import Op, OpKind
        from stream2llm_pod.engine.tenancy import TenantShare

        tenant, weight = self._shares.get(stream, ("", 1.0))
        share = TenantShare(tenant, weight).to_extra_args() if tenant else {}
        chooser = random.Random(f"{stream}-{number}")
        token_ids = [chooser.randrange(FIRST_TOKEN, self._vocabulary) for _ in range(tokens)]
        op = Op(OpKind.OPEN, last=last) if number == 0 else Op(OpKind.APPEND, last=last)
        if last:
            self._finished_s[stream] = self._clock()
        request = EngineCoreRequest(
            request_id=stream,
            external_req_id=stream,
            prompt_token_ids=token_ids,
            mm_features=None,
            sampling_params=SamplingParams(
                temperature=0, max_tokens=OUTPUT_TOKENS, ignore_eos=True, extra_args={**op.to_extra_args(), **share}
            ),
            pooling_params=None,
            arrival_time=self._clock(),
            lora_request=None,
            cache_salt=tenant or None,
            data_parallel_rank=None,
        )
        self._core.add_request(*self._core.preprocess_add_request(request))

    def note(self, output: Any, now_s: float) -> None:
        """One output of the engine for one stream."""
        stream = output.request_id
        if output.new_token_ids and stream not in self._answers:
            self._answers[stream] = []
            self.outcome.ttft_ms_of[stream] = 1e3 * (now_s - self._finished_s[stream])
            self.outcome.ttft_ms.append(self.outcome.ttft_ms_of[stream])
        if output.new_token_ids:
            self._answers[stream].extend(output.new_token_ids)
        if output.finish_reason is not None:
            self.unanswered -= 1
            self.outcome.completion_s = now_s

    def give_up(self) -> None:
        """End what is not answered; nothing more is sent."""
        self._given_up = True
        self._core.abort_requests(list(self._core.scheduler.requests))
        self.unanswered = 0

    def end(self) -> Outcome:
        """The outcome, once all streams are answered. RuntimeError if one is not, or the scheduler had an alarm."""
        counters = self._core.scheduler.counters
        if self.unanswered or counters.internal_errors or counters.failed_requests:
            raise RuntimeError(
                f"{self.unanswered} streams unanswered, {counters.failed_requests} failed, "
                f"{counters.internal_errors} errors in planning"
            )
        self.outcome.prefill_tokens = counters.prefill_tokens
        self.outcome.recomputed_tokens = counters.recomputed_tokens
        for (kind, _), count in counters.preemptions.items():
            self.outcome.preemptions[kind] = self.outcome.preemptions.get(kind, 0) + count
        self.outcome.tokens = {stream: tuple(tokens) for stream, tokens in self._answers.items()}
        return self.outcome
