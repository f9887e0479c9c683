"""The peer of spec/conformance over this library: a program with one fixed behaviour, which the driver asks to do
things.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import hailwire
from hailwire import HailError, Request, Response

CHUNK = 65_536


def pattern(begin: int, end: int) -> bytes:
    """A part of the body whose byte number i is (i * 31 + (i >> 8)) mod 251."""
    return bytes((i * 31 + (i >> 8)) % 251 for i in range(begin, end))


PERIOD = 251 * 256
WHOLE_PERIOD = pattern(0, PERIOD) * 2


async def patterned(size: int, chunk: int) -> AsyncIterator[bytes]:
    """So many bytes of the pattern, which repeats after 251 * 256."""
    at = 0
    while at < size:
        count = min(chunk, size - at)
        begin = at % PERIOD
        if begin + count <= len(WHOLE_PERIOD):
            yield WHOLE_PERIOD[begin : begin + count]
        else:
            parts = []
            for part in range(at, at + count, PERIOD):
                first = part % PERIOD
                parts.append(WHOLE_PERIOD[first : first + min(PERIOD, at + count - part)])
            yield b"".join(parts)
        at += count


def known(text: bytes) -> str | None:
    """A body of at most 1,024 bytes as text, where it is any."""
    try:
        return text.decode() if len(text) <= 1024 else None
    except UnicodeDecodeError:
        return None


class Outcome:
    """What came of a call."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.digest = hashlib.sha256()
        self.size = 0
        self.first = b""
        self.type = ""
        self.headers: list[tuple[str, str]] = []
        self.error: HailError | None = None

    def add(self, chunk: bytes) -> None:
        self.digest.update(chunk)
        self.size += len(chunk)
        if len(self.first) <= 1024:
            self.first += chunk

    def as_json(self) -> dict[str, Any]:
        error = self.error
        return {
            "code": error.number if error else 0,
            "message": error.message if error else "",
            "hint": error.hint if error else "",
            "details": error.details if error else "",
            "retry_after_ms": round(error.retry_after * 1000) if error else 0,
            "retryable": error.retryable if error else False,
            "type": self.type,
            "headers": [list(pair) for pair in self.headers],
            "bytes": self.size,
            "sha256": self.digest.hexdigest(),
            "text": known(self.first),
            "elapsed_ms": round((time.monotonic() - self.began) * 1000),
        }


