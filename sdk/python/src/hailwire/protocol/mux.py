"""The multiplexer: many bidirectional streams over one ordered byte stream (spec/mux.md), without I/O.

Whoever owns a `Multiplexer` hands it what arrives (`receive`) and writes what it says (`take_output`). It tells a
stream what came for it by calling the stream's `handle_` methods, which a subclass of `MuxStream` defines; they must
not raise.

Bytes leave at once, in the order in which they were written, as long as the byte stream below takes them. Where it does
not (`blocked`), they wait in the streams, and are taken out by priority: critical 64, high 24, medium 9 and low 3
parts. Frames other than DATA never wait.

What a stream has been sent and not yet read is bounded by its window: 16 KiB at first, four times as much each time the
reader has read half of it, up to 2 MiB, out of 8 MiB that all grown streams of the connection share.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import Final

from .limits import (
    MAX_DATAGRAM,
    MUX_INITIAL_WINDOW,
    MUX_MAX_DATA,
    MUX_MAX_PINGS,
    MUX_MAX_REASON,
    MUX_MAX_STREAMS,
    MUX_RECEIVE_POOL,
    MUX_STREAM_WINDOW,
)
from .status import Code, cut

DATA: Final = 0x01
RESET: Final = 0x02
STOP: Final = 0x03
WINDOW: Final = 0x04
STREAMS: Final = 0x05
PING: Final = 0x06
PONG: Final = 0x07
DATAGRAM: Final = 0x08
CLOSE: Final = 0x09

NAMES: Final = ("", "DATA", "RESET", "STOP", "WINDOW", "STREAMS", "PING", "PONG", "DATAGRAM", "CLOSE")
_LENGTHS: Final = {
    DATA: (0, MUX_MAX_DATA),
    RESET: (4, 4),
    STOP: (4, 4),
    WINDOW: (4, 4),
    STREAMS: (4, 4),
    PING: (8, 8),
    PONG: (8, 8),
    DATAGRAM: (0, MAX_DATAGRAM),
    CLOSE: (4, 4 + MUX_MAX_REASON),
}
FIN: Final = 0x01

_HEADER: Final = Struct(">BBHQ")
_pack_header: Final = _HEADER.pack
_unpack_header: Final = _HEADER.unpack_from
_U32: Final = Struct(">I")

MAGIC: Final = b"hailmux/"
VERSION: Final = 1
_ROLES: Final = {True: b"C", False: b"S"}

OUTPUT_SOON: Final = 16_384
"""DATA from which on it is worth a write of its own: whoever is behind works on it while the rest is being made."""

OUTPUT_HIGH: Final = 131_072
"""DATA that is handed out before streams wait for it to be written."""

_NO_BOUND: Final = 1 << 62
_SHARES: Final = (3, 9, 24, 64)


class MuxError(ValueError):
    """The peer broke the multiplexer's rules: the connection is over."""


def preface(client: bool) -> bytes:
    """The twelve bytes with which a side begins."""
    return MAGIC + bytes((VERSION, 0)) + _ROLES[client] + b"\x00"


def check_preface(data: bytes, client: bool) -> bool:
    """Whether the peer's preface is there whole. Raises MuxError as soon as it is none for this side."""
    begun = data[: len(MAGIC)]
    if begun != MAGIC[: len(begun)]:
        shown = " ".join(f"{byte:02x}" for byte in data[:12])
        raise MuxError(f"the peer does not speak the hailwire multiplexer, it began with {shown}")
    if len(data) > 8 and data[8] != VERSION:
        raise MuxError(f"the peer speaks version {data[8]} of the multiplexer, this side version {VERSION}")
    if len(data) > 10 and data[10:11] not in _ROLES.values():
        raise MuxError(f"the peer has the role {data[10]:#04x}, which is none")
    if len(data) > 10 and data[10:11] == _ROLES[client]:
        raise MuxError("both sides took the same role")
    return len(data) >= 12


def _nothing() -> None:
    """Nobody wants to know."""


