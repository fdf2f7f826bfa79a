"""The pod's scheduler, KV cache manager and connector in vLLM's engine core, on simulated hardware."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stream2llm_bench.renewing import block_bytes, renew_scheduler
from stream2llm_bench.simulated_core import BLOCK_SIZE, VOCABULARY, make_core
from stream2llm_bench.simulating.hardware import LONGEST_TOKENS, Hardware
from stream2llm_bench.simulating.outcome import Outcome
from stream2llm_bench.workloads.streams import Piece, Stream

if TYPE_CHECKING:
    from collections.abc import Iterator

SLOTS = 1024
"""Requests that run at once."""
MOST_KV_TOKENS = 4_000_000
FIRST_TOKEN = 10
BUDGETS = {"crawler": 2048, "anns": 8192}
"""Tokens a step in the paper's runs, by workload."""
DEFAULT_BUDGET_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Setting:
    """How streams are served. The names of policies and preemptions are the pod's."""

    hardware: Hardware
    policy: str = "srpf"
    preemption: str = "recompute"
    streaming: bool = True
    """False: every prompt is sent when it is whole."""
    budget_tokens: int = DEFAULT_BUDGET_TOKENS
    kv_tokens: int | None = None
    """KV memory, where not the hardware's."""
    max_wait_s: float | None = None

    @property
    def memory_tokens(self) -> int:
        return self.hardware.kv_tokens if self.kv_tokens is None else self.kv_tokens


class SimulatedEngine:
    """One engine core without a model. Each run has a scheduler and a clock of its own."""

    def __init__(self) -> None:
        from stream2llm_pod.engine.configuring import EngineSettings

        self._core, self._config = make_core(
            EngineSettings(preemption="swap", swap_bytes=1),
            longest_tokens=LONGEST_TOKENS,
            budget_tokens=DEFAULT_BUDGET_TOKENS,
            slots=SLOTS,
            blocks=MOST_KV_TOKENS // BLOCK_SIZE,
            counts_only=True,
        )
        self._core.full_kv_cache_config = self._core.scheduler.kv_cache_config

    def run(self, streams: Sequence[Stream], setting: Setting, answered: Callable[[], None] = lambda: None) -> Outcome:
        """Serve `streams`; `answered` is called for each that has its first token.

        Raises ValueError for a prompt that the KV memory cannot hold, RuntimeError if one is left unanswered or the
        scheduler had an alarm, and Stuck (a RuntimeError) if it stood still.
        """
        from stream2llm_pod.engine.simulation.driving import VirtualTime

        started = time.perf_counter()
        self._prepare(streams, setting)
        run = _Run(self._core, setting.streaming, answered)
        virtual = VirtualTime(self._core, run.note)
        for stream in streams if setting.streaming else [stream.waiting() for stream in streams]:
            run.expect(stream, virtual.at)
        with _collecting_rarely():
            virtual.run()
        outcome = run.end(streams)
        outcome.steps, outcome.wall_s = virtual.steps, time.perf_counter() - started
        return outcome

    def _prepare(self, streams: Sequence[Stream], setting: Setting) -> None:
        import vllm

        from stream2llm_pod.engine.configuring import EngineSettings
        from stream2llm_pod.engine.identifying import profile_key
        from stream2llm_pod.engine.simulation.clock import SimulatedClock
        from stream2llm_pod.scheduling.policies import DEFAULT_MAX_WAIT_S

        if not BLOCK_SIZE <= setting.memory_tokens <= MOST_KV_TOKENS:
            raise ValueError(
                f"KV memory must be from {BLOCK_SIZE} to {MOST_KV_TOKENS} tokens, not {setting.memory_tokens}"
            )
        blocks = setting.memory_tokens // BLOCK_SIZE
        longest = max(max(stream.final_tokens, _longest(stream)) for stream in streams)
        if longest >= min(blocks * BLOCK_SIZE, LONGEST_TOKENS):
            raise ValueError(
                f"the longest prompt has {longest} tokens, and KV memory or the model hold "
                f"{min(blocks * BLOCK_SIZE, LONGEST_TOKENS)}"
            )
        core, executor = self._core, self._core.model_executor
        self._config.scheduler_config.max_num_batched_tokens = setting.budget_tokens
        document = json.loads(setting.hardware.profile(profile_key(self._config), vllm.__version__).to_json())
        executor.clock = SimulatedClock()
        executor.use_profile(document)
        executor.worker.forget()
        settings = EngineSettings(
            policy=setting.policy,
            preemption=setting.preemption,
            swap_bytes=setting.hardware.host_tokens // BLOCK_SIZE * block_bytes(core),
            cost_profile=document,
            max_wait_s=DEFAULT_MAX_WAIT_S if setting.max_wait_s is None else setting.max_wait_s,
        )
        renew_scheduler(core, settings, blocks=blocks, clock=executor.clock, budget_tokens=setting.budget_tokens)


