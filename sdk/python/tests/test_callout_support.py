"""What tests of agents share: a host that says byte for byte what it is told to, and a pair of streams in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from hailwire import callout

VECTORS = Path(__file__).parents[3] / "spec" / "vectors" / "callout"
LONG = 20.0
"""Seconds after which a test that waits has failed."""

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a test's coroutine, for so long at most."""
    return asyncio.run(asyncio.wait_for(work, LONG))


def vectors(message: str) -> list[dict[str, Any]]:
    """The golden vectors of a message."""
    found = json.loads((VECTORS / f"{message}.json").read_text())["vectors"]
    assert isinstance(found, list) and found
    return found


class Pipe:
    """One end of a stream in memory."""

    def __init__(self, incoming: asyncio.StreamReader, outgoing: asyncio.StreamReader) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self.is_closed = False

    async def read(self, limit: int, /) -> bytes:
        return await self._incoming.read(limit)

    async def write(self, data: bytes, /) -> None:
        if self.is_closed or self._outgoing.at_eof():
            raise ConnectionResetError
        self._outgoing.feed_data(data)

    async def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._outgoing.feed_eof()


def pipe() -> tuple[Pipe, Pipe]:
    """Both ends of a stream in memory."""
    one, other = asyncio.StreamReader(), asyncio.StreamReader()
    return Pipe(one, other), Pipe(other, one)


class RawHost:
    """A host at the other end of an agent's stream, which writes frames and reads them."""

    def __init__(self, agent: callout.Agent, *, registers: bool = False, token: str | None = None) -> None:
        self.stream, far = pipe()
        self._held = b""
        served = agent.register_stream(far, token=token) if registers else agent.serve_stream(far)
        self.served = asyncio.create_task(served)

    async def send(self, kind: int, payload: bytes | dict[str, Any]) -> None:
        if isinstance(payload, dict):
            payload = json.dumps(payload).encode()
        await self.write((1 + len(payload)).to_bytes(4, "big") + bytes((kind,)) + payload)

    async def write(self, data: bytes) -> None:
        await self.stream.write(data)

    async def receive(self) -> tuple[int, bytes] | None:
        """The next frame; ``None`` at the end."""
        while len(self._held) < 4 or len(self._held) < 4 + int.from_bytes(self._held[:4], "big"):
            data = await self.stream.read(1 << 16)
            if not data:
                return None
            self._held += data
        end = 4 + int.from_bytes(self._held[:4], "big")
        frame, self._held = self._held[:end], self._held[end:]
        return frame[4], frame[5:]

    async def answer(self) -> dict[str, Any]:
        """The next frame, which is an answer in JSON."""
        frame = await self.receive()
        assert frame is not None and frame[0] == 0x20, frame
        found = json.loads(frame[1])
        assert isinstance(found, dict)
        return found

    async def greet(self, **more: Any) -> dict[str, Any]:
        """Shakes hands, and returns the agent's answer."""
        hello = {"supported_versions": [2], "proxy_id": "h", "proxy_version": "1", "config": None}
        await self.send(0x01, {**hello, **more})
        frame = await self.receive()
        assert frame is not None and frame[0] == 0x02, frame
        found = json.loads(frame[1])
        assert isinstance(found, dict)
        return found

    async def ask_head(self, correlation_id: str, uri: str = "/", **more: Any) -> None:
        await self.send(0x10, {**head(correlation_id, uri), **more})

    async def close(self) -> None:
        """Leaves, and waits until the agent has noticed."""
        await self.stream.close()
        await self.served


def head(correlation_id: str, uri: str = "/") -> dict[str, Any]:
    """A request's head."""
    metadata = {
        "correlation_id": correlation_id,
        "request_id": "r",
        "client_ip": "192.0.2.1",
        "client_port": 1,
        "protocol": "HTTP/1.1",
        "timestamp": "2026-01-02T03:04:05Z",
    }
    return {"metadata": metadata, "method": "GET", "uri": uri, "headers": {"host": ["example.com"]}}


def chunk(correlation_id: str, data: str = "", *, is_last: bool = True, index: int = 0) -> dict[str, Any]:
    """A chunk of a body, whose data is base64."""
    return {"correlation_id": correlation_id, "data": data, "is_last": is_last, "chunk_index": index}
