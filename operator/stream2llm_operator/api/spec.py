"""What a user asks for: `spec` of a StreamingPrefill. The CRD and its reference page are generated from these types.

There is no conversion webhook, so every name, type and unit is meant for good. Numbers are whole and carry their unit
in their name; choices are unions (exactly one member) instead of booleans; lists of things with a name are maps by it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StringConstraints

from stream2llm_operator.api.fields import (
    DNS_LABEL,
    LABEL_VALUE,
    Annotations,
    ConfigKey,
    ObjectName,
    ObjectReference,
    Part,
    Quantity,
    RunId,
    SecretKey,
    Template,
    exactly_one,
    rules,
)

DAY_S = 86_400


# ---------------------------------------------------------------------- model
class HuggingFaceSource(Part):
    """Weights from the Hugging Face hub."""

    repo: Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[A-Za-z0-9][-A-Za-z0-9._/]*$")]
    """Repository, for example `meta-llama/Llama-3.1-8B-Instruct`."""
    revision: Annotated[str, StringConstraints(max_length=128, pattern=r"^[-A-Za-z0-9._/]*$")] = ""
    """Branch, tag or commit. Empty: the repository's default branch. A commit makes restarts repeatable."""
    token_secret_ref: SecretKey | None = None
    """Access token, for repositories that need one."""


class PvcSource(Part):
    """Weights in a PersistentVolumeClaim, mounted read-only."""

    claim_name: ObjectName
    """The claim, in the same namespace."""
    path: Annotated[
        str, StringConstraints(max_length=512, pattern=r"^([-A-Za-z0-9_.]*[-A-Za-z0-9_][-A-Za-z0-9_./]*)?$")
    ] = ""
    """Folder in the volume. Empty: its root."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ("!self.path.split('/').exists(part, part == '..')", "path must stay inside the volume: no '..'")
        )
    )


class ImageSource(Part):
    """Weights in an image volume. Needs Kubernetes 1.35 or newer."""

    reference: Annotated[str, StringConstraints(min_length=1, max_length=512)]
    """Image reference, best with a digest."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When the image is pulled."""


class ModelSource(Part):
    """Where the weights come from; exactly one."""

    hugging_face: HuggingFaceSource | None = None
    """The Hugging Face hub."""
    pvc: PvcSource | None = None
    """A PersistentVolumeClaim."""
    image: ImageSource | None = None
    """An image volume."""

    model_config = ConfigDict(json_schema_extra=rules(exactly_one("huggingFace", "pvc", "image")))


class CachePvc(Part):
    """A PersistentVolumeClaim for downloads, shared by all pods that mount it."""

    claim_name: ObjectName
    """The claim, in the same namespace."""


class CacheEmptyDir(Part):
    """A volume that lives as long as its pod."""

    size_limit: Quantity | None = None
    """Upper bound of its size."""


class ModelCache(Part):
    """Where downloads are kept; exactly one."""

    pvc: CachePvc | None = None
    """A claim, so that restarts download nothing."""
    empty_dir: CacheEmptyDir | None = None
    """A volume of the pod's own."""

    model_config = ConfigDict(json_schema_extra=rules(exactly_one("pvc", "emptyDir")))


class Model(Part):
    """The model that the pods serve."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][-A-Za-z0-9._/:]*$")]
    """What clients ask for."""
    source: ModelSource
    """Where the weights come from."""
    cache: ModelCache = Field(default=ModelCache(empty_dir=CacheEmptyDir()))
    """Where downloads are kept."""
    remote_code: Literal["Never", "Always"] = "Never"
    """Whether code from the model's repository may run."""
    max_length_tokens: Annotated[int, Field(ge=1, le=16_777_216)] | None = None
    """Longest prompt and answer together, in tokens. Absent: what the model allows."""
    dtype: Annotated[str, StringConstraints(min_length=1, max_length=32, pattern=r"^[a-z0-9]+$")] = "auto"
    """Data type of weights and activations, as vLLM names it."""


# --------------------------------------------------------------------- engine
class Parallelism(Part):
    """How one model is spread over GPUs."""

    tensor: Annotated[int, Field(ge=1, le=64)] = 1
    """Tensor parallel size: GPUs of one pod."""


class Swap(Part):
    """A pool in CPU memory for the KV cache of streams that have given way."""

    cpu: Quantity
    """Its size per pod, over all ranks."""


