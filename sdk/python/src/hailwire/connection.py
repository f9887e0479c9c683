"""The connection to the node: a Unix socket under the multiplexer, and the control stream.

What is written in one turn of the event loop leaves in one write, or in one for each 16 KiB, so that the node works on
the first of them while the rest is being made. What the socket does not take waits in the streams.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from .errors import HailError
from .protocol import frames, headers
from .protocol.msgpack import MalformedError
from .protocol.mux import Multiplexer, MuxError, MuxStream
from .protocol.status import Code, Status
from .timers import TimerWheel

if TYPE_CHECKING:
    from .client import Client

log = logging.getLogger("hailwire")

VERSION = "0.1.0"
GREETING_PATIENCE = 10.0
READ_BUFFER = 65_536
_CRITICAL = 3
_SESSION_VERSION = 1
_MAX_PING = 64


def task_maker(loop: asyncio.AbstractEventLoop) -> Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]:
    """What makes the tasks of handlers: as the loop does, but nameless, and begun at once where Python can (3.12)."""
    if loop.get_task_factory() is not None:
        return loop.create_task
    if sys.version_info >= (3, 12):
        return partial(asyncio.Task, loop=loop, eager_start=True)
    return partial(asyncio.Task, loop=loop)


class ControlStream(MuxStream):
    """The first stream of a session: greetings, pings, and the word that the node goes."""

    __slots__ = ("connection", "reader")

    mux: Connection

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, _CRITICAL)
        self.connection = connection
        self.reader = frames.FrameReader()

    def greet(self, name: str) -> None:
        """Says which version this side speaks."""
        hello = headers.encode(
            "hello", {"versions": [_SESSION_VERSION], "name": name, "software": f"hailwire-python/{VERSION}"}
        )
        self.write(frames.frame(frames.HELLO, hello))

    def handle_data(self, data: bytes, fin: bool) -> None:
        self.consumed(len(data))
        try:
            for kind, payload in self.reader.feed(data):
                self._frame(kind, payload)
        except (frames.FrameError, MalformedError) as error:
            self.connection.shut(Status(Code.INVALID_ARGUMENT, f"the node's control stream cannot be read: {error}"))
            return
        if fin:
            self.connection.shut(Status(Code.UNAVAILABLE, "the node has ended the session"))

    def handle_reset(self, code: int) -> None:
        self.connection.shut(Status(Code.UNAVAILABLE, "the node has ended the session"))

    def handle_stop(self, code: int) -> None:
        self.connection.shut(Status(Code.UNAVAILABLE, "the node has ended the session"))

    def _frame(self, kind: int, payload: bytes) -> None:
        if kind == frames.HELLO:
            versions = headers.decode("hello", payload)["versions"]
            if not isinstance(versions, list) or _SESSION_VERSION not in versions:
                what = (
                    f"no common protocol version: the peer speaks {versions!r}, this side speaks [{_SESSION_VERSION}]"
                )
                self.connection.shut(
                    Status(Code.FAILED_PRECONDITION, what, "use the same release of Hailwire for both")
                )
                return
            self.connection.handle_greeted()
        elif kind == frames.PING:
            if len(payload) > _MAX_PING:
                raise MalformedError(f"a ping carries {len(payload)} bytes, more than {_MAX_PING}")
            self.write(frames.frame(frames.PONG, payload))
        elif kind == frames.GOING_AWAY:
            reason = headers.decode("going_away", payload)["reason"]
            self.connection.going_away = Status(
                Code.UNAVAILABLE, f"the node is going away: {reason!s}" if reason else "the node is going away"
            )


class Connection(Multiplexer, asyncio.BufferedProtocol):
    """One attachment to the node."""

    def __init__(self, client: Client, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(client=True)
        self.owner = client
        self.loop = loop
        self.thread = threading.get_ident()
        self.wheel = TimerWheel(loop)
        self.transport: asyncio.Transport | None = None
        self.going_away: Status | None = None
        """Why no new stream is opened, if so."""
        self.ended: Status | None = None
        """Why the attachment is over, if it is."""
        self.greeted: asyncio.Future[None] = loop.create_future()
        self.lost: asyncio.Future[Status] = loop.create_future()
        self.create_task = task_maker(loop)
        self._buffer = memoryview(bytearray(READ_BUFFER))
        self._paused = False
        self._flushing = False
        self.wants_flush = self._schedule
        self.control_stream = ControlStream(self)

    # --- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=131_072)
        self.control_stream.greet(self.owner.name)
        # The multiplexer's preface was there before there was a loop to write it.
        self._schedule()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go. A buffer of its own: the loop would make one of 256 KiB for each read, which takes
        longer than a call.
        """
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes have come."""
        self.data_received(bytes(self._buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """These bytes have come."""
        try:
            self.receive(data)
        except MuxError as error:
            self.shut(Status(Code.INVALID_ARGUMENT, f"the node broke the protocol: {error}"), tell=False)
            return
        if self.closed is not None:
            code, reason = self.closed
            code = Code.UNAVAILABLE if code == Code.OK else code
            self.shut(Status(code, reason or "the node has closed the connection"), tell=False)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.shut(Status(Code.UNAVAILABLE, f"the node is gone: {exc}" if exc else "the node is gone"), tell=False)

    def pause_writing(self) -> None:
        self._paused = True
        self.set_writable(False)

    def resume_writing(self) -> None:
        self._paused = False
        self._schedule()

    def handle_much_output(self) -> None:
        if self.transport is not None and not self._paused and self.ended is None:
            self.transport.write(self.take_output())

    def _schedule(self) -> None:
        if not self._flushing:
            self._flushing = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        transport = self.transport
        if transport is None or self._paused or self.ended is not None:
            return
        if self.has_output():
            transport.write(self.take_output())
        if self.blocked and not self._paused:
            # `_flushing` stays unset: what is handed out now asks for a flush by itself.
            self.set_writable(True)

    # --- the session

    def accept(self, number: int, priority: int) -> MuxStream:
        return self.owner.accept_stream(self, priority)

    def handle_greeted(self) -> None:
        """The node has greeted, and speaks this version."""
        if not self.greeted.done():
            self.greeted.set_result(None)

    def check_open(self) -> None:
        """Raises HailError where no stream can be opened any more."""
        why = self.ended or self.going_away
        if why is not None:
            raise HailError.of(why)

    def shut(self, why: Status, tell: bool = True) -> None:
        """Ends the attachment: all that is under way ends with this status."""
        if self.ended is not None:
            return
        self.ended = why
        self.owner.handle_lost(self)
        if tell and self.closed is None:
            self.close(Code.OK if why.code == Code.UNAVAILABLE else why.code, why.message)
        if self.transport is not None:
            if self.has_output() and not self.transport.is_closing():
                self.transport.write(self.take_output())
            self.transport.close()
        self.wheel.close()
        for stream in (*self.streams.values(), *self.waiting_streams()):
            stream.handle_lost()
        self.streams.clear()
        if not self.greeted.done():
            self.greeted.set_exception(HailError.of(why))
            # Whoever attaches may have given up.
            self.greeted.exception()
        if not self.lost.done():
            self.lost.set_result(why)

    def detach(self) -> None:
        """Leaves the node in order."""
        if self.ended is None:
            self.close(Code.OK, "the program has detached")
            self.shut(Status(Code.UNAVAILABLE, "this program has detached"), tell=False)