class MuxStream:
    """One bidirectional stream. A subclass says what becomes of what arrives on it."""

    __slots__ = (
        "_fin_waits",
        "_granted",
        "_queue",
        "_queued",
        "_recv_done",
        "_send_credit",
        "_send_done",
        "_stopped",
        "_unread",
        "_waits",
        "_window",
        "id",
        "mux",
        "priority",
    )

    def __init__(self, mux: Multiplexer, priority: int) -> None:
        self.mux = mux
        self.priority = priority
        self.id = 0
        self._send_credit = MUX_INITIAL_WINDOW
        # What waits to be sent, made when something first does.
        self._queue: deque[bytes | memoryview] | None = None
        self._queued = 0
        self._fin_waits = False
        self._send_done = False
        self._recv_done = False
        # Whether this side asked the peer to end its direction, and whether this stream is in a line of its
        # multiplexer.
        self._stopped = False
        self._waits = False
        # What the peer may still send, what its reader has not read, and how much both may be.
        self._granted = MUX_INITIAL_WINDOW
        self._unread = 0
        self._window = MUX_INITIAL_WINDOW

    # --- what came, for a subclass

    def handle_data(self, data: bytes, fin: bool) -> None:
        """Bytes of the peer's direction; with `fin` they are the last."""

    def handle_reset(self, code: int) -> None:
        """The peer gives its direction up."""

    def handle_stop(self, code: int) -> None:
        """The peer wants no more of this side's direction; it has been given up."""

    def handle_writable(self) -> None:
        """All that waited has been taken out to be written."""

    def handle_lost(self) -> None:
        """The connection is over."""

    # --- sending

    @property
    def queued(self) -> int:
        """Bytes that were written and wait for credit, or for the connection."""
        return self._queued

    @property
    def send_done(self) -> bool:
        """Whether this side's direction has ended."""
        return self._send_done or self._fin_waits

    @property
    def recv_done(self) -> bool:
        """Whether the peer's direction has ended."""
        return self._recv_done

    def write(self, data: bytes, fin: bool = False) -> None:
        """Sends bytes, at once or as soon as they may go. After the end of this direction they are dropped."""
        if self._send_done or self._fin_waits:
            return
        mux = self.mux
        size = len(data)
        if (
            not self._queue
            and size <= MUX_MAX_DATA
            and size <= self._send_credit
            and not mux.blocked
            and (self.id or mux.number(self))
        ):
            self._send_credit -= size
            mux.put(_pack_header(DATA, self.priority << 4 | fin, size, self.id), data)
            if fin:
                self._end_sending()
            return
        if size:
            if self._queue is None:
                self._queue = deque()
            # In pieces that a frame takes, so that none is copied again.
            if size <= MUX_MAX_DATA:
                self._queue.append(data)
            else:
                view = memoryview(data)
                self._queue.extend(view[at : at + MUX_MAX_DATA] for at in range(0, size, MUX_MAX_DATA))
            self._queued += size
        self._fin_waits = fin
        mux.has_data(self)

    def finish(self) -> None:
        """Ends this direction in order."""
        self.write(b"", True)

    def reset(self, code: int) -> None:
        """Gives this direction up, and what waits of it, unless it has ended."""
        if self._send_done:
            return
        self._forget_queue()
        self._send_done = True
        if self.id:
            self.mux.control(RESET, self.priority << 4, self.id, _U32.pack(code))
        self._maybe_over()

    def _forget_queue(self) -> None:
        self._queue = None
        self._queued = 0
        self._fin_waits = False

    def _end_sending(self) -> None:
        self._send_done = True
        self._fin_waits = False
        if self._recv_done:
            self.mux.over(self)

    # --- receiving

    def stop(self, code: int) -> None:
        """Wants no more of the peer's direction. What still comes of it is dropped."""
        if self._recv_done:
            return
        self._recv_done = self._stopped = True
        if self.id:
            self.mux.control(STOP, self.priority << 4, self.id, _U32.pack(code))
        self.mux.forget_window(self)
        # The peer's direction has not ended for the peer yet, but nothing that comes of it matters.
        self._maybe_over()

    def consumed(self, size: int) -> None:
        """So many bytes were read: the peer may send more."""
        self._unread -= size
        if self._recv_done:
            return
        window = self._window
        free = window - self._granted - self._unread
        if free * 2 < window:
            return
        window = self.mux.grown_window(self)
        free = window - self._granted - self._unread
        if free > 0:
            self._granted += free
            self.mux.control(WINDOW, self.priority << 4, self.id, _U32.pack(free))

    def _maybe_over(self) -> None:
        if self._send_done and self._recv_done:
            self.mux.over(self)


