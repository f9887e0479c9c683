"""What arrives on a stream, chunk by chunk, for whoever reads it: an answer, or the body of a request."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, Iterable
from typing import Final, TypeAlias

from .errors import HailError
from .protocol.mux import MuxStream
from .protocol.status import OK, Code, Status

DEFAULT_LIMIT = 64 << 20
"""Bytes of a body that is read whole, where nothing else is said."""

WRITE_AHEAD = 65_536
"""Bytes of a stream that may wait before its writer does."""

Chunk: TypeAlias = "bytes | bytearray | memoryview | str"
CHUNK_TYPES: Final = (bytes, str, bytearray, memoryview)
Body: TypeAlias = "Chunk | Iterable[Chunk] | AsyncIterable[Chunk] | None"
"""What may be sent: bytes, text (in UTF-8), or chunks of either as they come."""


def as_bytes(chunk: Chunk) -> bytes:
    """The bytes of a chunk. Raises TypeError."""
    if isinstance(chunk, bytes):
        return chunk
    if isinstance(chunk, str):
        return chunk.encode()
    if isinstance(chunk, (bytearray, memoryview)):
        return bytes(chunk)
    raise TypeError(f"a chunk is bytes or text, not {type(chunk).__name__}")


class ChunkQueue:
    """Chunks of one direction that were not read yet. Whoever reads grants the peer as much again."""

    __slots__ = ("chunks", "ended", "stream", "waiter")

    def __init__(self, stream: MuxStream) -> None:
        self.stream = stream
        self.chunks: deque[bytes] = deque()
        self.ended: Status | None = None
        """How the direction has ended, if it has. What had come before is still read."""
        self.waiter: asyncio.Future[None] | None = None

    def put(self, chunk: bytes) -> None:
        """A chunk has come."""
        if self.ended is None:
            self.chunks.append(chunk)
            self._wake()

    def end(self, status: Status) -> None:
        """The direction has ended."""
        if self.ended is None:
            self.ended = status
            self._wake()

    def fail(self, status: Status) -> None:
        """The direction has ended, and what was not read of it is worth nothing."""
        if self.ended is None or self.ended.code == Code.OK:
            self.chunks.clear()
            self.ended = status
            self._wake()

    def _wake(self) -> None:
        waiter = self.waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def next(self) -> bytes | None:
        """The next chunk; None after the last. Raises HailError where the direction ended badly.

        If it is cancelled, nothing is lost.
        """
        while not self.chunks:
            if self.ended is not None:
                if self.ended is not OK:
                    raise HailError.of(self.ended)
                return None
            if self.waiter is not None:
                raise RuntimeError("two tasks read the same stream")
            self.waiter = asyncio.get_running_loop().create_future()
            try:
                await self.waiter
            finally:
                self.waiter = None
        chunk = self.chunks.popleft()
        self.stream.consumed(len(chunk))
        return chunk

    async def all(self, limit: int) -> bytes:
        """All that comes. Raises HailError, `resource_exhausted` where that is more than so many bytes."""
        parts: list[bytes] = []
        size = 0
        while (chunk := await self.next()) is not None:
            size += len(chunk)
            if size > limit:
                raise too_long(limit)
            parts.append(chunk)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def too_long(limit: int) -> HailError:
    """A body that is longer than its reader takes."""
    return HailError(
        "resource_exhausted",
        f"it is longer than {limit} bytes",
        hint="read it chunk by chunk, or allow more with `limit`",
    )


class WriterGate:
    """Lets a task wait until what it has written to a stream is on its way."""

    __slots__ = ("_waiter", "_why")

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None
        self._why: Status | None = None

    def open(self) -> None:
        """There is room again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def shut(self, why: Status) -> None:
        """Nothing more can be written."""
        if self._why is None:
            self._why = why
        self.open()

    def check(self) -> None:
        """Raises HailError where nothing more can be written."""
        if self._why is not None:
            raise HailError.of(self._why)

    async def wait(self, stream: MuxStream) -> None:
        """Waits until most of what was written is out. Raises HailError where it never will be."""
        self.check()
        if stream.queued < WRITE_AHEAD:
            return
        if self._waiter is not None:
            raise RuntimeError("two tasks write to the same stream")
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
        self.check()
