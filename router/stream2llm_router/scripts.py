"""The router's server-side scripts, loaded once and called by digest."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import redis
from redis.exceptions import NoScriptError, ResponseError


class Fenced(Exception):
    """Another router holds the lease now."""


class Stale(Exception):
    """What was read is not what is there any more; read again."""


class Ended(Exception):
    """The stream has ended meanwhile."""


class Unfit(Exception):
    """The pod cannot take this stream: it has gone, it is full, its model is another, or it has a suspect already."""


_OUTCOMES: dict[str, type[Exception]] = {
    "FENCED": Fenced,
    "STALE": Stale,
    "ENDED": Ended,
    "GONE": Unfit,
    "FULL": Unfit,
    "OTHER_MODEL": Unfit,
    "SUSPECT": Unfit,
}
_NAMES = ("attend", "lease", "release", "forward", "assign", "end", "fence", "settle")


class Scripts:
    """Calls the scripts by name. Raises Fenced, Stale, Ended or Unfit for their answers."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        folder = files("stream2llm_router") / "scripts"
        self._sources = {name: (folder / f"{name}.lua").read_text() for name in _NAMES}
        self._digests: dict[str, str] = {}

    def call(self, name: str, keys: list[str], arguments: list[Any]) -> Any:
        try:
            return self._evaluate(name, keys, arguments)
        except NoScriptError:
            # Scripts vanish with a restart of the server.
            self._digests.pop(name, None)
            return self._evaluate(name, keys, arguments)

    def _evaluate(self, name: str, keys: list[str], arguments: list[Any]) -> Any:
        if name not in self._digests:
            self._digests[name] = str(self._client.script_load(self._sources[name]))
        try:
            return self._client.evalsha(self._digests[name], len(keys), *keys, *arguments)
        except NoScriptError:
            raise
        except ResponseError as error:
            outcome = _OUTCOMES.get(str(error).split(" ")[0])
            if outcome is None:
                raise
            raise outcome(str(error)) from None
