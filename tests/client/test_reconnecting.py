"""What both clients do when Redis is away, refuses, or has forgotten. A proxy loses answers on purpose."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
import redis

from stream2llm import AsyncClient, Client, Done, NoAnswer, RedisRefused, ReplyGone, Token, Unreachable
from stream2llm.events import Event, encode
from stream2llm.keys import PoolKeys

pytestmark = pytest.mark.redis
KEYS = PoolKeys()
PROMPT = "C: {context}"


class LossyProxy:
    """Passes bytes to a server; while `losing`, an XADD gets through and its answer is lost with the connection."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self.losing = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._server_port)) as server:
            while True:
                try:
                    request = client.recv(1 << 20)
                    if not request:
                        return
                    server.sendall(request)
                    answer = server.recv(1 << 20)
                    if b"XADD" in request and self.losing:
                        self.losing -= 1
                        return
                    client.sendall(answer)
                except OSError:
                    return


@pytest.fixture
def proxy(redis_server: Any) -> Iterator[LossyProxy]:
    with redis_server.client() as client:
        client.flushall()
    lossy = LossyProxy(redis_server.port)
    yield lossy
    lossy.close()


def written(server: Any) -> list[dict[bytes, bytes]]:
    with server.client() as client:
        return [fields for _, fields in client.xrange(KEYS.ingress("default"))]


def say(server: Any, *events: Event) -> None:
    with server.client() as client:
        for event in events:
            client.xadd(KEYS.reply("default", "s"), encode(event))


def awaited(url: str, work: Callable[[AsyncClient], Coroutine[Any, Any, Any]]) -> Any:
    async def main() -> Any:
        async with AsyncClient(url) as client:
            return await work(client)

    return asyncio.run(main())


def test_a_chunk_whose_answer_was_lost_is_sent_again_with_the_same_id(proxy: LossyProxy, redis_server: Any) -> None:
    with Client(proxy.url) as client:
        stream = client.open(prompt=PROMPT, stream="s")
        proxy.losing = 2
        stream.append("one")
        stream.append("two")
    assert proxy.losing == 0
    appended = [(fields[b"text"], fields[b"chunk"]) for fields in written(redis_server)[1:]]
    assert [text for text, _ in appended] == [b"one", b"one", b"one", b"two"]
    assert len({chunk for text, chunk in appended if text == b"one"}) == 1


def test_the_async_client_does_the_same(proxy: LossyProxy, redis_server: Any) -> None:
    async def work(client: AsyncClient) -> None:
        stream = await client.open(prompt=PROMPT, stream="s")
        proxy.losing = 2
        await stream.append("one")
        await stream.update([("a", "b")], version=1)
        await stream.finish("last", chunk="end", expect=2)
        await stream.cancel()

    awaited(proxy.url, work)
    entries = written(redis_server)
    assert [fields[b"op"] for fields in entries] == [b"open", *[b"append"] * 3, b"update", b"finish", b"cancel"]
    assert len({fields[b"chunk"] for fields in entries[1:4]}) == 1
    assert (entries[5][b"chunk"], entries[5][b"expect"]) == (b"end", b"2")


def test_one_try_means_one_entry(proxy: LossyProxy, redis_server: Any) -> None:
    proxy.losing = 1
    with Client(proxy.url) as client, pytest.raises(Unreachable):
        client.send({b"stream": b"s", b"op": b"append", b"text": b"x"}, tries=1)
    assert len(written(redis_server)) == 1


def test_a_reader_survives_a_restart_of_the_server(tmp_path_factory: pytest.TempPathFactory, redis_server: Any) -> None:
    with redis_server.client() as client:
        client.flushall()
    say(redis_server, Token(0, "a", (1,)))
    with Client(redis_server.url) as client:
        events = client.stream("s").events(timeout_s=60)
        assert next(events) == Token(0, "a", (1,))
        with redis_server.client() as raw:
            raw.config_set("appendfsync", "always")
        say(redis_server, Token(1, "b", (2,)))
        redis_server.restart()
        say(redis_server, Done("stop"))
        assert list(events) == [Token(1, "b", (2,)), Done("stop")]


def test_a_wrong_password_and_a_forbidden_key_are_told_at_once(redis_server: Any) -> None:
    with redis_server.client() as client:
        client.acl_setuser(
            "producer", enabled=True, passwords=["+word"], keys=["s2l:*:ingress:acme"], commands=["+xadd"]
        )
    host = f"127.0.0.1:{redis_server.port}"
    with Client(f"redis://producer:wrong@{host}") as wrong, pytest.raises(RedisRefused, match="invalid username"):
        wrong.open(prompt=PROMPT)
    with Client(f"redis://producer:word@{host}", tenant="acme") as allowed:
        allowed.open(prompt=PROMPT)
        with pytest.raises(RedisRefused, match="permissions"):
            allowed.stream("s").answer(timeout_s=5)
    with Client(f"redis://producer:word@{host}") as other, pytest.raises(RedisRefused, match="permissions"):
        other.open(prompt=PROMPT)


def test_a_reply_that_expires_is_told_from_one_that_is_silent(server: Any) -> None:
    say(server, Token(0, "a", (1,)))
    with server.client() as raw, Client(server.url) as client:
        events = client.stream("s").events(timeout_s=60)
        next(events)
        raw.delete(KEYS.reply("default", "s"))
        with pytest.raises(ReplyGone):
            next(events)

    async def resume(client: AsyncClient) -> None:
        async for _ in client.stream("s").events(after="5-0"):
            pass

    with pytest.raises(ReplyGone):
        awaited(server.url, resume)


def test_the_async_reader_gives_up_as_the_other_does(server: Any) -> None:
    with pytest.raises(NoAnswer, match="pool default/default, and does it serve tenant default"):
        awaited(server.url, lambda client: client.stream("s").answer(accept_timeout_s=0.1))
    say(server, Token(0, "a", (1,)))
    with pytest.raises(NoAnswer, match="no event for"):
        awaited(server.url, lambda client: client.stream("s").answer(timeout_s=0.1))


def test_async_events_come_with_ids_and_resume(server: Any) -> None:
    say(server, Token(0, "a", (1,)), Token(1, "b", (2,)), Done("stop"))

    async def read(client: AsyncClient, after: str) -> list[tuple[str, Event]]:
        return [found async for found in client.stream("s").events_with_ids(after=after, timeout_s=60)]

    everything = awaited(server.url, lambda client: read(client, "0"))
    assert [event for _, event in everything] == [Token(0, "a", (1,)), Token(1, "b", (2,)), Done("stop")]
    assert awaited(server.url, lambda client: read(client, everything[0][0])) == everything[1:]


def test_streams_get_names_of_their_own(server: Any) -> None:
    with Client(server.url) as client:
        assert client.open(prompt=PROMPT).name != client.open(prompt=PROMPT).name
    assert [fields[b"op"] for fields in written(server)] == [b"open", b"open"]


def test_a_connection_of_ones_own_may_be_used(server: Any) -> None:
    with Client(connection=server.client(), pool="ns/p", tenant="t") as client:
        client.open(prompt=PROMPT, stream="s")
    with server.client() as raw:
        assert raw.xlen(PoolKeys("ns/p").ingress("t")) == 1
    with pytest.raises(ValueError, match="decode_responses"):
        Client(connection=redis.Redis(port=server.port, decode_responses=True))