class Multiplexer:
    """One side of a connection. It does no I/O and keeps no time."""

    def __init__(self, client: bool) -> None:
        self.client = client
        self.streams: dict[int, MuxStream] = {}
        self.error: MuxError | None = None
        """What the peer did wrong."""
        self.closed: tuple[Code, str] | None = None
        """What the peer said when it closed the connection."""
        self._rest = bytearray()
        self._need = 12
        self._greeted = False
        self._next_id = 1 if client else 2
        self._next_remote = 2 if client else 1
        self._streams_left = MUX_MAX_STREAMS
        # Streams of the peer: how many it may still open, and how many are over and not granted again.
        self._remote_left = MUX_MAX_STREAMS
        self._remote_over = 0
        self._unnumbered: deque[MuxStream] = deque()
        self._grown = 0
        self.blocked = False
        """Whether DATA waits: the byte stream below takes no more, or enough is on its way to it."""
        self._ready: tuple[deque[MuxStream], ...] = (deque(), deque(), deque(), deque())
        self._passed = [0.0, 0.0, 0.0, 0.0]
        self._out: list[bytes | memoryview] = [preface(client)]
        self._out_data = 0
        self._pongs = 0
        self.wants_flush: Callable[[], None] = _nothing
        """Called when there is output where there was none."""

    # --- output

    def put(self, header: bytes, data: bytes | memoryview) -> None:
        """Hands out a DATA frame."""
        out = self._out
        if not out:
            self.wants_flush()
        out.append(header)
        out.append(data)
        self._out_data += len(data)
        if self._out_data >= OUTPUT_SOON:
            self.handle_much_output()
            if self._out_data >= OUTPUT_HIGH:
                self.blocked = True

    def handle_much_output(self) -> None:
        """OUTPUT_SOON bytes of DATA, or more, wait to be taken."""

    def control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """Hands out a frame other than DATA."""
        if self.closed is not None or self.error is not None:
            return
        if not self._out:
            self.wants_flush()
        self._out.append(_pack_header(kind, flags, len(payload), stream) + payload)

    def take_output(self) -> bytes:
        """All that is to be written now."""
        out = self._out
        data = b"".join(out)
        out.clear()
        self._out_data = 0
        self._pongs = 0
        return data

    def has_output(self) -> bool:
        """Whether there is something to be written."""
        return bool(self._out)

    def set_writable(self, writable: bool) -> None:
        """Says whether the byte stream below takes DATA. What waits is handed out then."""
        if not writable:
            self.blocked = True
            return
        self.blocked = False
        self._pump()

    def number(self, stream: MuxStream) -> bool:
        """Gives a stream of this side its number, with its first frame. False where the peer has to grant more streams
        first.
        """
        if self._streams_left == 0:
            return False
        self._streams_left -= 1
        stream.id = self._next_id
        self._next_id += 2
        self.streams[stream.id] = stream
        return True

    def has_data(self, stream: MuxStream) -> None:
        """A stream has something that waits."""
        if stream._waits:
            return
        if not self.blocked:
            # Nobody else waits, so it goes on until it has no credit or this side is blocked.
            self._drain(stream, _NO_BOUND)
        if stream._queue or stream._fin_waits:
            self._line_up(stream)

    def _line_up(self, stream: MuxStream) -> None:
        if stream._waits or (stream._queue and stream._send_credit == 0):
            return
        stream._waits = True
        line = self._ready[stream.priority]
        if not line:
            # Whoever had nothing to send for a while goes first, and gains nothing else by it.
            busy = [self._passed[at] for at in range(4) if self._ready[at]]
            self._passed[stream.priority] = max(self._passed[stream.priority], min(busy, default=0.0))
        line.append(stream)

    def _drain(self, stream: MuxStream, most: int) -> int:
        """Hands out what a stream may send of what waits, a frame at least and then up to so many bytes."""
        if not stream._queue and not stream._fin_waits:
            return 0
        if stream.id == 0 and not self.number(stream):
            stream._waits = True
            self._unnumbered.append(stream)
            return 0
        sent = 0
        queue = stream._queue
        flags = stream.priority << 4
        while queue and stream._send_credit and (sent == 0 or sent < most) and not self.blocked:
            data = queue.popleft()
            if len(data) > stream._send_credit:
                queue.appendleft(data[stream._send_credit :])
                data = data[: stream._send_credit]
            size = len(data)
            stream._send_credit -= size
            stream._queued -= size
            sent += size
            last = stream._fin_waits and not queue
            self.put(_pack_header(DATA, flags | last, size, stream.id), data)
            if last:
                stream._end_sending()
        if not queue and stream._fin_waits and not self.blocked:
            self.put(_pack_header(DATA, flags | FIN, 0, stream.id), b"")
            stream._end_sending()
        if not queue and sent:
            stream.handle_writable()
        return sent

    def _pump(self) -> None:
        """Hands out what waits, by priority, until enough is on its way."""
        while not self.blocked:
            ready = [at for at in range(4) if self._ready[at]]
            if not ready:
                return
            at = min(ready, key=lambda at: (self._passed[at], -at))
            stream = self._ready[at].popleft()
            stream._waits = False
            sent = self._drain(stream, MUX_MAX_DATA)
            self._passed[at] += (sent + 64) / _SHARES[at]
            if not stream._waits and (stream._send_credit if stream._queue else stream._fin_waits):
                # Behind the others of its priority, which has had something to send all the time.
                stream._waits = True
                self._ready[at].append(stream)

    def _open_waiting(self) -> None:
        """Goes on with streams that waited for the peer to grant some."""
        while self._unnumbered and self._streams_left:
            stream = self._unnumbered.popleft()
            stream._waits = False
            if stream._queue or stream._fin_waits:
                self.has_data(stream)

    def waiting_streams(self) -> list[MuxStream]:
        """Streams of this side that have no number yet."""
        waiting = [stream for line in (self._unnumbered, *self._ready) for stream in line]
        return [stream for stream in waiting if stream.id == 0]

    def close(self, code: int, reason: str) -> None:
        """Hands out the last frame of this side."""
        payload = _U32.pack(code) + cut(reason, MUX_MAX_REASON).encode()
        self.control(CLOSE, 0, 0, payload)

    # --- windows and numbers of streams

    def grown_window(self, stream: MuxStream) -> int:
        """The window of a stream whose reader reads."""
        if stream._window == MUX_INITIAL_WINDOW:
            self._grown += 1
        share = max(MUX_INITIAL_WINDOW, MUX_RECEIVE_POOL // max(self._grown, 1))
        stream._window = min(max(stream._window * 4, MUX_INITIAL_WINDOW), MUX_STREAM_WINDOW, share)
        if stream._window == MUX_INITIAL_WINDOW:
            self._grown -= 1
        return stream._window

    def forget_window(self, stream: MuxStream) -> None:
        """A stream receives no more."""
        if stream._window > MUX_INITIAL_WINDOW:
            self._grown -= 1
            stream._window = MUX_INITIAL_WINDOW

    def over(self, stream: MuxStream) -> None:
        """Both directions of a stream have ended."""
        number = stream.id
        if self.streams.pop(number, None) is None:
            return
        if number & 1 != self.client:
            self._remote_over += 1
            if self._remote_over >= self._remote_left:
                self._remote_left += self._remote_over
                self.control(STREAMS, 0, 0, _U32.pack(self._remote_over))
                self._remote_over = 0

    # --- input

    def accept(self, number: int, priority: int) -> MuxStream:
        """Makes the stream that the peer has opened. A subclass makes its own kind."""
        raise NotImplementedError

    def handle_datagram(self, data: bytes) -> None:
        """A message that either side may drop."""

    def receive(self, data: bytes) -> None:
        """Hands over the next bytes from the peer. Raises MuxError; the connection is over then."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._need and self._greeted:
                return
            data = bytes(self._rest)
            self._rest.clear()
        try:
            at = 0
            if not self._greeted:
                if not check_preface(data, self.client):
                    self._rest += data
                    return
                self._greeted = True
                at = 12
            self._frames(data, at)
        except MuxError as error:
            if self._greeted:
                self.close(Code.INVALID_ARGUMENT, str(error))
            self.error = error
            raise

    def _frames(self, data: bytes, at: int) -> None:
        size = len(data)
        streams = self.streams
        while size - at >= 12:
            kind, flags, length, number = _unpack_header(data, at)
            begin = at + 12
            end = begin + length
            if kind != DATA or length > MUX_MAX_DATA:
                bounds = _LENGTHS.get(kind)
                if bounds is not None and not bounds[0] <= length <= bounds[1]:
                    raise MuxError(f"a frame of kind {NAMES[kind]} cannot have {length} bytes")
            if end > size:
                self._need = end - at
                break
            at = end
            if kind == DATA:
                stream = streams.get(number) or self._stream(number, flags)
                if stream is None:
                    continue
                if stream._recv_done:
                    if stream._stopped:
                        continue
                    raise MuxError(f"stream {number} carried bytes after its end")
                stream._granted -= length
                if stream._granted < 0:
                    raise MuxError(f"stream {number} carried more than its window")
                stream._unread += length
                if flags & FIN:
                    stream._recv_done = True
                    if stream._window > MUX_INITIAL_WINDOW:
                        self.forget_window(stream)
                    if stream._send_done:
                        self.over(stream)
                    stream.handle_data(data[begin:end], True)
                else:
                    stream.handle_data(data[begin:end], False)
            else:
                self._frame(kind, flags, number, data[begin:end])
                if self.closed is not None:
                    return
        else:
            self._need = 12
        if at < size:
            self._rest += data[at:]

    def _stream(self, number: int, flags: int) -> MuxStream | None:
        """The stream of a frame's number, made if the frame opens it; None for one that is over."""
        stream = self.streams.get(number)
        if stream is not None:
            return stream
        if number == self._next_remote:
            if self._remote_left == 0:
                raise MuxError("more streams were opened than were granted")
            self._remote_left -= 1
            self._next_remote += 2
            stream = self.accept(number, min(flags >> 4, 3))
            stream.id = number
            self.streams[number] = stream
            return stream
        opened = self._next_id if (number & 1) == self.client else self._next_remote
        if number == 0 or number >= opened:
            raise MuxError(f"stream {number} was never opened")
        return None

    def _frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == WINDOW:
            stream = self._stream(number, flags)
            if stream is not None and not stream._send_done:
                stream._send_credit += _U32.unpack(payload)[0]
                if stream._queue:
                    self.has_data(stream)
        elif kind == RESET:
            stream = self._stream(number, flags)
            if stream is not None and not stream._recv_done:
                stream._recv_done = True
                self.forget_window(stream)
                stream._maybe_over()
                stream.handle_reset(_U32.unpack(payload)[0])
        elif kind == STOP:
            stream = self._stream(number, flags)
            if stream is not None and not stream._send_done:
                code = _U32.unpack(payload)[0]
                stream.reset(code)
                stream.handle_stop(code)
        elif kind == STREAMS:
            self._streams_left += _U32.unpack(payload)[0]
            self._open_waiting()
        elif kind == PING:
            if self._pongs < MUX_MAX_PINGS:
                self._pongs += 1
                self.control(PONG, 0, 0, payload)
        elif kind == DATAGRAM:
            self.handle_datagram(payload)
        elif kind == CLOSE:
            self.closed = (Code.of(_U32.unpack(payload[:4])[0]), payload[4:].decode("utf-8", "replace"))
