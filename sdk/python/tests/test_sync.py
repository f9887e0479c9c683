"""The client for programs without an event loop, and programs on another loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from conftest import Node

import hailwire
from hailwire import HailError, sync


def test_a_program_without_a_loop_calls_serves_and_streams(node: Node) -> None:
    with sync.connect() as hail:

        def shout(text: str) -> str:
            return text.upper()

        def count(n: int) -> Iterator[str]:
            for number in range(n):
                yield str(number)

        hail.serve("shout", shout)
        hail.serve("count", count)
        assert hail.call("shout", "abc", timeout=5).text == "ABC"
        assert b"".join(hail.call_chunks("count", 5)) == b"01234"
        hail.send("shout", "gone")
        with hail.stream("count") as stream:
            stream.send("3")
            stream.finish()
            assert b"".join(stream) == b"012"
        with pytest.raises(HailError, match="not_found"):
            hail.call("nobody")
        with hail.subscribe("a.>") as events:
            hail.publish("a.b", "hello")
            event = next(iter(events))
            assert isinstance(event, hailwire.TopicMessage) and event.text == "hello"
        hail.state_put("k", {"v": 1})
        value = hail.state_get("k")
        assert value is not None and value.json() == {"v": 1}
        task = hail.submit("shout", "work")
        assert hailwire.content(hail.wait_task(task["id"])["answer"]) == b"WORK"
        assert hail.status()["calls"] >= 1
        assert {row["name"] for row in hail.list_agents()} == {"shout", "count"}


def test_many_threads_share_a_client(node: Node) -> None:
    with sync.connect() as hail:
        hail.serve("echo", lambda body: body)
        wrong: list[int] = []

        def calling(number: int) -> None:
            for _ in range(50):
                if hail.call("echo", str(number)).text != str(number):
                    wrong.append(number)

        threads = [threading.Thread(target=calling, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


def test_it_works_on_uvloop(node: Node) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        async with hailwire.connect() as hail:

            async def echo(body: bytes) -> bytes:
                return body

            await hail.serve("echo", echo)
            for size in (0, 1, 1 << 20):
                assert len(await hail.call("echo", bytes(size), timeout=20)) == size

    loop = uvloop.new_event_loop()
    try:
        loop.run_until_complete(asyncio.wait_for(main(), 60))
    finally:
        loop.close()
