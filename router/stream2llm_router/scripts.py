"""The router's server-side scripts, loaded once and called by digest."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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

    def begin(self, name: str, keys: list[str], arguments: list[Any]) -> Callable[[], Any]:
        """Have the server run a script while the caller does something else; the function returned waits for it.

        It must be called, once. Both may raise as `call` does.
        """
        if name not in self._digests:
            return partial(self.call, name, keys, arguments)
        pool = self._client.connection_pool
        connection: Any = pool.get_connection()
        try:
            connection.send_command("EVALSHA", self._digests[name], len(keys), *keys, *arguments)
        except BaseException:
            connection.disconnect()
            pool.release(connection)
            raise
        return partial(self._finish, connection, name, keys, arguments)

    def _finish(self, connection: Any, name: str, keys: list[str], arguments: list[Any]) -> Any:
        def read() -> Any:
            try:
                return connection.read_response()
            except ResponseError:
                raise
            except BaseException:
                # The answer may still come, and would be taken for that to the next command.
                connection.disconnect()
                raise

        try:
            return self._outcome(read)
        except NoScriptError:
            self._digests.pop(name, None)
        finally:
            self._client.connection_pool.release(connection)
        return self.call(name, keys, arguments)

    def _evaluate(self, name: str, keys: list[str], arguments: list[Any]) -> Any:
        if name not in self._digests:
            self._digests[name] = str(self._client.script_load(self._sources[name]))
        return self._outcome(partial(self._client.evalsha, self._digests[name], len(keys), *keys, *arguments))

    def _outcome(self, ask: Callable[[], Any]) -> Any:
        """The answer, with a refusal of the scripts as its exception."""
        try:
            return ask()
        except NoScriptError:
            raise
        except ResponseError as error:
            outcome = _OUTCOMES.get(str(error).split(" ")[0])
            if outcome is None:
                raise
            raise outcome(str(error)) from None
