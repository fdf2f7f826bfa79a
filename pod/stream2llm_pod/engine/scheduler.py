"""The scheduler classes for vLLM's `--scheduler-cls`. Which one must match `async_scheduling`."""

from __future__ import annotations

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from stream2llm_pod.engine.planning import TwoPhaseMixin
from stream2llm_pod.engine.streaming import StreamingMixin


class StreamScheduler(TwoPhaseMixin, StreamingMixin, Scheduler):
    """Streaming-aware scheduler for synchronous scheduling."""


class AsyncStreamScheduler(TwoPhaseMixin, StreamingMixin, AsyncScheduler):
    """Streaming-aware scheduler for asynchronous scheduling (vLLM's default on CUDA)."""
