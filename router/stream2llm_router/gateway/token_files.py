"""A file of token digests, as a Kubernetes secret is mounted: read again when it changes."""

from __future__ import annotations

import logging
from pathlib import Path

from stream2llm.tokens import parse_tokens_file

logger = logging.getLogger(__name__)


class TokensFile:
    """Call it for the tenants by digest. A file that has become unreadable leaves the last good content in force."""

    def __init__(self, path: str) -> None:
        """Raises OSError or ValueError if the file cannot be used."""
        self._path = Path(path)
        self._stamp = self._now()
        self._tenants = self._read()

    def __call__(self) -> dict[str, str]:
        try:
            stamp = self._now()
            if stamp != self._stamp:
                self._tenants, self._stamp = self._read(), stamp
        except (OSError, ValueError) as error:
            logger.error("the tokens file stays as it was: %s", error)
        return self._tenants

    def _now(self) -> tuple[int, int, int]:
        status = self._path.stat()
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _read(self) -> dict[str, str]:
        try:
            return parse_tokens_file(self._path.read_text(encoding="utf-8").splitlines())
        except ValueError as error:
            raise ValueError(f"{self._path}: {error}") from error
