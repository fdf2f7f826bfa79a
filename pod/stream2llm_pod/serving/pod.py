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
from vllm.exceptions import VLLMServerError
from vllm.v1.engine.exceptions import EngineDeadError

from stream2llm import logs
from stream2llm.connecting import RedisTLS, connect_async
from stream2llm.ending import end_tasks
from stream2llm.entries import EntryRules, Open
from stream2llm.errors import ErrorCode
from stream2llm.keys import PoolKeys
from stream2llm.tracing.arguments import TracingSettings
from stream2llm.tracing.recording import OTLPTracer
from stream2llm_pod.engine.frontend import EngineRefusal, EngineStreams, StreamTooLong, UnknownStream, stats_of
from stream2llm_pod.serving.assembling import Template
from stream2llm_pod.serving.auditing import Finding, Stored, compare
from stream2llm_pod.serving.clocks import RedisClock
from stream2llm_pod.serving.heartbeats import Capacity, Figures, Heartbeats, Identity, Load, fingerprint
from stream2llm_pod.serving.intake import Adoption, Intake, StreamKey
from stream2llm_pod.serving.metrics import ServingMetrics
from stream2llm_pod.serving.parameters import Limits, ParametersError, parse_parameters
from stream2llm_pod.serving.rates import PrefillRate
from stream2llm_pod.serving.rendering import ChatTemplates, TokenizerEncoder
from stream2llm_pod.serving.replies import Reply, ReplyWriter
from stream2llm_pod.serving.session import OpenError, Prepared, ServingContext, Session
from stream2llm_pod.serving.tracing import PodTracing

logger = logging.getLogger(__name__)

# An answer may have as many events as the model has positions, and each of its streams a few more.
MIN_REPLY_EVENTS = 10_000
ROUTE_FIELDS = ("state", "attempt", "incarnation", "open_id", "seq", "next_token")
FLUSH_S = 5.0
AUDIT_S = 5.0
HANDOVER_S = 30.0
"""How long before the end of the grace period other pods are offered what is left; at most half of the period."""


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
    idle_timeout_s: int
    tracing: TracingSettings | None = None


