"""Puts the serving side together around one engine, and takes it apart again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import REGISTRY
from redis.exceptions import RedisError
from vllm.v1.engine.exceptions import EngineDeadError

from stream2llm.connecting import RedisTLS, connect_async
from stream2llm.entries import Open
from stream2llm.errors import ErrorCode
from stream2llm.keys import PoolKeys
from stream2llm_pod.engine.frontend import EngineRefusal, EngineStreams, StreamTooLong, UnknownStream, stats_of
from stream2llm_pod.serving.assembling import Template
from stream2llm_pod.serving.clocks import RedisClock
from stream2llm_pod.serving.heartbeats import Capacity, Heartbeats, Identity, Load, fingerprint
from stream2llm_pod.serving.intake import Intake, StreamKey
from stream2llm_pod.serving.metrics import ServingMetrics
from stream2llm_pod.serving.parameters import Limits, ParametersError, parse_parameters
from stream2llm_pod.serving.rendering import ChatTemplates, TokenizerEncoder
from stream2llm_pod.serving.replies import ReplyWriter
from stream2llm_pod.serving.session import OpenError, Prepared, ServingContext, Session

logger = logging.getLogger(__name__)

# An answer may have as many events as the model has positions, and each of its streams a few more.
MIN_REPLY_EVENTS = 10_000
FLUSH_S = 5.0


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """What `stream2llm serve` was told. `pool` is `<namespace>/<name>`."""

    redis_url: str = field(repr=False)  # may bring a password from the environment
    redis_password_file: str | None
    redis_tls: RedisTLS
    pool: str
    pod: str
    url: str
    max_open_streams: int
    retain_s: int
    drain_s: float
    share_cache: bool


class ServingPod:
    """The streams of one pod: `start` when the engine is ready, `drain` before it goes, `stop` at the end."""

    def __init__(self, engine_client: Any, state: Any, args: Any, serving: ServingSettings) -> None:
        """`state` and `args` are those of vLLM's API server."""
        config = engine_client.vllm_config
        model_config = config.model_config
        self.settings = serving
        self.incarnation = secrets.token_hex(8)
        self.draining = False
        self._clock = RedisClock()
        self._keys = PoolKeys(serving.pool)
        self._metrics = ServingMetrics(serving.pool, serving.pod)
        self._engine = EngineStreams(engine_client)
        self._models = state.openai_serving_models
        self._model_config = model_config
        sampling = dict(model_config.get_diff_sampling_param())
        self._limits = Limits(
            model_config.max_model_len,
            sampling,
            sampling.get("max_tokens")
            if model_config.generation_config not in ("auto", "vllm")
            else model_config.override_generation_config.get("max_new_tokens"),
        )
        self._templates = ChatTemplates(
            engine_client.renderer,
            chat_template=state.online_renderer.chat_template,
            content_format=state.online_renderer.chat_template_content_format,
            template_kwargs=state.online_renderer.default_chat_template_kwargs,
        )
        self._client = connect_async(serving.redis_url, serving.redis_password_file, tls=serving.redis_tls)
        # Blocking reads hold their connection: writes must not wait behind them.
        self._log_client = connect_async(serving.redis_url, serving.redis_password_file, tls=serving.redis_tls)
        self._replies = ReplyWriter(
            self._client,
            self._keys,
            retain_ms=serving.retain_s * 1000,
            max_events=max(MIN_REPLY_EVENTS, model_config.max_model_len + 1024),
        )
        self._ctx = ServingContext(
            pod=serving.pod,
            engine=self._engine,
            encoder=TokenizerEncoder(engine_client.renderer.get_tokenizer()),
            prepare=self._prepare,
            explain=explain,
            stats_of=stats_of,
            replies=self._replies,
            clock=self._clock,
            metrics=self._metrics,
            max_model_len=self._engine.limit_tokens + 1,
            vocabulary_tokens=model_config.get_vocab_size(),
            cache_salt=(lambda tenant: None) if serving.share_cache else (lambda tenant: tenant),
        )
        self._intake = Intake(
            self._log_client,
            self._keys,
            serving.pod,
            self.incarnation,
            self._clock,
            self._open_session,
            lag=self._metrics.intake_lag.set,
        )
        cache = config.cache_config
        identity = Identity(
            pod=serving.pod,
            incarnation=self.incarnation,
            fingerprint=fingerprint(
                {
                    "model": model_config.model,
                    "revision": model_config.revision,
                    "dtype": model_config.dtype,
                    "quantization": model_config.quantization,
                    "kv_cache_dtype": cache.cache_dtype,
                    "max_model_len": model_config.max_model_len,
                }
            ),
            models=tuple(path.name for path in self._models.base_model_paths),
            max_model_len=model_config.max_model_len,
            url=serving.url,
            capacity=Capacity(serving.max_open_streams, self._engine.kv_tokens),
        )
        self._heartbeats = Heartbeats(self._client, self._keys, identity, self._clock, self._state, self._load)
        self._tasks: list[asyncio.Task[None]] = []
        self._session_tasks: set[asyncio.Task[None]] = set()

    @property
    def open_streams(self) -> int:
        return sum(not session.over for session in self._sessions())

    @property
    def ready(self) -> bool:
        return bool(self._tasks) and not self.draining

    async def start(self) -> None:
        """Begin to take streams. Raises RedisError or OSError if the first heartbeat fails."""
        await self._heartbeats.beat()
        for name, work in (
            ("replies", self._replies.run()),
            ("intake", self._intake.run()),
            ("heartbeats", self._heartbeats.run()),
        ):
            self._tasks.append(_start(work, f"stream2llm {name}"))
        self._metrics.ready_timestamp.set(time.time())
        logger.info("taking streams of pool %s as pod %s", self.settings.pool, self.settings.pod)

    async def drain(self, seconds: float) -> None:
        """Take no new streams; wait until those here are over, at most `seconds`, then end them with `lost`."""
        self.draining = True
        self._metrics.draining.set(1)
        with contextlib.suppress(RedisError, OSError):
            await self._heartbeats.beat()
        deadline = time.monotonic() + seconds
        # The router may have assigned a stream just before it saw the heartbeat: look at the log until the end.
        while time.monotonic() < deadline and (self.open_streams or await self._log_length()):
            await asyncio.sleep(0.05)
        for session in self._sessions():
            session.end_with_error(ErrorCode.LOST, "the pod was shut down before the stream was over")

    async def stop(self) -> None:
        """Write what is left to say, leave the list of pods and end all tasks."""
        with contextlib.suppress(TimeoutError, RedisError, OSError):
            async with asyncio.timeout(FLUSH_S):
                await self._replies.drained()
                await self._heartbeats.retire()
        tasks = [*self._tasks, *self._session_tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()
        await self._client.aclose()
        await self._log_client.aclose()

    def _open_session(self, tenant: str, opening: Open, attempt: int, opened_ms: int) -> Session:
        session = Session(tenant, opening, attempt, opened_ms, self._ctx)
        key = (tenant, opening.stream)
        task = _start(self._serve(key, session), f"stream2llm stream {tenant}/{opening.stream}")
        self._session_tasks.add(task)
        task.add_done_callback(self._session_tasks.discard)
        return session

    async def _serve(self, key: StreamKey, session: Session) -> None:
        await session.run()
        if self._intake.sessions.get(key) is session:
            del self._intake.sessions[key]

    async def _prepare(self, opening: Open) -> Prepared:
        """Check an open against what this pod serves. Raises OpenError."""
        try:
            parameters = parse_parameters(opening.params, self._limits, messages=opening.messages)
        except ParametersError as error:
            raise OpenError(error.code, error.message, error.field) from error
        lora = await self._lora(parameters.model)
        marker = opening.options.marker
        if opening.prompt is not None:
            special = parameters.request.add_special_tokens
            return Prepared(parameters.sampling, Template.of_prompt(opening.prompt, marker, special=special), lora)
        try:
            template = await asyncio.to_thread(
                self._templates.template,
                parameters.request,
                opening.messages or [],
                marker,
                special=parameters.request.add_special_tokens,
            )
        except ValueError as error:
            raise OpenError(ErrorCode.MALFORMED, f"messages: {error}", "messages") from error
        return Prepared(parameters.sampling, template, lora)

    async def _lora(self, name: str | None) -> Any:
        if not name or self._models.is_base_model(name):
            return None
        lora = self._models.lora_requests.get(name)
        if lora is None:
            served = [path.name for path in self._models.base_model_paths] + list(self._models.lora_requests)
            raise OpenError(
                ErrorCode.UNKNOWN_MODEL, f"model {name[:80]!r} is not served here; served are {served}", "params.model"
            )
        return lora

    def _sessions(self) -> list[Session]:
        return [session for session in self._intake.sessions.values() if isinstance(session, Session)]

    async def _log_length(self) -> int:
        try:
            return int(await self._client.xlen(self._keys.log(self.settings.pod, self.incarnation)))
        except (RedisError, OSError):
            return 0

    def _state(self) -> str:
        return "draining" if self.draining else "ready"

    def _load(self) -> Load:
        sessions = [session for session in self._sessions() if not session.over]
        self._metrics.set_open_streams(Counter(session.stream.phase for session in sessions))
        return Load(len(sessions), sum(session.backlog_tokens for session in sessions), kv_usage())


def explain(error: Exception) -> ErrorCode | None:
    """The code for an exception of the engine; None for one that nobody expects."""
    if isinstance(error, StreamTooLong):
        return ErrorCode.CONTEXT_TOO_LONG
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, EngineDeadError):
            return ErrorCode.ENGINE_ERROR
        cause = cause.__cause__
    if isinstance(error, UnknownStream):
        return ErrorCode.ENGINE_ERROR
    if isinstance(error, EngineRefusal):
        code = getattr(error, "code", ErrorCode.INVALID_PARAMS)
        return ErrorCode(code) if code in ErrorCode.__members__.values() else ErrorCode.INVALID_PARAMS
    return None


def kv_usage() -> float:
    """Share of the KV cache in use, as vLLM itself reports it on /metrics."""
    usage = 0.0
    for family in REGISTRY.restricted_registry(["vllm:kv_cache_usage_perc"]).collect():
        usage = max([usage, *(sample.value for sample in family.samples)])
    return usage


def _start(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_complain)
    return task


def _complain(task: asyncio.Task[None]) -> None:
    """A task that nobody awaits must not fail in silence."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("%s stopped", task.get_name(), exc_info=error)