class Engine(Part):
    """The serving engine, vLLM."""

    device: Literal["CUDA", "CPU"] = "CUDA"
    """What computes."""
    image: Annotated[str, StringConstraints(max_length=512)] = ""
    """Image of the pods. Empty: the operator's default for the device."""
    version_override: Annotated[
        str, StringConstraints(max_length=32, pattern=r"^([0-9]+\.[0-9]+(\.[0-9]+)?([-+.a-z0-9]*))?$")
    ] = ""
    """The vLLM version in the image, where its tag does not tell. Cost profiles belong to a version."""
    parallelism: Parallelism = Field(default=Parallelism())
    """How the model is spread over GPUs."""
    max_batched_tokens: Annotated[int, Field(ge=64, le=1_048_576)] = 8192
    """Tokens in one step, at most."""
    max_sequences: Annotated[int, Field(ge=2, le=16_384)] = 256
    """Requests in one step, at most."""
    gpu_memory_utilization_percent: Annotated[int, Field(ge=1, le=99)] = 90
    """Share of the GPU's memory that the engine takes, in percent. Without effect on CPU."""
    swap: Swap | None = None
    """A pool in CPU memory for swapped KV cache. Absent: none."""
    shared_memory: Quantity = "8Gi"
    """Size of /dev/shm."""
    extra_args: Annotated[
        list[Annotated[str, StringConstraints(min_length=1, max_length=1024)]], Field(max_length=64)
    ] = Field(default=[])
    """Further arguments of vLLM. One that a typed field owns is refused. The profiling Job gets the same."""


class Gpu(Part):
    """Which GPUs the pods run on."""

    product: Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=LABEL_VALUE)] | None = None
    """Value of the node label `nvidia.com/gpu.product`. Absent: found once from the nodes, then kept in the status."""
    resource_name: Annotated[
        str,
        StringConstraints(min_length=3, max_length=253, pattern=r"^[a-z0-9][-a-z0-9.]*/[A-Za-z0-9][-A-Za-z0-9_.]*$"),
    ] = "nvidia.com/gpu"
    """Extended resource that a GPU is requested by."""


class Scheduling(Part):
    """Who runs first, and what gives way."""

    policy: Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=DNS_LABEL)] = "srpf"
    """Scheduling policy. An unknown one is reported as UnknownPolicy."""
    preemption: Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=DNS_LABEL)] = "cost"
    """What happens to the KV cache of a stream that gives way: `cost`, `recompute` or `swap`."""
    max_wait_seconds: Annotated[int, Field(ge=1, le=DAY_S)] = 60
    """Ageing bound: how long a policy may pass over a stream."""


# --------------------------------------------------------------- cost profile
class ProfilingRerun(Part):
    """Asks for one more measurement."""

    id: RunId = ""
    """A new id measures anew, though a valid profile exists."""


class ProfilingJob(Part):
    """The Job that measures."""

    timeout_seconds: Annotated[int, Field(ge=60, le=DAY_S)] = 1800
    """Deadline of the measuring pod, from its start, loading the model included."""
    max_length_tokens: Annotated[int, Field(ge=64, le=16_777_216)] | None = None
    """Longest prompt measured. Absent: the model's length."""
    template: Template = Field(default={})
    """Pod template, merged over what follows from the serving pods; the container is `profile`."""


class Measure(Part):
    """Measure on the GPUs that will serve, once per GPU product, model and engine configuration in a namespace."""

    max_age_seconds: Annotated[int, Field(ge=3600, le=3650 * DAY_S)] | None = None
    """A profile older than this is measured anew, while the old one serves. Absent: never."""
    while_missing: Literal["Wait", "Estimate"] = "Estimate"
    """Until a profile exists: wait with starting pods, or start them on an estimate."""
    rerun: ProfilingRerun = Field(default=ProfilingRerun())
    """Asks for one more measurement."""
    job: ProfilingJob = Field(default=ProfilingJob())
    """The Job that measures."""


class Bundled(Part):
    """The profile that ships with the operator for this GPU, model and engine."""


class CostProfileSource(Part):
    """Where the cost profile comes from; exactly one."""

    measure: Measure | None = None
    """Measure it in the cluster."""
    bundled: Bundled | None = None
    """Take the one that ships with the operator."""
    config_map_ref: ConfigKey | None = None
    """Take it from a ConfigMap."""

    model_config = ConfigDict(json_schema_extra=rules(exactly_one("measure", "bundled", "configMapRef")))


# -------------------------------------------------------------------- streams
class RedisAuth(Part):
    """How to log in to Redis."""

    secret_ref: SecretKey
    """The password."""


