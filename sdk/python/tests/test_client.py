"""Programs on a real node: calls, streams, deadlines, cancels, messages, and a node that goes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Any

import pytest
from conftest import Node

import hailwire
from hailwire import HailError, Request, Response

Test = Callable[..., Awaitable[None]]


def in_loop(test: Test) -> Callable[..., None]:
    """Runs a test in a loop of its own, for a minute at most."""

    @wraps(test)
    def run(**given: Any) -> None:
        async def bounded() -> None:
            await asyncio.wait_for(test(**given), 60)

        asyncio.run(bounded())

    return run


@dataclass
class Order:
    item: str
    count: int = 1


@dataclass
class Bill:
    total: float
    lines: list[str]


@in_loop
async def test_values_of_every_kind_go_there_and_back(node: Node) -> None:
    async with hailwire.connect() as hail:

        async def price(order: Order) -> Bill:
            return Bill(order.count * 2.5, [order.item] * order.count)

        def shout(text: str) -> str:
            return text.upper()

        async def echo(body: bytes) -> bytes:
            return body

        async def with_head(request: Request, body: bytes) -> Response:
            return Response(body, "text/markdown", [("a", "1"), ("a", "2"), *request.headers])

        await hail.serve("price", price)
        await hail.serve("shout", shout)
        await hail.serve("echo", echo)
        await hail.serve("with-head", with_head)

        bill = (await hail.call("price", Order("tea", 2))).to(Bill)
        assert bill == Bill(5.0, ["tea", "tea"])
        assert (await hail.call("price", {"item": "tea"})).json() == {"total": 2.5, "lines": ["tea"]}
        assert (await hail.call("shout", "grüße")).text == "GRÜSSE"
        assert bytes(await hail.call("echo")) == b""
        for size in (1, 16_000, 16_384, 70_000, 5_000_000):
            body = os.urandom(size)
            assert (await hail.call("echo", body)).body == body
        answer = await hail.call("with-head", "x", headers=[("b", "3")], type="text/plain")
        assert (answer.type, answer.headers) == ("text/markdown", [("a", "1"), ("a", "2"), ("b", "3")])
        with pytest.raises(HailError) as refused:
            await hail.call("price", {"count": 1})
        assert refused.value.code == "invalid_argument" and "`item`" in refused.value.message
        methods = (await hail.describe("price"))["methods"]
        assert methods[0]["inputSchema"]["required"] == ["item"]


@in_loop
async def test_an_error_has_a_code_a_hint_and_says_whether_to_try_again(node: Node) -> None:
    async with hailwire.connect() as hail:

        async def full(body: bytes) -> bytes:
            raise HailError("resource_exhausted", "no room", hint="come back", details="d" * 9000, retry_after=1.5)

        await hail.serve("full", full)
        with pytest.raises(HailError) as refused:
            await hail.call("full")
        error = refused.value
        assert (error.code, error.number, error.message, error.hint) == (
            "resource_exhausted",
            8,
            "no room",
            "come back",
        )
        assert error.retryable and error.retry_after == 1.5 and len(error.details) == 8192
        with pytest.raises(HailError) as unknown:
            await hail.call("nobody")
        assert unknown.value.code == "not_found" and unknown.value.hint and not unknown.value.retryable
        with pytest.raises(HailError, match="not_found"):
            async for _ in hail.call("nobody"):
                pass


@in_loop
async def test_chunks_flow_both_ways_as_they_come(node: Node) -> None:
    async with hailwire.connect() as hail:

        async def doubled(request: Request) -> AsyncIterator[bytes]:
            async for chunk in request:
                yield chunk * 2

        def numbers(text: str) -> Iterator[dict[str, int]]:
            for number in range(int(text)):
                yield {"number": number}

        await hail.serve("doubled", doubled)
        await hail.serve("numbers", numbers)
        answered = asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            yield b"first "
            await answered.wait()
            yield b"second "

        got = b""
        async for chunk in hail.call("doubled", body()):
            got += chunk
            answered.set()
        assert got == b"first first second second "
        async with hail.call("numbers", "3") as answer:
            assert [value async for value in answer.values(dict)] == [{"number": n} for n in range(3)]
        async with hail.stream("doubled") as stream:
            for text in (b"a", b"b", b"c"):
                await stream.send(text)
                assert await stream.receive() == text * 2
            stream.finish()
            assert await stream.receive() is None


@in_loop
async def test_leaving_an_answer_early_cancels_its_handler(node: Node) -> None:
    async with hailwire.connect() as hail:
        cancelled: asyncio.Queue[str] = asyncio.Queue()

        async def endless(request: Request) -> AsyncIterator[str]:
            try:
                while True:
                    yield "on and on "
            finally:
                cancelled.put_nowait(request.method)

        await hail.serve("endless", endless)
        async for _ in hail.call("endless", method="left"):
            break
        assert await cancelled.get() == "left"
        answer = hail.call("endless", method="dropped").__aiter__()
        await anext(answer)
        del answer
        assert await cancelled.get() == "dropped"
        async with hail.call("endless", method="closed") as entered:
            await anext(entered)
        assert await cancelled.get() == "closed"


@in_loop
async def test_cancelling_the_task_arrives_at_the_handler(node: Node) -> None:
    async with hailwire.connect() as hail:
        told: asyncio.Queue[str] = asyncio.Queue()

        async def waits(body: bytes) -> None:
            told.put_nowait("begun")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                told.put_nowait("cancelled")
                raise

        await hail.serve("waits", waits)
        task = asyncio.create_task(hail.call("waits"))
        assert await told.get() == "begun"
        task.cancel()
        assert await told.get() == "cancelled"
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(HailError) as late:
            await hail.call("waits", timeout=0.1)
        assert late.value.code == "deadline_exceeded"
        assert [await told.get(), await told.get()] == ["begun", "cancelled"]


@in_loop
async def test_a_nested_call_has_what_is_left_of_the_deadline_and_says_who_calls(node: Node) -> None:
    async with hailwire.connect() as hail:

        async def inner(request: Request) -> dict[str, Any]:
            return {"left": request.time_left, "from": request.caller.agent}

        async def outer(body: bytes) -> Any:
            return (await hail.call("inner")).json()

        await hail.serve("inner", inner)
        await hail.serve("outer", outer)
        seen = (await hail.call("outer", timeout=5)).json()
        assert 3 < seen["left"] <= 5 and seen["from"] == "outer"
        assert (await hail.call("outer")).json() == {"left": None, "from": "outer"}
        assert (await hail.call("inner")).json() == {"left": None, "from": ""}


@in_loop
async def test_a_call_is_made_again_within_its_bounds(node: Node) -> None:
    async with hailwire.connect() as hail:
        tries = 0

        async def third_time(body: bytes) -> int:
            nonlocal tries
            tries += 1
            if tries < 3:
                raise HailError("unavailable", "not yet")
            return tries

        await hail.serve("third-time", third_time)
        answer = await hail.call("third-time", "x", idempotency_key="k", retries=5)
        assert answer.json() == 3
        tries = 0
        with pytest.raises(HailError, match="not yet"):
            await hail.call("third-time", "x", idempotency_key="k", retries=1)
        with pytest.raises(HailError, match="idempotency key"):
            await hail.call("third-time", "x", retries=1)

        slow_once = asyncio.Event()

        async def hedged(body: bytes) -> str:
            if not slow_once.is_set():
                slow_once.set()
                await asyncio.Event().wait()
            return "quick"

        await hail.serve("hedged", hedged)
        assert (await hail.call("hedged", "x", idempotency_key="h", hedge_after=0.05, timeout=20)).text == "quick"


@in_loop
async def test_as_many_calls_run_as_the_agent_takes(node: Node) -> None:
    async with hailwire.connect() as hail:
        running = most = 0

        async def busy(body: bytes) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1

        await hail.serve("busy", busy, max_concurrency=3)
        await asyncio.gather(*(hail.call("busy") for _ in range(50)))
        assert most <= 3
        with pytest.raises(HailError) as again:
            await hail.serve("busy", busy)
        assert again.value.code == "already_exists"


@in_loop
async def test_an_agent_is_replaced_and_drained_without_a_failed_call(node: Node) -> None:
    async with hailwire.connect() as hail, hailwire.connect() as caller:

        def saying(word: str) -> hailwire.Agent:
            agent = hailwire.Agent("word", description=word)

            @agent.every_method
            async def answer(body: bytes) -> str:
                await asyncio.sleep(0)
                return word

            return agent

        handle = await hail.serve(saying("one"))
        words: list[str] = []
        stop = False

        async def calling() -> None:
            while not stop:
                words.append((await caller.call("word")).text)

        task = asyncio.create_task(calling())
        while "one" not in words:
            await asyncio.sleep(0)
        await handle.replace(saying("two"))
        while "two" not in words:
            await asyncio.sleep(0)
        stop = True
        await task
        await handle.drain()
        with pytest.raises(HailError, match="not_found"):
            await caller.call("word")


@in_loop
async def test_topics_and_state_reach_who_wants_them(node: Node) -> None:
    async with hailwire.connect() as hail:
        async with hail.subscribe("build.*.done") as events:
            receipt = await hail.publish(
                "build.web.done", {"ok": True}, type="application/json", headers=[("run", "7")]
            )
            assert receipt["published"] == 1 and receipt["programs"] == 1
            message = await anext(events.messages())
            assert message.json() == {"ok": True} and message.headers == (("run", "7"),)
            async with hail.publisher() as publisher:
                for number in range(100):
                    await publisher.publish("build.x.done", str(number))
            assert publisher.receipt is not None and publisher.receipt["published"] == 100
            got = [(await anext(events.messages())).text for _ in range(100)]
            assert got == [str(number) for number in range(100)]
        with pytest.raises(HailError, match="no topic"):
            await hail.publish("Not A Topic")
        first = await hail.state_put("color", "red", if_revision=0)
        with pytest.raises(HailError, match="aborted"):
            await hail.state_put("color", "blue", if_revision=0)
        await hail.state_put("color", "blue", if_revision=first["last"])
        value = await hail.state_get("color")
        assert value is not None and value.text == "blue"
        await hail.state_delete("color")
        assert await hail.state_get("color") is None
        async with hail.replay("state.>", start=1, name="reader") as kept:
            newest = await anext(kept.messages())
            await kept.confirm(newest)


@in_loop
async def test_a_task_is_followed_to_its_end_and_another_withdrawn(node: Node) -> None:
    async with hailwire.connect() as hail:
        told: asyncio.Queue[str] = asyncio.Queue()

        async def work(request: Request) -> str:
            assert request.message_id is not None and request.attempt == 1
            await hail.report_progress(request, 1, 2, "half")
            told.put_nowait("begun")
            if await request.text() == "for ever":
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    told.put_nowait("cancelled")
                    raise
            return "done"

        await hail.serve("work", work)
        receipt = await hail.submit("work", "quick", idempotency_key="one")
        assert (await hail.submit("work", "quick", idempotency_key="one"))["known"]
        states = [detail["state"] async for detail in hail.follow_task(receipt["id"])]
        assert states[-1] == "answered"
        detail = await hail.wait_task(receipt["id"])
        assert hailwire.content(detail["answer"]) == b"done"
        assert await told.get() == "begun"
        endless = await hail.submit("work", "for ever")
        assert await told.get() == "begun"
        await hail.cancel_task(endless["id"])
        assert await told.get() == "cancelled"
        assert (await hail.wait_task(endless["id"]))["state"] == "cancelled"
        sent = await hail.send_durable("work", "a message", keep=60, attempts=1, expires=60)
        assert (await hail.wait_task(sent["id"]))["state"] == "acknowledged"
        assert {row["task"] for row in await hail.list_tasks()} == {"completed", "cancelled"}


@in_loop
async def test_under_a_thousand_calls_a_killed_node_is_told_within_two_seconds_and_agents_are_back(node: Node) -> None:
    async with hailwire.connect() as hail, hailwire.connect() as server:
        begun = 0

        async def waits(body: bytes) -> bytes:
            nonlocal begun
            begun += 1
            if body == b"wait":
                await asyncio.Event().wait()
            return body

        await server.serve("waits", waits)
        calls = [asyncio.create_task(hail.call("waits", "wait")) for _ in range(1000)]
        while begun < 1000:
            await asyncio.sleep(0)
        node.kill()
        ended = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 2)
        assert {error.code for error in ended if isinstance(error, HailError)} == {"unavailable"}
        assert len([error for error in ended if isinstance(error, HailError)]) == 1000
        with pytest.raises(HailError) as away:
            await hail.call("waits")
        assert away.value.code == "unavailable" and away.value.retryable
        await asyncio.to_thread(node.start)
        while True:
            try:
                assert (await hail.call("waits", "here", timeout=10)).body == b"here"
                break
            except HailError as error:
                assert error.code in ("unavailable", "not_found"), error
                await asyncio.sleep(0.01)


@in_loop
async def test_where_no_node_runs_that_is_said(tmp_path: Any) -> None:
    with pytest.raises(HailError) as away:
        await hailwire.connect(tmp_path)
    assert away.value.code == "unavailable" and "hail up" in away.value.hint
    with pytest.raises(HailError, match="not attached"):
        await hailwire.connect(tmp_path).call("anyone")
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o777)
    with pytest.raises(HailError) as open_to_all:
        await hailwire.connect(tmp_path)
    assert open_to_all.value.code == "permission_denied"


AGENT = """
import asyncio, sys, hailwire
hail = hailwire.connect()

