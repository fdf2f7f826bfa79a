"""Resources that tests of manifests share: the shortest, one with every field set, and one on CPU."""

from __future__ import annotations

from typing import Any

from stream2llm_operator.api.spec import Spec
from stream2llm_operator.pool import OperatorSettings, Pool

MINIMAL: dict[str, Any] = {
    "model": {"name": "llama", "source": {"huggingFace": {"repo": "meta-llama/Llama-3.1-8B-Instruct"}}},
    "streams": {"redis": {"url": "redis://valkey:6379"}},
}
"""The shortest spec that is valid."""

FULL: dict[str, Any] = {
    "model": {
        "name": "llama",
        "source": {
            "huggingFace": {
                "repo": "meta-llama/Llama-3.1-8B-Instruct",
                "revision": "0e9e39f",
                "tokenSecretRef": {"name": "hub", "key": "token"},
            }
        },
        "cache": {"pvc": {"claimName": "weights"}},
        "remoteCode": "Always",
        "maxLengthTokens": 32768,
        "dtype": "bfloat16",
    },
    "engine": {
        "image": "registry.example/vllm:v0.33.0",
        "parallelism": {"tensor": 2},
        "maxBatchedTokens": 16384,
        "maxSequences": 512,
        "gpuMemoryUtilizationPercent": 85,
        "swap": {"cpu": "64Gi"},
        "sharedMemory": "16Gi",
        "extraArgs": ["--kv-cache-dtype=fp8", "--seed", "1"],
    },
    "gpu": {"product": "NVIDIA-H200"},
    "scheduling": {"policy": "lcas", "preemption": "cost", "maxWaitSeconds": 30},
    "costProfile": {
        "measure": {
            "maxAgeSeconds": 86400,
            "whileMissing": "Wait",
            "rerun": {"id": "second"},
            "job": {
                "timeoutSeconds": 900,
                "maxLengthTokens": 16384,
                "template": {"spec": {"priorityClassName": "low"}},
            },
        }
    },
    "streams": {
        "poolName": "team/llama",
        "redis": {
            "url": "rediss://valkey:6380/0",
            "auth": {"secretRef": {"name": "redis", "key": "password"}},
            "tls": {
                "caRef": {"name": "redis-ca", "key": "bundle.pem"},
                "clientCertSecretRef": {"name": "redis-client"},
            },
        },
        "idleTimeoutSeconds": 60,
        "maxOpenStreams": 256,
        "maxChunk": "512Ki",
        "tenants": [{"name": "search", "weight": 3, "maxOpenStreams": 200}, {"name": "news"}],
    },
    "router": {
        "replicas": 3,
        "resources": {"limits": {"memory": "1Gi"}},
        "template": {"metadata": {"annotations": {"team": "search"}}},
        "auth": {"tokensSecretRef": {"name": "tokens", "key": "digests"}},
        "service": {"type": "LoadBalancer", "annotations": {"example.com/internal": "true"}},
    },
    "replicas": 4,
    "rollout": {"maxSurge": 1, "maxUnavailable": 0},
    "startup": {"timeoutSeconds": 605},
    "drain": {"timeoutSeconds": 120},
    "restart": {"id": "monday"},
    "template": {
        "metadata": {"labels": {"team": "search", "stream2llm.io/pods": "stolen"}},
        "spec": {
            "nodeSelector": {"zone": "a"},
            "tolerations": [{"key": "gpu-pool", "operator": "Exists"}],
            "runtimeClassName": "nvidia",
            "containers": [
                {
                    "name": "engine",
                    "env": [{"name": "HF_HUB_OFFLINE", "value": "1"}],
                    "resources": {"limits": {"memory": "96Gi"}, "requests": {"cpu": "8"}},
                },
                {"name": "logs", "image": "registry.example/logs:1"},
            ],
        },
    },
}
"""Every field that has an effect, set to something else than its default."""

CPU: dict[str, Any] = {
    "model": {
        "name": "tiny",
        "source": {"pvc": {"claimName": "weights", "path": "models/tiny"}},
        "dtype": "float32",
    },
    "engine": {"device": "CPU", "maxBatchedTokens": 512, "maxSequences": 16, "sharedMemory": "1Gi"},
    "scheduling": {"preemption": "recompute"},
    "streams": {"redis": {"url": "redis://valkey:6379"}, "maxOpenStreams": 8},
    "router": {"replicas": 1},
    "template": {
        "spec": {
            "containers": [
                {
                    "name": "engine",
                    "env": [{"name": "VLLM_CPU_KVCACHE_SPACE", "value": "1"}],
                    "resources": {"limits": {"memory": "6Gi"}},
                }
            ]
        }
    },
}

SETTINGS = OperatorSettings(
    image_cuda="registry.example/stream2llm-pod:0.1.0",
    image_cpu="registry.example/stream2llm-pod:0.1.0-cpu",
    image_router="registry.example/stream2llm-router:0.1.0",
    image_pull_secrets=("registry",),
    engine_version="0.32.0",
    monitoring_namespace_labels={"kubernetes.io/metadata.name": "monitoring"},
)


def pool(spec: dict[str, Any], name: str = "llama", uid: str = "11111111-2222-3333-4444-555555555555") -> Pool:
    return Pool("search", name, uid, 1, Spec.model_validate(spec))
