"""Ingress entries as no client of ours would write them."""

from __future__ import annotations

import random

from stream2llm.entries import KNOWN_FIELDS

JSON_VALUES = ("", "{}", "[]", "null", "1e999", "-1", "99999999999999999999", '{"max_tokens":', '{"a":{"a":{"a":1}}}')
MORE_VALUES = ('[{"id":"x"}]', '[{"role":"user","content":"{context}"}]', "{context}", '{"separator":7}', "NaN", "s:1")
OPS = (b"open", b"append", b"update", b"finish", b"cancel")
VALUES = (
    *(text.encode() for text in (*JSON_VALUES, *MORE_VALUES)),
    *OPS,
    b"\xff\xfe\x00",
    b"x" * 5_000,
    b"[" * 500,
    b'"\\ud800"',
)


def rubbish(chance: random.Random) -> dict[bytes, bytes]:
    """Known and unknown fields with values that are right elsewhere, at times with many of them."""
    names = [name.encode() for name in sorted(KNOWN_FIELDS)] + [b"", b"\xff", b"seq", b"attempt", b"tenant"]
    fields = {
        chance.choice(names): chance.choice(VALUES)
        if chance.random() < 0.8
        else chance.randbytes(chance.randint(0, 40))
        for _ in range(chance.randint(1, 6))
    }
    if chance.random() < 0.7:
        fields[b"stream"] = chance.choice((b"fuzz-1", b"fuzz-2", b"fuzz-3", b"neighbour-0"))
    if chance.random() < 0.7:
        fields[b"op"] = chance.choice(OPS)
    if fields.get(b"stream") == b"neighbour-0" and fields.get(b"op") != b"open":
        # These might be valid, and would then be the neighbour's own.
        fields[b"op"] = b"open"
    if chance.random() < 0.01:
        fields |= {f"field{i}".encode(): b"" for i in range(9_000)}
    return fields