class Peer:
    """The agent, and what it has counted."""

    def __init__(self) -> None:
        self.hail = hailwire.connect()
        self.waiting = 0
        self.cancelled = 0
        self.detached: asyncio.Task[Any] | None = None
        self.second: hailwire.ServeHandle | None = None
        self.agent = hailwire.Agent("peer", schema={"methods": [{"name": "echo"}]})
        for name in (
            "echo",
            "chunks",
            "inspect",
            "produce",
            "consume",
            "ignore",
            "wait",
            "crash",
            "counts",
            "call",
            "outcome",
        ):
            self.agent.method(getattr(self, name), name=name)
        for name in ("subscribe", "publish", "admin", "second_agent", "drain"):
            self.agent.method(getattr(self, name), name="second" if name == "second_agent" else name)
        self.hail.declare(self.agent)

    async def echo(self, request: Request) -> Response:
        return Response(await request.bytes(), request.type, request.headers)

    async def chunks(self, request: Request) -> AsyncIterator[bytes]:
        async for chunk in request:
            yield chunk

    async def inspect(self, request: Request) -> dict[str, Any]:
        body = await request.bytes()
        left = request.time_left
        return {
            "kind": request.kind,
            "method": request.method,
            "agent": request.agent,
            "from": {"agent": request.caller.agent, "node": request.caller.node},
            "type": request.type,
            "deadline_ms": None if left is None else round(left * 1000),
            "priority": request.priority,
            "idempotency_key": request.idempotency_key,
            "traceparent": request.traceparent,
            "tracestate": request.tracestate,
            "affinity": request.affinity,
            "headers": [list(pair) for pair in request.headers],
            "bytes": len(body),
            "sha256": hashlib.sha256(body).hexdigest(),
        }

    async def produce(self, request: Request) -> Response:
        told = await request.json()
        status = told.get("status")

        async def body() -> AsyncIterator[bytes]:
            async for chunk in patterned(told["bytes"], told.get("chunk", CHUNK)):
                yield chunk
            if status is not None:
                raise HailError(
                    hailwire.Code.of(status["code"]),
                    status.get("message", ""),
                    hint=status.get("hint", ""),
                    details=status.get("details", ""),
                    retry_after=status.get("retry_after_ms", 0) / 1000,
                )

        return Response(body(), told.get("type", ""), [(name, value) for name, value in told.get("headers", [])])

    async def consume(self, request: Request) -> dict[str, Any]:
        pause = int(request.header("pause-us") or 0) / 1e6
        digest, size, due = hashlib.sha256(), 0, 0.0
        async for chunk in request:
            digest.update(chunk)
            size += len(chunk)
            due += pause
            if due >= 0.001:
                await asyncio.sleep(due)
                due = 0.0
        return {"bytes": size, "sha256": digest.hexdigest()}

    async def ignore(self) -> bytes:
        return b"ignored"

    async def wait(self) -> None:
        self.waiting += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.waiting -= 1

    async def crash(self) -> None:
        raise ZeroDivisionError("as it was told")

    async def counts(self) -> dict[str, int]:
        return {"waiting": self.waiting, "cancelled": self.cancelled}

    async def call(self, request: Request) -> Any:
        told = await request.json()
        if told.get("detached"):
            # In a context of its own: what this call has left of its time is not for it.
            self.detached = contextvars.Context().run(asyncio.create_task, self.calls(told))
            return b"started"
        return await self.calls(told)

    async def outcome(self) -> Any:
        if self.detached is None:
            raise HailError("failed_precondition", "nothing was made with `detached`")
        return await asyncio.shield(self.detached)

    async def calls(self, told: dict[str, Any]) -> Any:
        times = told.get("times", 1)
        outcomes = await asyncio.gather(*(self.one_call(told) for _ in range(times)))
        if times == 1:
            return outcomes[0].as_json()
        codes = Counter(str(one.error.number if one.error else 0) for one in outcomes)
        return {"outcomes": dict(codes), "bytes": sum(one.size for one in outcomes)}

    async def one_call(self, told: dict[str, Any]) -> Outcome:
        outcome = Outcome()
        try:
            await self.made(told, outcome)
        except HailError as error:
            outcome.error = error
            if error.partial:
                outcome.add(error.partial)
        except asyncio.CancelledError:
            outcome.error = HailError("cancelled", "the caller cancelled it")
        return outcome

    async def made(self, told: dict[str, Any], outcome: Outcome) -> None:
        header: dict[str, Any] = {
            "method": told.get("method", ""),
            "type": told.get("type", ""),
            "caller": told.get("from", ""),
            "headers": [(name, value) for name, value in told.get("headers", [])],
        }
        for name in ("idempotency_key", "affinity", "traceparent", "tracestate", "carrier", "priority", "member"):
            if name in told:
                header[name] = told[name]
        timeout = told["timeout_ms"] / 1000 if "timeout_ms" in told else None
        size = told.get("body_bytes")
        body: Any = told.get("body", "")
        if size is not None:
            body = patterned(size, told.get("body_chunk", CHUNK))
        kind = told.get("kind", "call")
        if told.get("durable"):
            receipt = await self.hail.send_durable(
                told["to"], body, in_order=told["durable"] == 1, answered=kind == "call", expires=timeout, **header
            )
            outcome.add(json.dumps(receipt).encode())
        elif kind == "send":
            await self.hail.send(told["to"], body, timeout=timeout, **header)
        elif kind == "stream":
            async with self.hail.stream(told["to"], timeout=timeout, **header) as stream:
                outcome.type, outcome.headers = stream.type, stream.headers
                await stream.send(body)
                stream.finish()
                async for chunk in stream:
                    outcome.add(chunk)
        else:
            await self.answered(told, self.hail.call(told["to"], body, timeout=timeout, **header), outcome)

    async def answered(self, told: dict[str, Any], call: hailwire.Call, outcome: Outcome) -> None:
        read = told.get("read", "whole")
        pause, due = told.get("pause_us", 0) / 1e6, 0.0
        if read == "whole":
            answer = await call
            outcome.type, outcome.headers = answer.type, answer.headers
            outcome.add(answer.body)
        elif read == "cancel":
            await self.cancelled_call(told, call, outcome)
        else:
            async with call as chunks:
                outcome.type, outcome.headers = chunks.type, chunks.headers
                async for chunk in chunks:
                    outcome.add(chunk)
                    if read == "first":
                        break
                    due += pause
                    if due >= 0.001:
                        await asyncio.sleep(due)
                        due = 0.0

    async def cancelled_call(self, told: dict[str, Any], call: hailwire.Call, outcome: Outcome) -> None:
        begun = asyncio.Event()

        async def reading() -> None:
            async with call as chunks:
                begun.set()
                async for chunk in chunks:
                    outcome.add(chunk)

        task = asyncio.create_task(reading())
        try:
            await asyncio.wait_for(begun.wait(), told.get("cancel_after_ms", 50) / 1000)
        except asyncio.TimeoutError:
            pass
        task.cancel()
        await task

    async def subscribe(self, request: Request) -> list[dict[str, Any]]:
        told = await request.json()
        events: list[dict[str, Any]] = []
        async with self.hail.subscribe(*told["patterns"]) as subscription:
            while len(events) < told["most"]:
                events.append(shown(await anext(subscription)))
        return events

    async def publish(self, request: Request) -> Any:
        told = await request.json()
        return await self.hail.publish(
            told["topic"],
            told.get("body", ""),
            type=told.get("type", ""),
            headers=[(name, value) for name, value in told.get("headers", [])],
            publisher=told.get("from", ""),
        )

    async def admin(self, request: Request) -> Any:
        told = await request.json()
        answer = await self.hail.admin(told["method"], told.get("request"))
        return Response(json.dumps(answer), "application/json")

    async def second_agent(self) -> None:
        self.second = await self.hail.serve("second", self.echo)

    async def drain(self) -> None:
        if self.second is None:
            raise HailError("failed_precondition", "there is no second agent")
        await self.second.drain()
        self.second = None


def shown(event: hailwire.TopicEvent) -> dict[str, Any]:
    """An event as the driver wants it."""
    if isinstance(event, hailwire.TopicMessage):
        return {
            "topic": event.topic,
            "from": event.publisher,
            "type": event.type,
            "headers": [list(pair) for pair in event.headers],
            "body": event.body.hex(),
            "sequence": event.sequence,
            "at_ms": event.at_ms,
            "kept": event.kept,
            "deleted": event.deleted,
            "node": None if event.node is None else hailwire.key_bytes(event.node).hex(),
        }
    if isinstance(event, hailwire.Missed):
        return {"missed": event.count}
    return {"news": type(event).__name__.lower()}


def main() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.ERROR)
    logging.getLogger("hailwire").setLevel(logging.CRITICAL)
    Peer().hail.run()


if __name__ == "__main__":
    main()