class ServingPod:
    """The streams of one pod: `start` when the engine is ready, `drain` before it goes, `stop` at the end."""

    def __init__(self, engine_client: Any, state: Any, args: Any, serving: ServingSettings) -> None:
        """`state` and `args` are those of vLLM's API server."""
        config = engine_client.vllm_config
        model_config = config.model_config
        self.settings = serving
        self.incarnation = secrets.token_hex(8)
        self.draining = False
        self.leaving = False
        self.failed = False
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
        self._tracer = None
        if serving.tracing is not None:
            resource = {"stream2llm.pool": serving.pool, "stream2llm.pod": serving.pod}
            self._tracer = OTLPTracer(serving.tracing, "stream2llm-pod", resource)
        self._client = connect_async(serving.redis_url, serving.redis_password_file, tls=serving.redis_tls)
        # Blocking reads hold their connection: writes must not wait behind them.
        self._log_client = connect_async(serving.redis_url, serving.redis_password_file, tls=serving.redis_tls)
        self._replies = ReplyWriter(
            self._client,
            self._keys,
            pod=serving.pod,
            was_there=self._was_there,
            retain_ms=serving.retain_s * 1000,
            max_events=max(MIN_REPLY_EVENTS, model_config.max_model_len + 1024),
        )
        self._ctx = ServingContext(
            pod=serving.pod,
            engine=self._engine,
            encoder=TokenizerEncoder(engine_client.renderer.get_tokenizer()),
            prepare=self._prepare,
            explain=explain,
            engine_died=self._note_death,
            stats_of=stats_of,
            replies=self._replies,
            clock=self._clock,
            metrics=self._metrics,
            max_model_len=self._engine.limit_tokens + 1,
            vocabulary_tokens=model_config.get_vocab_size(),
            cache_salt=(lambda tenant: None) if serving.share_cache else (lambda tenant: tenant),
            tracing=None if self._tracer is None else PodTracing(self._tracer, serving.pool, serving.pod),
        )
        self._intake = Intake(
            self._log_client,
            self._keys,
            serving.pod,
            self.incarnation,
            self._clock,
            self._open_session,
            lag=self._metrics.intake_lag.set,
            rules=EntryRules(idle_timeout_ms=serving.idle_timeout_s * 1000),
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
        self._heartbeats = Heartbeats(
            self._client,
            self._keys,
            identity,
            self._clock,
            self._state,
            self._load,
            self._figures,
            self._begin_anew,
        )
        self._orphans: set[StreamKey] = set()
        self._behind: set[StreamKey] = set()
        self._rate = PrefillRate()
        self._tasks: list[asyncio.Task[None]] = []
        self._intake_task: asyncio.Task[None] | None = None
        self._session_tasks: set[asyncio.Task[None]] = set()

    @property
    def open_streams(self) -> int:
        return sum(not session.over for session in self._sessions())

    @property
    def ready(self) -> bool:
        return bool(self._tasks) and self._heartbeats.registered and not self.draining

    async def start(self) -> None:
        """Begin to take streams. Raises RedisError or OSError if the first heartbeat fails."""
        await self._heartbeats.beat()
        for name, work in (
            ("replies", self._replies.run()),
            ("heartbeats", self._heartbeats.run()),
            ("audit", self._audit_for_ever()),
        ):
            self._tasks.append(_start(work, f"stream2llm {name}"))
        self._intake_task = _start(self._intake.run(), "stream2llm intake")
        self._metrics.ready_timestamp.set(time.time())
        logger.info("taking streams of pool %s as pod %s", self.settings.pool, self.settings.pod)

    async def drain(self, seconds: float) -> None:
        """Take no new streams and let those here end; offer what is left to other pods before `seconds` are over.

        A stream that no other pod takes stays here until then. What is left at the end is the routers' to place.
        """
        self.draining = True
        self._metrics.draining.set(1)
        self._heartbeats.soon()
        start_s = time.monotonic()
        offer_s = start_s + seconds - min(HANDOVER_S, seconds / 2)
        # The router may have assigned a stream just before it saw the heartbeat: look at the log until the end.
        while time.monotonic() < start_s + seconds and (self.open_streams or await self._log_length()):
            await asyncio.sleep(0.05)
            if not self.leaving and time.monotonic() >= offer_s:
                logger.info("offering %d streams to other pods", self.open_streams)
                self.leaving = True
                self._heartbeats.soon()
            if self.leaving:
                with contextlib.suppress(RedisError, OSError):
                    await self._audit()

    async def stop(self) -> None:
        """Write what is left to say, leave the list of pods and end all tasks."""
        with contextlib.suppress(TimeoutError, RedisError, OSError):
            async with asyncio.timeout(FLUSH_S):
                await self._replies.drained()
                await self._heartbeats.retire(failed=self.failed)
        for session in self._sessions():
            session.drop()
        tasks = [*self._tasks, *self._session_tasks, *([self._intake_task] if self._intake_task else [])]
        await end_tasks(tasks)
        self._tasks.clear()
        await self._client.aclose()
        await self._log_client.aclose()
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)

    def _begin_anew(self) -> str:
        """The routers have given this incarnation up: leave its streams to others and be another one."""
        abandoned = self._sessions()
        for session in abandoned:
            session.drop()
        self._session_tasks.add(task := _start(self._tell_losses(abandoned), "stream2llm losses"))
        task.add_done_callback(self._session_tasks.discard)
        self.incarnation = self._intake.incarnation = secrets.token_hex(8)
        self._intake.sessions.clear()
        if self._intake_task is not None:
            # It may be waiting for entries of the log that nobody writes to any more.
            self._intake_task.cancel()
            self._intake_task = _start(self._intake.run(), "stream2llm intake")
        return self.incarnation

    async def _tell_losses(self, sessions: list[Session]) -> None:
        """Of streams that Redis has forgotten nobody else would tell; all others are the routers'."""
        if not self._was_there():
            return
        for session in sessions:
            if not await self._client.exists(self._keys.route(session.tenant, session.opening.stream)):
                session.lose("Redis has forgotten the stream")

    def _note_death(self, error: Exception) -> bool:
        if engine_died(error):
            self.failed = True
        return engine_died(error)

    def _was_there(self) -> bool:
        """Whether a route that is missing cannot just have expired while this pod was away."""
        return self._heartbeats.silent_s < self.settings.retain_s

    async def _audit_for_ever(self) -> None:
        while True:
            await asyncio.sleep(AUDIT_S)
            try:
                await self._audit()
            except (RedisError, OSError) as error:
                logger.info("streams not compared with Redis: %s", error)

    async def _audit(self) -> None:
        """Find what has become of streams without a word: they moved, or Redis has lost something."""
        sessions = {key: session for key, session in self._intake.sessions.items() if isinstance(session, Session)}
        open_sessions = [(key, session, session.held()) for key, session in sessions.items() if not session.over]
        incarnation = self.incarnation
        pipeline = self._client.pipeline(transaction=False)
        pipeline.xlen(self._keys.log(self.settings.pod, incarnation))
        pipeline.hkeys(self._keys.assigned(self.settings.pod, incarnation))
        for key, _, _ in open_sessions:
            pipeline.hmget(self._keys.route(*key), *ROUTE_FIELDS)
        backlog, assigned, *routes = await pipeline.execute()
        behind: set[StreamKey] = set()
        for (key, session, held), raw in zip(open_sessions, routes, strict=True):
            match compare(held, _stored(raw), was_there=self._was_there()):
                case Finding.DROP:
                    session.drop()
                case Finding.LOST:
                    session.lose("Redis has lost part of the stream")
                case Finding.BEHIND if not backlog:
                    behind.add(key)
        # Twice in a row: until then they may be on the way.
        for key in behind & self._behind:
            await self._intake.catch_up(key)
        self._behind = behind
        members = (member.decode("utf-8", "replace").partition(":") for member in assigned)
        orphans = set() if backlog else {(tenant, stream) for tenant, _, stream in members} - sessions.keys()
        for key in orphans & self._orphans:
            await self._lose_orphan(key, incarnation)
        self._orphans = orphans

    async def _lose_orphan(self, key: StreamKey, incarnation: str) -> None:
        """Redis says that this pod has a stream which it has not: it had ended, or come, in what was lost."""
        if key in self._intake.sessions:
            return
        stored = _stored(await self._client.hmget(self._keys.route(*key), *ROUTE_FIELDS))
        if stored is None or stored.state == "ended" or stored.incarnation != incarnation:
            await self._client.hdel(self._keys.assigned(self.settings.pod, incarnation), f"{key[0]}:{key[1]}")
            return
        logger.error("stream %s/%s is assigned to this pod, which does not have it", *key, extra=logs.about(*key))
        self._metrics.rejected(ErrorCode.LOST)
        reply = Reply(*key, stored.attempt, incarnation, stored.open_id, 0, lambda: None)
        self._replies.lose(reply, "Redis has lost part of the stream")

    def _open_session(self, tenant: str, opening: Open, adoption: Adoption) -> Session:
        session = Session(tenant, opening, adoption, self._ctx)
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
        return "leaving" if self.leaving else "draining" if self.draining else "ready"

    def _load(self) -> Load:
        sessions = [session for session in self._sessions() if not session.over]
        self._metrics.set_open_streams(Counter(session.stream.phase for session in sessions))
        backlog_tokens = sum(session.backlog_tokens for session in sessions)
        rate = self._rate.observe(prefilled_tokens(), backlog_tokens, time.monotonic())
        return Load(len(sessions), backlog_tokens, kv_usage(), rate)

    def _figures(self) -> Figures:
        by_cause = totals("stream2llm_preemptions_total", "cause")
        return Figures(
            memory_preemptions=int(by_cause.get("memory", 0)),
            policy_preemptions=int(by_cause.get("policy", 0)),
            recomputed_tokens=int(totals("stream2llm_recomputed_tokens_total").get("", 0)),
            ttft_ms=self._metrics.recent_ttft.percentiles_ms(time.monotonic()),
        )