@hail.agent("slow")
async def slow(seconds: float) -> str:
    print("begun", flush=True)
    await asyncio.sleep(seconds)
    return "done"

hail.run()
print("ended", flush=True)
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@in_loop
async def test_ctrl_c_ends_an_agent_program_cleanly_and_calls_under_way_are_answered(node: Node, sent: int) -> None:
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", AGENT, env=node.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert program.stdout is not None
    async with hailwire.connect() as hail:
        while not any(row["name"] == "slow" for row in await hail.list_agents()):
            await asyncio.sleep(0.01)
        call = asyncio.create_task(hail.call("slow", 0.5))
        assert await program.stdout.readline() == b"begun\n"
        program.send_signal(sent)
        assert (await call).text == "done"
        out, err = await program.communicate()
        assert (out, err, program.returncode) == (b"ended\n", b"serving slow   (Ctrl-C to stop)\n", 0)
        assert not any(row["name"] == "slow" for row in await hail.list_agents())


SLOW_CONSUMER = """
import asyncio, hailwire
hail = hailwire.connect()

@hail.agent("consume")
async def consume(request: hailwire.Request) -> str:
    size = 0
    async for chunk in request:
        size += len(chunk)
        if size % (1 << 20) < len(chunk):
            await asyncio.sleep(0.002)
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return f"{size} {peak.split()[1]}"

hail.run()
"""


@in_loop
async def test_a_slow_consumer_of_a_gibibyte_stays_under_60_megabytes(node: Node) -> None:
    program = await asyncio.create_subprocess_exec(sys.executable, "-c", SLOW_CONSUMER, env=node.environment)
    try:
        async with hailwire.connect() as hail:
            while not any(row["name"] == "consume" for row in await hail.list_agents()):
                await asyncio.sleep(0.01)

            async def body() -> AsyncIterator[bytes]:
                chunk = bytes(65_536)
                for _ in range(16_384):
                    yield chunk

            size, peak = (await hail.call("consume", body())).text.split()
            assert int(size) == 1 << 30
            assert int(peak) < 60_000, f"{peak} KiB"
    finally:
        program.terminate()
        await program.wait()
