"""The caller's end of a call: its header, and the stream that carries it.

A call whose answer is awaited whole needs no task of its own: its stream resolves one future. One whose answer is read
chunk by chunk, and a raw stream, hold a queue that grants as it is read.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterable, Iterable
from typing import TYPE_CHECKING, Any

from .answers import Answer, Pairs
from .bodies import Chunk, ChunkQueue, WriterGate, as_bytes, too_long
from .errors import HailError
from .protocol import frames, headers
from .protocol.limits import MAX_AFFINITY, MAX_HEADER, MAX_HEADER_FIELDS, MAX_METHOD
from .protocol.msgpack import MalformedError, Packed
from .protocol.mux import MuxStream
from .protocol.status import OK, OUT_OF_TIME, Code, Status

if TYPE_CHECKING:
    from .connection import Connection

_CUT_SHORT = Status(Code.UNAVAILABLE, "the answer was cut short")
_LEFT = Status(Code.CANCELLED, "this side left the call")


_LONGEST_SHARED = 256


class CallHeader:
    """What a call says of itself, checked: all but its deadline, which is written when it is made."""

    __slots__ = ("caller", "fields", "is_shared", "media_type", "method", "priority", "to")

    def __init__(
        self,
        to: str,
        *,
        method: str = "",
        headers: Iterable[tuple[str, str]] = (),
        type: str = "",
        priority: int = 1,
        idempotency_key: str = "",
        affinity: str = "",
        member: int = 0,
        carrier: str = "",
        caller: str = "",
        traceparent: str = "",
        tracestate: str = "",
        durable: int = 0,
    ) -> None:
        self.to = to
        self.method = method
        self.media_type = type
        self.priority = priority
        self.caller = caller
        # Whether one object stands for all calls that state the same.
        self.is_shared = False
        # None where nothing but the attributes is stated, which is encoded faster.
        self.fields: dict[str, Packed] | None = None
        if len(method) > MAX_METHOD // 4 and len(method.encode()) > MAX_METHOD:
            raise HailError("invalid_argument", f"the method's name is longer than {MAX_METHOD} bytes")
        if (
            priority != 1
            or headers
            or idempotency_key
            or affinity
            or member
            or carrier
            or traceparent
            or tracestate
            or durable
        ):
            self._state(locals())

    def _state(self, given: dict[str, Any]) -> None:
        pairs = [[name, value] for name, value in given["headers"]]
        if len(pairs) > MAX_HEADER_FIELDS:
            raise HailError("invalid_argument", f"a call has at most {MAX_HEADER_FIELDS} fields, not {len(pairs)}")
        if len(given["affinity"].encode()) > MAX_AFFINITY:
            raise HailError("invalid_argument", f"the affinity key is longer than {MAX_AFFINITY} bytes")
        if not 0 <= self.priority <= 3:
            raise HailError("invalid_argument", f"the priority is 0 to 3, not {self.priority}")
        names = ("idempotency_key", "traceparent", "tracestate", "carrier", "durable", "member", "affinity")
        self.fields = {"priority": self.priority, "headers": pairs, **{name: given[name] for name in names}}

    def opening(self, kind: int, caller: str, deadline_ms: int | None) -> bytes:
        """The frame that opens the call. Raises HailError where its header has too many bytes."""
        if self.is_shared:
            return _known_opening(self, kind, caller, deadline_ms)
        return self._encode(kind, caller, deadline_ms)

    def _encode(self, kind: int, caller: str, deadline_ms: int | None) -> bytes:
        if self.fields is None:
            data = headers.encode_plain_call(self.to, self.method, caller, self.media_type, deadline_ms)
        else:
            stated = {
                "to": self.to,
                "method": self.method,
                "from": caller,
                "type": self.media_type,
                "deadline_ms": deadline_ms,
            }
            data = headers.encode("call", {**stated, **self.fields})
        if len(data) > MAX_HEADER:
            raise HailError("invalid_argument", f"the call's header has {len(data)} bytes, more than {MAX_HEADER}")
        return frames.frame(kind, data)


@functools.lru_cache(maxsize=1024)
def plain_header(to: str) -> CallHeader:
    """The header of a call that states nothing but where it goes. Nobody changes it."""
    header = CallHeader(to)
    header.is_shared = len(to) <= _LONGEST_SHARED
    return header


@functools.lru_cache(maxsize=1024)
def _known_opening(header: CallHeader, kind: int, caller: str, deadline_ms: int | None) -> bytes:
    """Openings repeat: most calls state nothing but where they go, and how long they may take."""
    return header._encode(kind, caller, deadline_ms)


class CallStream(MuxStream):
    """The caller's end of a call, a send or a raw stream."""

    __slots__ = (
        "_chunks",
        "_ended",
        "_future",
        "_gate",
        "_head",
        "_limit",
        "_parts",
        "_pump",
        "_reader",
        "_size",
        "timer_key",
    )

    mux: Connection

    def __init__(self, connection: Connection, priority: int, whole: bool, limit: int) -> None:
        super().__init__(connection, priority)
        self._reader: frames.FrameReader | None = None
        self._head: tuple[str, Pairs] | None = None
        self._ended: Status | None = None
        # Resolves with the whole answer, or with nothing when the answer begins.
        self._future: asyncio.Future[Any] = connection.loop.create_future()
        # Of an answer that is awaited whole, what has come of it.
        self._parts: list[bytes] | None = [] if whole else None
        self._size = 0
        self._limit = limit
        # Of one that is read as it comes.
        self._chunks = None if whole else ChunkQueue(self)
        self._gate: WriterGate | None = None
        self.timer_key = 0
        self._pump: asyncio.Task[None] | None = None

    @property
    def future(self) -> asyncio.Future[Any]:
        """Resolves with the whole answer, or with nothing when an answer that is read as it comes has begun."""
        return self._future

    @property
    def chunks(self) -> ChunkQueue:
        """What has come of an answer that is read as it comes."""
        assert self._chunks is not None
        return self._chunks

    @property
    def head(self) -> tuple[str, Pairs]:
        """Media type and fields of the answer; nothing where it states none."""
        return self._head or ("", [])

    @property
    def ended(self) -> Status | None:
        """How the call ended, if it has."""
        return self._ended

    def expire_at(self, at: float, left: float, kept: bool) -> None:
        """Gives the call a deadline, which is kept here, too, unless it is only told."""
        if left <= 0:
            self._end(OUT_OF_TIME)
        elif kept:
            self.mux.wheel.add(at, left, self)

    def start(self, opening: bytes, body: bytes, fin: bool) -> None:
        """Writes the opening, and what is there of the body. Nothing happens where the time is over already."""
        if self._ended is not None:
            return
        size = len(body)
        if size <= frames.SMALL_BODY:
            self.write(b"".join((opening, frames.DATA_KIND, size.to_bytes(3, "big"), body)) if size else opening, fin)
            return
        self.write(opening)
        for data in frames.data_frames(body):
            self.write(data)
        if fin:
            self.finish()

    async def send(self, chunk: bytes) -> None:
        """Writes a chunk of the body, and waits until it is on its way. Raises HailError where nobody reads any
        more.
        """
        gate = self.gate
        gate.check()
        if chunk:
            for data in frames.data_frames(chunk):
                self.write(data)
            await gate.wait(self)

    @property
    def gate(self) -> WriterGate:
        """Whoever writes a body waits here."""
        if self._gate is None:
            self._gate = WriterGate()
            if self._ended is not None:
                self._gate.shut(self._ended if self._ended is not OK else _LEFT)
            elif self.send_done:
                self._gate.shut(_LEFT)
        return self._gate

    async def pump(self, body: AsyncIterable[Chunk] | Iterable[Chunk]) -> None:
        """Writes a body as it comes, until it ends or nobody reads it."""
        try:
            if isinstance(body, AsyncIterable):
                async for chunk in body:
                    await self.send(as_bytes(chunk))
            else:
                for chunk in body:
                    await self.send(as_bytes(chunk))
            self.finish()
        except HailError:
            # Nobody reads it any more; the answer says the rest.
            pass
        except Exception as error:
            self.reset(Code.ABORTED)
            if not self._future.done():
                self._future.set_exception(error)
            self._end(Status(Code.ABORTED, f"the body failed: {error!r}"))

    def start_pump(self, body: AsyncIterable[Chunk] | Iterable[Chunk]) -> None:
        """Begins to write a body beside the call."""
        self._pump = self.mux.loop.create_task(self.pump(body))

    # --- what came

    def handle_data(self, data: bytes, fin: bool) -> None:
        if self._ended is not None:
            return
        if fin and self._reader is None and self._parts is not None and data[-4:] == frames.END_OK:
            # Nearly every answer is small, whole, and one DATA frame without a head.
            if len(data) == 4:
                self._finish_whole(b"")
                return
            if data[0] == frames.DATA and int.from_bytes(data[1:4], "big") == len(data) - 8 <= self._limit:
                self._finish_whole(data[4:-4])
                return
        self._read(data, fin)

    def _finish_whole(self, body: bytes) -> None:
        self._ended = OK
        if self.timer_key:
            self.mux.wheel.remove(self)
        if not self._send_done:
            self._stop_writing()
        if not self._future.done():
            self._future.set_result(Answer(body))

    def _read(self, data: bytes, fin: bool) -> None:
        if self._reader is None:
            self._reader = frames.FrameReader()
        try:
            framing = 0
            for kind, payload in self._reader.feed(data):
                if kind == frames.DATA:
                    framing -= len(payload)
                    self._chunk(payload)
                elif kind == frames.END:
                    self._end(headers.decode_status(payload))
                elif kind == frames.HEAD:
                    self._handle_head(payload)
                if self._ended is not None:
                    break
            if self._ended is None:
                if fin:
                    self._reader.finish()
                    self._end(_CUT_SHORT)
                else:
                    # What is no body is read at once.
                    self.consumed(len(data) + framing)
        except frames.FrameError as error:
            self._end(Status(Code.INVALID_ARGUMENT, str(error)))
        except MalformedError as error:
            self._end(Status(Code.INTERNAL, f"the answer cannot be read: {error}"))

    def _handle_head(self, payload: bytes) -> None:
        if self._head is None and not self._parts and self._size == 0:
            self._head = headers.decode_head(payload)
            self._begin()

    def _chunk(self, payload: bytes) -> None:
        self._size += len(payload)
        if self._parts is None:
            self.chunks.put(payload)
            self._begin()
            return
        if self._size > self._limit:
            self._end(too_long(self._limit).status)
            return
        self._parts.append(payload)
        self.consumed(len(payload))

    def _begin(self) -> None:
        if self._parts is None and not self._future.done():
            self._future.set_result(None)

    def _end(self, status: Status) -> None:
        """The call has ended. What is left of the stream is given up."""
        if self._ended is not None:
            return
        self._ended = status = OK if status.code == Code.OK else status
        if self.timer_key:
            self.mux.wheel.remove(self)
        self._stop_writing()
        if not self._recv_done:
            self.stop(Code.OK if status is OK else Code.CANCELLED)
        future = self._future
        if self._chunks is not None:
            self._chunks.end(status)
        if future.done():
            return
        if status is not OK:
            error = HailError.of(status)
            error.partial = b"".join(self._parts or ())
            future.set_exception(error)
        elif self._parts is not None:
            future.set_result(Answer(b"".join(self._parts), *self.head))
        else:
            future.set_result(None)

    def _stop_writing(self) -> None:
        if not self._send_done:
            self.reset(Code.CANCELLED)
        if self._gate is not None:
            self._gate.shut(_LEFT)
        if self._pump is not None:
            self._pump.cancel()
            self._pump = None

    def give_up(self) -> None:
        """The caller wants it no more."""
        if self._ended is None:
            self._end(_LEFT)
        if self._future.done() and not self._future.cancelled():
            # Nobody asks for it.
            self._future.exception()

    def handle_expired(self) -> None:
        if self._chunks is not None:
            self._chunks.fail(OUT_OF_TIME)
        self._end(OUT_OF_TIME)

    def handle_reset(self, code: int) -> None:
        if code in (Code.OK, Code.CANCELLED):
            self._end(Status(Code.CANCELLED, "the far side gave the call up"))
        else:
            self._end(Status(Code.of(code), "the far side gave the call up"))

    def handle_stop(self, code: int) -> None:
        if self._gate is not None:
            self._gate.shut(Status(Code.of(code) if code else Code.CANCELLED, "the far side reads no more"))

    def handle_writable(self) -> None:
        if self._gate is not None:
            self._gate.open()

    def handle_lost(self) -> None:
        why = self.mux.ended
        self._end(why or Status(Code.UNAVAILABLE, "the node is gone"))