class RedisTLS(Part):
    """Certificates for `rediss://`."""

    ca_ref: ConfigKey | None = None
    """Authorities in PEM that may have signed the server's certificate. Absent: the image's."""
    client_cert_secret_ref: ObjectReference | None = None
    """Secret of type kubernetes.io/tls with our own certificate, where Redis asks for one."""


class Redis(Part):
    """The Redis or Valkey server that carries the streams. Cannot be changed: streams would be left behind."""

    url: Annotated[
        str, StringConstraints(min_length=9, max_length=512, pattern=r"^rediss?(\+sentinel|\+cluster)?://[^\s?#]+$")
    ]
    """`redis://host:port/db`, `redis+sentinel://host:port,host:port/master` or `redis+cluster://host:port,host:port`;
    `rediss…` with TLS. Never with a password."""
    auth: RedisAuth | None = None
    """How to log in. Absent: without a password."""
    tls: RedisTLS | None = None
    """Certificates, where those of the system do not do."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ("!self.url.matches('://[^/]*:[^/]*@')", "url must hold no password: use auth.secretRef"),
            ("!has(self.tls) || self.url.startsWith('rediss')", "tls needs a url that begins with rediss"),
            ("self == oldSelf", "redis cannot be changed; create a new resource"),
        )
    )


class Tenant(Part):
    """One tenant: its own ingress key, and its share."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=DNS_LABEL)]
    """Last part of the ingress key."""
    weight: Annotated[int, Field(ge=1, le=1000)] = 1
    """Share, relative to the other tenants."""
    max_open_streams: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Streams open at a time, over all pods. Absent: bounded by the pods alone."""


class Streams(Part):
    """How prompts arrive."""

    pool_name: Annotated[
        str,
        StringConstraints(
            max_length=253,
            pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/[a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$",
        ),
    ] = ""
    """Pool in the Redis keys, `<namespace>/<name>`. Empty: the resource's own. Cannot be changed."""
    redis: Redis
    """The server that carries the streams. Cannot be changed."""
    idle_timeout_seconds: Annotated[int, Field(ge=1, le=DAY_S)] = 120
    """A stream that nobody touches for this long ends, where its open says nothing else."""
    max_open_streams: Annotated[int, Field(ge=1, le=16_383)] = 128
    """Streams open in one pod at a time; must be below engine.maxSequences."""
    max_chunk: Quantity = "1Mi"
    """Longest chunk or context item that routers take, in bytes; at most 1Mi."""
    tenants: Annotated[list[Tenant], Field(min_length=1, max_length=256, json_schema_extra={"x-map-key": "name"})] = (
        Field(default=[Tenant(name="default")])
    )
    """Tenants that routers serve. Changes need no restart."""

    model_config = ConfigDict(
        json_schema_extra=rules(("self.poolName == oldSelf.poolName", "poolName cannot be changed"))
    )


# --------------------------------------------------------------------- router
class RouterService(Part):
    """The Service in front of the routers."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    """The Service's type."""
    annotations: Annotations = Field(default={})
    """The Service's annotations."""


class RouterAuth(Part):
    """Who may use the routers' HTTP interface, besides those whose token `stream2llm tenant token` put into Redis."""

    tokens_secret_ref: SecretKey
    """Digests of tokens: lines TENANT:SHA256."""


class Router(Part):
    """The routers in front of the pods."""

    replicas: Annotated[int, Field(ge=1, le=32)] = 2
    """Routers. One is at work for a tenant at a time; the others take over."""
    resources: Template = Field(default={})
    """Resources of the router's container."""
    template: Template = Field(default={})
    """Pod template, merged over the operator's; the container is `router`."""
    service: RouterService = Field(default=RouterService())
    """The Service in front of the routers."""
    auth: RouterAuth | None = None
    """Further tokens for the HTTP interface, besides those in Redis (`stream2llm tenant token`)."""


# ---------------------------------------------------------------- autoscaling
class Targets(Part):
    """When pods are added."""

    prefill_backlog_seconds: Annotated[int, Field(ge=1, le=3600)] = 5
    """Prefill that waits, in seconds of work for one pod."""
    kv_cache_usage_percent: Annotated[int, Field(ge=1, le=100)] = 80
    """KV cache in use, in percent."""
    preemption_waste_percent: Annotated[int, Field(ge=1, le=100)] = 2
    """Time spent on preemptions, in percent."""


class AuthenticationReference(Part):
    """A KEDA authentication."""

    name: ObjectName
    """Its name."""
    kind: Literal["TriggerAuthentication", "ClusterTriggerAuthentication"] = "TriggerAuthentication"
    """Its kind."""