def _longest(stream: Stream) -> int:
    """Tokens of the longest prompt that a stream ever has."""
    longest = known = 0
    for message in stream.messages:
        known = message.tokens if message.replaces else known + message.tokens
        longest = max(longest, known)
    return longest


class _Run:
    """Sends the messages of one run and notes when each stream got its first token."""

    def __init__(self, core: Any, streaming: bool, answered: Callable[[], None]) -> None:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.engine import EngineCoreRequest

        from stream2llm_pod.engine.protocol import Op, OpKind

        def parameters(op: Op | None) -> Any:
            extra_args = None if op is None else op.to_extra_args()
            return SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, extra_args=extra_args)

        self._core, self._clock, self._answered = core, core.model_executor.clock, answered
        self._request_class = EngineCoreRequest
        # vLLM copies the parameters of each request, so one of each kind will do.
        self._whole = parameters(None)
        self._parameters = {
            (kind, last): parameters(Op(kind, last=last))
            for kind in (OpKind.OPEN, OpKind.APPEND, OpKind.UPDATE)
            for last in (False, True)
        }
        self._kinds = (OpKind.OPEN, OpKind.APPEND, OpKind.UPDATE)
        self._streaming = streaming
        self._asked_s: dict[str, float] = {}
        self._finished_s: dict[str, float] = {}
        self._first_s: dict[str, float] = {}

    def expect(self, stream: Stream, at: Callable[[float, Callable[[], None]], None]) -> None:
        """Have all messages of `stream` sent at their times."""
        name, last_number = stream.name, len(stream.messages) - 1
        self._asked_s[name] = stream.starts_s
        opening, appending, updating = self._kinds
        for number, message in enumerate(stream.messages):
            kind = opening if number == 0 else updating if message.replaces else appending
            last = number == last_number
            parameters = self._parameters[kind, last] if self._streaming else self._whole
            when_s = stream.starts_s + message.after_s
            if last:
                self._finished_s[name] = when_s
            at(when_s, self._sending(name, message.pieces, parameters, when_s))

    def _sending(self, name: str, pieces: tuple[Piece, ...], parameters: Any, when_s: float) -> Callable[[], None]:
        def send() -> None:
            token_ids: list[int] = []
            for identity, tokens in pieces:
                token_ids += [FIRST_TOKEN + identity % (VOCABULARY - FIRST_TOKEN)] * tokens
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
            )
            self._core.add_request(*self._core.preprocess_add_request(request))

        return send

    def note(self, output: Any, now_s: float) -> None:
        if output.new_token_ids and output.request_id not in self._first_s:
            self._first_s[output.request_id] = now_s
            self._answered()

    def end(self, streams: Sequence[Stream]) -> Outcome:
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


@contextmanager
def _collecting_rarely() -> Iterator[None]:
    """Millions of small objects live long; looking through them often takes a third of the time."""
    import gc

    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