def engine_died(error: Exception) -> bool:
    """Whether an exception of the engine means that there is no engine any more."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, EngineDeadError):
            return True
        cause = cause.__cause__
    return False


def explain(error: Exception) -> ErrorCode | None:
    """The code for an exception of the engine; None for one that nobody expects."""
    if isinstance(error, StreamTooLong):
        return ErrorCode.CONTEXT_TOO_LONG
    # vLLM will not serve this request now, or not at all.
    if isinstance(error, VLLMServerError | UnknownStream):
        return ErrorCode.ENGINE_ERROR
    if isinstance(error, EngineRefusal):
        code = getattr(error, "code", ErrorCode.INVALID_PARAMS)
        return ErrorCode(code) if code in ErrorCode.__members__.values() else ErrorCode.INVALID_PARAMS
    return None


def _stored(raw: Any) -> Stored | None:
    if raw[0] is None:
        return None
    state, attempt, incarnation, open_id, seq, next_token = (b"" if value is None else value for value in raw)
    return Stored(
        state.decode(), int(attempt or 0), incarnation.decode(), open_id.decode(), int(seq or 0), int(next_token or 0)
    )


def prefilled_tokens() -> float:
    """Prompt tokens that the engine has computed, as it reports them on /metrics."""
    return totals("stream2llm_prefill_tokens_total").get("", 0.0)


def totals(name: str, label: str = "") -> dict[str, float]:
    """A counter as it is on /metrics, summed by one label; by the empty text without one."""
    found: dict[str, float] = {}
    for family in REGISTRY.restricted_registry([name]).collect():
        for sample in family.samples:
            if sample.name == name:
                value = sample.labels.get(label, "")
                found[value] = found.get(value, 0.0) + sample.value
    return found


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
