"""Drives an engine step by step and checks it after each."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

from engines import Engine
from invariants import check_scheduler
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest

from stream2llm_pod.engine.protocol import Op, OpKind
from stream2llm_pod.engine.simulation.tokens import expected_output
from stream2llm_pod.engine.streaming import STATS_KEY
from stream2llm_pod.engine.tenancy import TenantShare

FIRST_TOKEN = 3
VOCABULARY = 512


class Stalled(AssertionError):
    """Work is left and no step does any of it."""


@cache
def _sequence(seed: int) -> list[int]:
    chooser = random.Random(seed)
    return [chooser.randrange(FIRST_TOKEN, VOCABULARY) for _ in range(2048)]


def tokens(seed: int, length: int) -> list[int]:
    """The first `length` tokens of a fixed random sequence: one seed's shorter list is a prefix of its longer one."""
    return _sequence(seed)[:length]


class Driver:
    """Adds requests and operations to an engine core, and gathers what comes out."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.outputs: dict[str, list[int]] = defaultdict(list)
        self.finished: dict[str, str] = {}
        self.stop_reasons: dict[str, Any] = {}
        self.reports: dict[str, dict[str, int]] = {}
        self.executed_steps = 0

    @property
    def scheduler(self) -> Any:
        return self.engine.scheduler

    # ---------------------------------------------------------------- arrivals
    def send(
        self,
        req_id: str,
        token_ids: Sequence[int] | None,
        extra_args: dict[str, Any] | None = None,
        *,
        max_tokens: int = 1,
        resumable: bool = False,
        share: TenantShare | None = None,
        cache_salt: str | None = None,
        **fields: Any,
    ) -> None:
        """A request as it comes from the API server; `fields` are further ones of vLLM's EngineCoreRequest."""
        core = self.engine.core
        request = EngineCoreRequest(
            request_id=req_id,
            external_req_id=req_id,
            prompt_token_ids=None if token_ids is None else list(token_ids),
            mm_features=None,
            sampling_params=SamplingParams(
                temperature=0,
                max_tokens=max_tokens,
                ignore_eos=True,
                extra_args={**(extra_args or {}), **(share.to_extra_args() if share else {})} or None,
            ),
            pooling_params=None,
            arrival_time=self.engine.clock(),
            lora_request=None,
            cache_salt=cache_salt,
            data_parallel_rank=None,
            resumable=resumable,
            **fields,
        )
        core.add_request(*core.preprocess_add_request(request))

    def add(self, req_id: str, token_ids: Sequence[int], max_tokens: int = 8, **fields: Any) -> None:
        """An ordinary request."""
        self.send(req_id, token_ids, max_tokens=max_tokens, **fields)

    def open(self, req_id: str, token_ids: Sequence[int], max_tokens: int = 8, **fields: Any) -> None:
        self.send(req_id, token_ids, Op(OpKind.OPEN).to_extra_args(), max_tokens=max_tokens, **fields)

    def append(self, req_id: str, token_ids: Sequence[int], *, last: bool = False) -> None:
        self.send(req_id, token_ids, Op(OpKind.APPEND, last=last).to_extra_args())

    def update(self, req_id: str, token_ids: Sequence[int], *, last: bool = False) -> None:
        self.send(req_id, token_ids, Op(OpKind.UPDATE, last=last).to_extra_args())

    def finish(self, req_id: str) -> None:
        self.send(req_id, [0], Op(OpKind.FINISH, last=True, empty=True).to_extra_args())

    def abort(self, *req_ids: str) -> None:
        self.engine.core.abort_requests(list(req_ids))

    # ---------------------------------------------------------------- steps
    @property
    def busy(self) -> bool:
        """Whether the engine's loop would take a step instead of blocking until something arrives."""
        return bool(self.engine.core.scheduler.has_requests() or self.engine.core.batch_queue)

    def step(self, count: int = 1) -> int:
        """Take up to `count` steps while there is anything to do; returns how many executed the model."""
        executed_steps = 0
        for _ in range(count):
            if not self.busy:
                break
            outputs, executed = self.engine.core.step_fn()
            self.engine.core.post_step(executed)
            executed_steps += executed
            self.engine.passed()
            check_scheduler(self.scheduler)
            for of_client in (outputs or {}).values():
                for output in of_client.outputs:
                    self._gather(output)
        self.executed_steps += executed_steps
        return executed_steps

    def _gather(self, output: Any) -> None:
        assert output.request_id not in self.finished, f"{output.request_id} goes on after its end"
        self.outputs[output.request_id].extend(output.new_token_ids)
        if output.finish_reason is not None:
            self.finished[output.request_id] = str(output.finish_reason)
            self.stop_reasons[output.request_id] = output.stop_reason
            report = (output.kv_transfer_params or {}).get(STATS_KEY)
            if report is not None:
                self.reports[output.request_id] = report

    def run(self, patience: int = 50) -> int:
        """Step until there is nothing to do; returns the steps that executed the model.

        Raises Stalled once `patience` steps in a row did nothing.
        """
        idle = executed_steps = 0
        while self.busy:
            executed = self.step()
            executed_steps += executed
            idle = 0 if executed else idle + 1
            if idle > patience:
                raise Stalled(f"{idle} steps did nothing; {self.describe()}")
        return executed_steps

    def describe(self) -> str:
        return ", ".join(
            f"{req_id} {request.status.name} {request.num_computed_tokens}/{request.num_tokens}"
            for req_id, request in self.scheduler.requests.items()
        )


class Answers(Protocol):
    """The right answers of an engine."""

    def of(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
        """The first `max_tokens` output tokens for each prompt."""
        ...


class SimulatedAnswers:
    """What the simulated model answers: a function of the prompt."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary

    def of(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
        return [expected_output(prompt, max_tokens, self._vocabulary) for prompt in prompts]


class References:
    """What stock vLLM answers to a whole prompt in one request; each is computed once."""

    def __init__(self, engine: Engine, longest: int = 8) -> None:
        self._engine = engine
        self._longest = longest
        self._known: dict[tuple[int, ...], list[int]] = {}

    def of(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
        """The first `max_tokens` output tokens for each prompt."""
        from engines import Shape

        assert max_tokens <= self._longest
        missing = {tuple(prompt) for prompt in prompts} - self._known.keys()
        if missing:
            self._engine.renew(Shape(stock=True, budget_tokens=256))
            driver = Driver(self._engine)
            for i, prompt in enumerate(sorted(missing)):
                driver.add(f"reference-{len(self._known)}-{i}", prompt, self._longest)
            names = list(driver.scheduler.requests)
            driver.run()
            for name, prompt in zip(names, sorted(missing), strict=True):
                self._known[prompt] = driver.outputs[name]
        return [self._known[tuple(prompt)][:max_tokens] for prompt in prompts]
