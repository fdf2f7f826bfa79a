"""HTTP bearer tokens: made once, shown once, kept as a digest. No I/O.

A token has 256 random bits, so a plain SHA-256 hides it; salts and slow digests are for what people make up.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass

from stream2llm.keys import check_tenant

PREFIX = "s2l_"
DIGEST_CHARS = 64


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """What is stored of a token. created_ms: Unix time."""

    digest: str
    tenant: str
    created_ms: int = 0

    @property
    def name(self) -> str:
        """The start of the digest, by which people tell tokens apart."""
        return self.digest[:12]

    def value(self) -> str:
        """The JSON beside the digest."""
        return json.dumps({"tenant": self.tenant, "created_ms": self.created_ms}, separators=(",", ":"))

    def line(self) -> str:
        """A line of a tokens file."""
        return f"{self.tenant}:{self.digest}"


def new_token() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def token_digest(token: str) -> str:
    """SHA-256, in hex."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def record_of(token: str, tenant: str, *, now_ms: int | None = None) -> TokenRecord:
    """What to store of a token. Raises ValueError for a tenant that is no name."""
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    return TokenRecord(token_digest(token), check_tenant(tenant), now_ms)


def parse_record(digest: str, value: bytes) -> TokenRecord:
    """The record stored under a digest. Raises ValueError if it is none."""
    try:
        data = json.loads(value)
        return TokenRecord(digest, check_tenant(data["tenant"]), int(data.get("created_ms") or 0))
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the record of token {digest[:12]} cannot be read: {error}") from error


def parse_tokens_file(lines: Iterable[str]) -> dict[str, str]:
    """Tenants by digest, from lines `TENANT:SHA256`; blank lines and `#` comments are skipped.

    Raises ValueError with the number of a line that is neither.
    """
    tenants: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        tenant, _, digest = text.partition(":")
        if len(digest) != DIGEST_CHARS or not set(digest) <= set("0123456789abcdef"):
            raise ValueError(f"line {number} is not TENANT:SHA256, the digest in 64 lower-case hex digits")
        tenants[digest] = check_tenant(tenant)
    return tenants
