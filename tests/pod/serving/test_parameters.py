"""Sampling parameters mean what they mean in stock vLLM, or are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm")

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.sampling_params import RequestOutputKind

from stream2llm.errors import ErrorCode
from stream2llm_pod.serving.parameters import Limits, ParametersError, parse_parameters

pytestmark = pytest.mark.simulated
LIMITS = Limits(max_model_len=100, default_sampling={"temperature": 0.6, "top_k": 20})
MESSAGES = [{"role": "user", "content": "{context}"}]
SAMPLING: list[dict[str, Any]] = [
    {},
    {"temperature": 0, "max_tokens": 7, "seed": 3},
    {"top_p": 0.5, "top_k": 3, "min_p": 0.1, "stop": ["x", "y"], "stop_token_ids": [4]},
    {"presence_penalty": 0.5, "frequency_penalty": 0.25, "repetition_penalty": 1.1, "min_tokens": 2},
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}},
    {"logit_bias": {"5": 2.0}, "bad_words": ["no"], "ignore_eos": True, "include_stop_str_in_output": True},
]


@pytest.mark.parametrize("params", SAMPLING)
def test_chat_as_stock(params: dict[str, Any]) -> None:
    ours = parse_parameters(params, LIMITS, messages=MESSAGES).sampling
    request = ChatCompletionRequest(messages=MESSAGES, stream=True, **params)
    stock = request.to_sampling_params(params.get("max_tokens", 99), LIMITS.default_sampling)
    stock.skip_clone = False
    assert repr(ours) == repr(stock)
    assert ours.output_kind is RequestOutputKind.DELTA
    assert ours.temperature == params.get("temperature", 0.6)


@pytest.mark.parametrize("params", SAMPLING)
def test_completion_as_stock(params: dict[str, Any]) -> None:
    ours = parse_parameters(params, LIMITS, messages=None).sampling
    request = CompletionRequest(prompt="?", stream=True, **params)
    stock = request.to_sampling_params(params.get("max_tokens", 16), LIMITS.default_sampling)
    stock.skip_clone = False
    assert repr(ours) == repr(stock)


def test_chat_without_max_tokens_may_fill_the_model() -> None:
    assert parse_parameters({}, LIMITS, messages=MESSAGES).sampling.max_tokens == 99
    limited = Limits(100, {"max_tokens": 30}, None)
    assert parse_parameters({}, limited, messages=MESSAGES).sampling.max_tokens == 30
    assert parse_parameters({"max_completion_tokens": 5}, LIMITS, messages=MESSAGES).sampling.max_tokens == 5
    assert parse_parameters({"max_tokens": 50}, Limits(100, {}, 40), messages=MESSAGES).sampling.max_tokens == 40


@pytest.mark.parametrize(
    "params",
    [{"n": 1}, {"stream": True}, {"logprobs": None}, {"logprobs": False}, {"tool_choice": "none"}, {"echo": False}],
)
def test_what_a_stream_gives_anyway_may_be_asked_for(params: dict[str, Any]) -> None:
    parse_parameters(params, LIMITS, messages=MESSAGES)


@pytest.mark.parametrize(
    ("params", "code", "field"),
    [
        ({"n": 2}, ErrorCode.UNSUPPORTED_PARAMS, "params.n"),
        ({"n": True}, ErrorCode.UNSUPPORTED_PARAMS, "params.n"),
        ({"best_of": 3}, ErrorCode.UNSUPPORTED_PARAMS, "params.best_of"),
        ({"echo": True}, ErrorCode.UNSUPPORTED_PARAMS, "params.echo"),
        ({"logprobs": True}, ErrorCode.UNSUPPORTED_PARAMS, "params.logprobs"),
        ({"prompt_logprobs": 0}, ErrorCode.UNSUPPORTED_PARAMS, "params.prompt_logprobs"),
        ({"tools": []}, ErrorCode.UNSUPPORTED_PARAMS, "params.tools"),
        ({"use_beam_search": True}, ErrorCode.UNSUPPORTED_PARAMS, "params.use_beam_search"),
        ({"logits_processors": ["x"]}, ErrorCode.UNSUPPORTED_PARAMS, "params.logits_processors"),
        ({"vllm_xargs": {"stream2llm": "open"}}, ErrorCode.UNSUPPORTED_PARAMS, "params.vllm_xargs"),
        ({"cache_salt": "mine"}, ErrorCode.UNSUPPORTED_PARAMS, "params.cache_salt"),
        ({"truncate_prompt_tokens": 5}, ErrorCode.UNSUPPORTED_PARAMS, "params.truncate_prompt_tokens"),
        ({"messages": []}, ErrorCode.INVALID_PARAMS, "params.messages"),
        ({"wisdom": 1}, ErrorCode.INVALID_PARAMS, "params.wisdom"),
        ({"temperature": -0.1}, ErrorCode.INVALID_PARAMS, "params.temperature"),
        ({"temperature": "hot"}, ErrorCode.INVALID_PARAMS, "params.temperature"),
        ({"top_p": 1.5}, ErrorCode.INVALID_PARAMS, "params.top_p"),
        ({"top_k": 0.5}, ErrorCode.INVALID_PARAMS, "params.top_k"),
        ({"max_tokens": 0}, ErrorCode.INVALID_PARAMS, "params.max_tokens"),
        ({"max_tokens": 101}, ErrorCode.INVALID_PARAMS, "params.max_tokens"),
        ({"min_tokens": 9, "max_tokens": 8}, ErrorCode.INVALID_PARAMS, "params.min_tokens"),
        ({"seed": 2**70}, ErrorCode.INVALID_PARAMS, "params.seed"),
        ({"stop": 5}, ErrorCode.INVALID_PARAMS, "params.stop"),
        ({"logit_bias": {"x": 1}}, ErrorCode.INVALID_PARAMS, "params.logit_bias"),
        ({"response_format": {"type": "poem"}}, ErrorCode.INVALID_PARAMS, "params.response_format"),
        ({"response_format": {"type": "json_schema"}}, ErrorCode.INVALID_PARAMS, "params.response_format"),
    ],
)
@pytest.mark.parametrize("chat", [True, False])
def test_refused_by_name(params: dict[str, Any], code: ErrorCode, field: str, chat: bool) -> None:
    with pytest.raises(ParametersError) as caught:
        parse_parameters(params, LIMITS, messages=MESSAGES if chat else None)
    assert (caught.value.code, caught.value.field) == (code, field), caught.value.message


def test_chat_only_names_are_not_for_prompts() -> None:
    with pytest.raises(ParametersError) as caught:
        parse_parameters({"chat_template_kwargs": {}}, LIMITS, messages=None)
    assert caught.value.code is ErrorCode.UNSUPPORTED_PARAMS
