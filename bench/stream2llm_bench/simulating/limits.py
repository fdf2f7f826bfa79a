"""What a simulated engine can hold, told before a run that would never end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stream2llm_bench.simulating.hardware import LONGEST_TOKENS
from stream2llm_bench.workloads.streams import Stream

if TYPE_CHECKING:
    from stream2llm_bench.simulating.engine import Setting

MOST_KV_TOKENS = 4_000_000


def check_memory(streams: Sequence[Stream], setting: Setting, block_size: int, *, spare_blocks: int = 0) -> None:
    """Raises ValueError if KV memory is out of range, or too small for the longest prompt and `spare_blocks`."""
    if not block_size <= setting.memory_tokens <= MOST_KV_TOKENS:
        raise ValueError(f"KV memory must be from {block_size} to {MOST_KV_TOKENS} tokens, not {setting.memory_tokens}")
    holds_tokens = max((setting.memory_tokens // block_size - spare_blocks) * block_size, 0)
    most_tokens = min(holds_tokens, LONGEST_TOKENS)
    longest_tokens = max(_longest_prompt_tokens(stream) for stream in streams)
    if longest_tokens >= most_tokens:
        raise ValueError(
            f"the longest prompt has {longest_tokens} tokens, and KV memory or the model hold {most_tokens}"
        )


def _longest_prompt_tokens(stream: Stream) -> int:
    """Tokens of the longest prompt that a stream ever has."""
    longest = known = 0
    for message in stream.messages:
        known = message.tokens if message.replaces else known + message.tokens
        longest = max(longest, known)
    return longest
