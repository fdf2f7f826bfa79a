"""The engine's tokenizer and chat template, as the assembly of prompts needs them."""

from __future__ import annotations

import copy
import json
import secrets
from typing import Any, cast

from stream2llm_pod.serving.assembling import Span, Template

# A character that no template escapes, trims or matches, on both sides of letters drawn afresh for each prompt.
_PRIVATE_USE = "\ue000"


class TokenizerEncoder:
    """A Hugging Face tokenizer as an `Encoder`.

    It works on a copy: a fast tokenizer refuses calls from two threads while one of them changes its truncation.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = copy.deepcopy(tokenizer)
        self._is_fast = bool(getattr(tokenizer, "is_fast", False))
        self._leading = self._find_leading()

    def encode(self, text: str, *, special: bool) -> list[int]:
        if not self._is_fast:
            return list(self._tokenizer.encode(text, add_special_tokens=special))
        return list(self._tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])

    def encode_with_spans(self, text: str) -> tuple[list[int], list[Span]] | None:
        if not self._is_fast:
            return None
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return list(encoded["input_ids"]), list(encoded["offset_mapping"])

    def leading(self) -> list[int]:
        return list(self._leading)

    def _find_leading(self) -> list[int]:
        plain, special = self.encode("a", special=False), self.encode("a", special=True)
        for start in range(len(special) - len(plain) + 1):
            if special[start : start + len(plain)] == plain:
                return special[:start]
        return []


class ChatTemplates:
    """Renders chat messages as stock vLLM's chat completions do.

    `renderer` is the engine's; the other arguments are the server's settings of the same names.
    """

    def __init__(
        self,
        renderer: Any,
        *,
        chat_template: str | None,
        content_format: str,
        template_kwargs: dict[str, Any] | None,
    ) -> None:
        self._renderer = renderer
        self._chat_template = chat_template
        self._content_format = content_format
        self._template_kwargs = {**(template_kwargs or {}), "tools": None, "tokenize": False}

    def template(self, request: Any, messages: list[Any], marker: str, *, special: bool) -> Template:
        """A `Template` of `messages`, whose marker says where the context goes.

        `request` is the ChatCompletionRequest that carries the template's parameters. Raises ValueError where the
        chat template refuses the messages or does not show the place of the context.
        """
        params = request.build_chat_params(self._chat_template, self._content_format).with_defaults(
            self._template_kwargs
        )

        def whole(context: str) -> str:
            _, prompt = self._renderer.render_messages(_fill(messages, marker, context), params)
            text = prompt.get("prompt")
            if not isinstance(text, str):
                raise ValueError("this model's chat template yields token ids, not text, so it cannot be streamed into")
            return text

        gap = f"{_PRIVATE_USE}{secrets.token_hex(8)}{_PRIVATE_USE}"
        prefix, found, suffix = whole(gap).partition(gap)
        if not found:
            raise ValueError("the chat template leaves out the message that holds the marker")
        return Template(prefix, suffix, whole, special)


def _fill(messages: list[Any], marker: str, context: str) -> list[Any]:
    """A deep copy of `messages` with `context` in the marker's place."""

    def fill(value: Any) -> Any:
        if isinstance(value, str):
            return value.replace(marker, context)
        if isinstance(value, list):
            return [fill(item) for item in value]
        if isinstance(value, dict):
            return {key: fill(item) for key, item in value.items()}
        return value

    return cast(list[Any], fill(messages))


def text_only(messages: list[Any]) -> bool:
    """Whether `messages` hold text alone: images, audio and the like cannot be streamed into."""
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list) and any(
            isinstance(part, dict) and part.get("type", "text") != "text" for part in content
        ):
            return False
    return True


def canonical(value: Any) -> str:
    """JSON with sorted keys and nothing to choose, for digests."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