class Prometheus(Part):
    """Where metrics are read."""

    server_address: Annotated[str, StringConstraints(min_length=8, max_length=512, pattern=r"^https?://\S+$")]
    """Address of Prometheus."""
    authentication_ref: AuthenticationReference | None = None
    """How KEDA logs in there."""


class Keda(Part):
    """Scale through KEDA."""

    cooldown_seconds: Annotated[int, Field(ge=0, le=DAY_S)] = 300
    """Idle time before scaling to zero."""


class Hpa(Part):
    """Scale through a HorizontalPodAutoscaler on external metrics."""

    metric_prefix: Annotated[str, StringConstraints(max_length=128, pattern=r"^[a-zA-Z0-9_:.-]*$")] = ""
    """Put before the metrics' names."""


class Autoscaling(Part):
    """Who changes `replicas`."""

    min_replicas: Annotated[int, Field(ge=0, le=10_000)] = 1
    """Pods at least; 0 with KEDA only."""
    max_replicas: Annotated[int, Field(ge=1, le=10_000)]
    """Pods at most."""
    mode: Literal["Active", "Preview"] = "Active"
    """Scale, or only say in the status what would be done."""
    targets: Targets = Field(default=Targets())
    """When pods are added."""
    prometheus: Prometheus | None = None
    """Where metrics are read."""
    behavior: Template = Field(default={})
    """`behavior` of autoscaling/v2."""
    keda: Keda | None = None
    """Through KEDA."""
    hpa: Hpa | None = None
    """Through a HorizontalPodAutoscaler."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ("self.minReplicas <= self.maxReplicas", "minReplicas must not be above maxReplicas"),
            ("!(has(self.keda) && has(self.hpa))", "at most one of keda, hpa may be set"),
            ("self.minReplicas > 0 || !has(self.hpa)", "minReplicas 0 needs KEDA"),
        )
    )


# ------------------------------------------------------------------ lifecycle
class Rollout(Part):
    """How pods are replaced. The defaults need no spare GPUs."""

    max_surge: Annotated[int, Field(ge=0, le=1000)] = 0
    """Pods above `replicas` meanwhile."""
    max_unavailable: Annotated[int, Field(ge=0, le=1000)] = 1
    """Pods missing meanwhile."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ("self.maxSurge > 0 || self.maxUnavailable > 0", "maxSurge and maxUnavailable must not both be 0")
        )
    )


class Startup(Part):
    """Loading the model."""

    timeout_seconds: Annotated[int, Field(ge=30, le=DAY_S)] = 1800
    """A pod that is not ready by then is restarted."""


class Drain(Part):
    """Ending a pod."""

    timeout_seconds: Annotated[int, Field(ge=1, le=DAY_S)] = 300
    """How long open streams may take before the pod is killed."""


class Restart(Part):
    """Replaces all pods."""

    id: RunId = ""
    """A new id rolls the pods."""


class Spec(Part):
    """What is wanted."""

    model: Model
    """The model that the pods serve."""
    engine: Engine = Field(default=Engine())
    """The serving engine."""
    gpu: Gpu | None = None
    """Which GPUs the pods run on; only with device CUDA."""
    scheduling: Scheduling = Field(default=Scheduling())
    """Who runs first, and what gives way."""
    cost_profile: CostProfileSource = Field(default=CostProfileSource(measure=Measure()))
    """Where the cost profile comes from."""
    streams: Streams
    """How prompts arrive."""
    router: Router = Field(default=Router())
    """The routers in front of the pods."""
    replicas: Annotated[int, Field(ge=0, le=10_000)] = 1
    """Pods. With autoscaling, the autoscaler writes it."""
    autoscaling: Autoscaling | None = None
    """Who changes `replicas`. Absent: people."""
    rollout: Rollout = Field(default=Rollout())
    """How pods are replaced."""
    startup: Startup = Field(default=Startup())
    """Loading the model."""
    drain: Drain = Field(default=Drain())
    """Ending a pod."""
    restart: Restart = Field(default=Restart())
    """Replaces all pods."""
    template: Template = Field(default={})
    """Pod template, merged over the operator's; the container is `engine`. Checked by a dry run of the Deployment."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "self.streams.maxOpenStreams < self.engine.maxSequences",
                "streams.maxOpenStreams must be below engine.maxSequences",
            ),
            ("self.engine.device == 'CUDA' || !has(self.gpu)", "gpu needs engine.device CUDA"),
            (
                "self.engine.device == 'CUDA' || self.engine.parallelism.tensor == 1",
                "engine.parallelism.tensor above 1 needs engine.device CUDA",
            ),
        )
    )
