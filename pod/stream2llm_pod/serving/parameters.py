"""Sampling parameters of an open: OpenAI names and JSON in, vLLM's `SamplingParams` out.

Names, defaults and limits are stock vLLM's own: its request models parse and check them, so that a stream and the
same request over HTTP mean the same. What a stream cannot honour is refused by name, never ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import RequestOutputKind, SamplingParams

from stream2llm.errors import ErrorCode

# What a stream takes from both request models. Everything else is either unknown or cannot be honoured.
SAMPLING_NAMES = frozenset(
    {
        "model",
        "max_tokens",
        "min_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "stop",
        "stop_token_ids",
        "include_stop_str_in_output",
        "ignore_eos",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "repetition_detection",
        "logit_bias",
        "allowed_token_ids",
        "bad_words",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "response_format",
        "structured_outputs",
        "add_special_tokens",
        "user",
    }
)
CHAT_NAMES = frozenset(
    {
        "max_completion_tokens",
        "add_generation_prompt",
        "continue_final_message",
        "chat_template_kwargs",
        "documents",
        "reasoning_effort",
    }
)
# Names that ask for what a stream gives anyway, with the values that say so.
GIVEN_ANYWAY: dict[str, tuple[Any, ...]] = {
    "n": (1, None),
    "best_of": (1, None),
    "stream": (True, False, None),
    "stream_options": (None,),
    "echo": (False, None),
    "logprobs": (False, None),
    "top_logprobs": (0, None),
    "prompt_logprobs": (None,),
    "use_beam_search": (False, None),
    "tools": (None,),
    "tool_choice": ("none", None),
    "parallel_tool_calls": (True, False, None),
    "suffix": (None,),
    "truncate_prompt_tokens": (None,),
    "return_token_ids": (True, False, None),
}
# Names that vLLM knows or knew and that a stream cannot honour at all.
REFUSED_NAMES = frozenset(
    {
        "logits_processors",
        "functions",
        "function_call",
        "modalities",
        "audio",
        "prediction",
        "chat_template",
        "mm_processor_kwargs",
        "media_io_kwargs",
        "kv_transfer_params",
        "ec_transfer_params",
        "vllm_xargs",
        "prompt_embeds",
        "thinking_token_budget",
        "priority",
        "cache_salt",
        "length_penalty",
        "truncation_side",
    }
)


class ParametersError(ValueError):
    """Parameters that an open cannot have. `code` is `invalid_params`, `unsupported_params` or `unknown_model`."""

    def __init__(self, code: ErrorCode, message: str, field: str | None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field


@dataclass(frozen=True, slots=True)
class Limits:
    """What the served model sets: its length in tokens, and its own sampling defaults."""

    max_model_len: int
    default_sampling: dict[str, Any]
    override_max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Parameters:
    """Checked parameters. `request` is vLLM's request model that they came from, `model` the model asked for."""

    sampling: SamplingParams
    request: ChatCompletionRequest | CompletionRequest
    model: str | None


def parse_parameters(params: dict[str, Any], limits: Limits, *, messages: list[Any] | None) -> Parameters:
    """Check the parameters of an open; `messages` is None for a plain prompt. Raises ParametersError."""
    chosen = _supported(params, chat=messages is not None)
    try:
        request: ChatCompletionRequest | CompletionRequest
        if messages is not None:
            request = ChatCompletionRequest.model_validate({**chosen, "messages": messages, "stream": True})
            # Not by attribute: vLLM warns of every read of the deprecated name.
            asked = request.max_completion_tokens if "max_completion_tokens" in chosen else vars(request)["max_tokens"]
        else:
            request = CompletionRequest.model_validate({**chosen, "prompt": "?", "stream": True})
            asked = request.max_tokens
        if asked is not None and not 1 <= asked <= limits.max_model_len:
            raise ParametersError(
                ErrorCode.INVALID_PARAMS,
                f"max_tokens is {asked}; it must be from 1 to the model's length of {limits.max_model_len}",
                "params.max_tokens",
            )
        sampling = request.to_sampling_params(_max_tokens(asked, limits), limits.default_sampling)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"][:1]) or _named_in(str(first["msg"]), chosen)
        value = f", not {first['input']!r}" if name and isinstance(first["input"], int | float | str) else ""
        code = ErrorCode.MALFORMED if name == "messages" else ErrorCode.INVALID_PARAMS
        field = name if name == "messages" else f"params.{name}" if name else "params"
        raise ParametersError(code, f"{name or 'params'}: {first['msg']}{value}", field) from error
    except VLLMValidationError as error:
        named = error.parameter or _named_in(str(error), chosen)
        raise ParametersError(ErrorCode.INVALID_PARAMS, str(error), f"params.{named}" if named else "params") from error
    except ParametersError:
        raise
    except (ValueError, TypeError) as error:
        name = _named_in(str(error), chosen)
        raise ParametersError(ErrorCode.INVALID_PARAMS, str(error), f"params.{name}" if name else "params") from error
    sampling.output_kind = RequestOutputKind.DELTA
    sampling.skip_clone = False
    return Parameters(sampling, request, request.model)


def _supported(params: dict[str, Any], *, chat: bool) -> dict[str, Any]:
    names = SAMPLING_NAMES | CHAT_NAMES if chat else SAMPLING_NAMES
    chosen: dict[str, Any] = {}
    for name, value in params.items():
        if name in names:
            chosen[name] = value
        elif name in GIVEN_ANYWAY:
            if not any(value == given and type(value) is type(given) for given in GIVEN_ANYWAY[name]):
                allowed = " or ".join(repr(given) for given in GIVEN_ANYWAY[name] if given is not None)
                raise ParametersError(
                    ErrorCode.UNSUPPORTED_PARAMS,
                    f"{name} is {_short(value)}; a stream supports {f'only {allowed}' if allowed else 'it not at all'}",
                    f"params.{name}",
                )
        elif name in REFUSED_NAMES or name in CHAT_NAMES:
            what = "with a plain prompt" if name in CHAT_NAMES else "by streams"
            raise ParametersError(ErrorCode.UNSUPPORTED_PARAMS, f"{name} is not supported {what}", f"params.{name}")
        else:
            raise ParametersError(
                ErrorCode.INVALID_PARAMS, f"{_short(name)} is no sampling parameter", f"params.{name}"
            )
    return chosen


def _max_tokens(asked: int | None, limits: Limits) -> int:
    """As vLLM's `get_max_tokens`, but the prompt's length is not known yet: the engine stops at the model's."""
    default = limits.default_sampling.get("max_tokens") if asked is None else asked
    bounds = (limits.max_model_len - 1, default, limits.override_max_tokens)
    return min(bound for bound in bounds if bound is not None)


def _named_in(message: str, chosen: dict[str, Any]) -> str | None:
    """The parameter that an error message of vLLM is about: the first one it names."""
    named = [(message.find(name), -len(name), name) for name in chosen if name in message]
    return min(named)[2] if named else None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
