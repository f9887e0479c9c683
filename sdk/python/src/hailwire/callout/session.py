"""Runs an agent's handlers for the events of one connection, over any stream of bytes.

Events of one *queue* run one after the other, in their order: the head and body of a request, those of its response,
and everything else of a request are a queue each. Queues run side by side, up to the agent's ``max_concurrency``;
events beyond wait, first come first served. While too much waits, nothing more is read.

A cancel ends a request's handlers with :class:`asyncio.CancelledError`, drops what waits behind them, and nothing of
it is answered; so does the end of the connection. A handler that raises blocks its request with 500, and nothing
else.

One task reads and begins, one writes, and each queue that has to wait has one.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeAlias

from . import frames
from .decisions import Decision, allow, block
from .events import EventKind
from .handshake import WINDOW
from .notices import Notice
from .protocol import AgentProtocol, Asked, Cancelled, Opened

log = logging.getLogger("hailwire.callout")

MAX_WAITING: Final = 1024
"""Events of one connection that may wait, beside what the window of each running queue lets come."""

MAX_NOTICES: Final = 64
"""Notices of one connection that may wait to be written."""

_MAX_WINDOW_CHUNKS: Final = WINDOW // (4 << 10)
_MAX_UNWRITTEN: Final = 1 << 20
_READ: Final = 256 << 10
_END_WITHIN: Final = 5.0
"""Seconds that handlers may take to end when their connection has ended."""


class ByteStream(Protocol):
    """A stream of bytes both ways, such as a socket or a raw stream of the overlay."""

    async def read(self, limit: int, /) -> bytes:
        """Some bytes, about ``limit`` at most; none only at the end."""
        ...

    async def write(self, data: bytes, /) -> None:
        """Writes all of it, and waits while the other side does not take it."""

    async def close(self) -> None:
        """Ends both directions."""


Handler: TypeAlias = Callable[[Any], "Decision | Awaitable[Decision]"]


class Host:
    """A connected host."""

    def __init__(self, session: Session, opened: Opened) -> None:
        self.id = opened.host_id
        """What it calls itself."""
        self.version = opened.host_version
        self.config = opened.config
        """What its handshake brought for this agent."""
        self._session = session

    def notify(self, notice: Notice) -> bool:
        """Tells the host something unasked.

        Returns whether it will be written: not when the connection has ended, or 64 wait.
        """
        return self._session.notify(notice)

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended."""
        return self._session.is_closed

    @property
    def in_flight(self) -> int:
        """Events that are not answered yet."""
        return self._session.unanswered


class SessionCallbacks(Protocol):
    """Whom a session tells what is not an event."""

    def connected(self, host: Host) -> None:
        """The handshake is done."""

    def cancelled(self, correlation_id: str, reason: str) -> None:
        """A host no longer waits for what it asked about a request."""


_Key: TypeAlias = tuple[str, int]


class _Queue:
    """The events of one queue behind the one that runs."""

    __slots__ = ("is_cancelled", "pending", "task", "waiting")

    def __init__(self, pending: Awaitable[Decision]) -> None:
        self.waiting: deque[Asked] = deque()
        self.is_cancelled = False
        self.pending: Awaitable[Decision] | None = pending
        self.task: asyncio.Task[None] | None = None


class Session:
    """One connection of an agent."""

    def __init__(
        self,
        stream: ByteStream,
        protocol: AgentProtocol,
        handlers: dict[EventKind, Handler],
        callbacks: SessionCallbacks,
        max_concurrency: int,
    ) -> None:
        self.is_closed = False
        self.unanswered = 0
        self._stream = stream
        self._protocol = protocol
        self._handlers = handlers
        self._callbacks = callbacks
        self._max = max_concurrency or None
        self._queues: dict[_Key, _Queue] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._backlog: deque[Asked] = deque()
        self._waiting = 0
        self._waiting_bytes = 0
        self._notices = 0
        self._unwritten = asyncio.Event()
        self._written = asyncio.Event()
        self._room = asyncio.Event()
        self._opened = asyncio.Event()
        # An agent that opened the connection speaks first.
        self._unwritten.set()

    async def run(self, handshake_timeout: float) -> None:
        """Serves until the host leaves.

        Raises :class:`ProtocolError`, :class:`RefusedError`, :class:`TimeoutError` or what the stream raises.
        """
        reader = asyncio.create_task(self._read())
        writer = asyncio.create_task(self._write())
        opened = asyncio.create_task(self._opened.wait())
        try:
            await asyncio.wait({reader, writer, opened}, timeout=handshake_timeout, return_when=asyncio.FIRST_COMPLETED)
            if not (opened.done() or reader.done() or writer.done()):
                raise TimeoutError(f"no handshake within {handshake_timeout} s")
            await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
            if reader.done():
                # What was answered before the end, a refusal for one, still goes out.
                await self._flush(writer)
                reader.result()
            else:
                writer.result()
        finally:
            self.is_closed = True
            self._backlog.clear()
            for queue in self._queues.values():
                queue.is_cancelled = True
            rest = {reader, writer, opened, *self._tasks}
            for task in rest:
                task.cancel()
            _, stuck = await asyncio.wait(rest, timeout=_END_WITHIN)
            for task in rest - stuck:
                if not task.cancelled():
                    task.exception()
            if stuck:
                log.warning("%d handlers do not end although they are cancelled", len(stuck))
            await self._stream.close()

    def notify(self, notice: Notice) -> bool:
        """Tells the host something unasked."""
        if self.is_closed or self._notices >= MAX_NOTICES:
            return False
        self._protocol.notify(notice)
        self._notices += 1
        self._unwritten.set()
        return True

    async def _read(self) -> None:
        while data := await self._stream.read(_READ):
            try:
                came = self._protocol.receive(data)
            finally:
                self._unwritten.set()
            for one in came:
                if isinstance(one, Asked):
                    self.unanswered += 1
                    self._begin(one)
                elif isinstance(one, Cancelled):
                    self._cancel(one)
                else:
                    self._opened.set()
                    self._callbacks.connected(Host(self, one))
            while not self._has_room():
                self._room.clear()
                await self._room.wait()

    async def _write(self) -> None:
        while True:
            await self._unwritten.wait()
            self._unwritten.clear()
            self._notices = 0
            while data := self._protocol.take_output():
                await self._stream.write(data)
                self._room.set()
            self._written.set()

    async def _flush(self, writer: asyncio.Task[None]) -> None:
        """Waits until everything is written, or the writer has ended, or it takes too long."""
        self._written.clear()
        self._unwritten.set()
        written = asyncio.create_task(self._written.wait())
        await asyncio.wait({writer, written}, timeout=_END_WITHIN, return_when=asyncio.FIRST_COMPLETED)
        written.cancel()

    def _has_room(self) -> bool:
        queues = len(self._queues)
        return (
            # A request that is slow fills its own window, and leaves others their room.
            self._waiting < MAX_WAITING + _MAX_WINDOW_CHUNKS * queues
            and self._waiting_bytes <= frames.MAX_FRAME + WINDOW * queues
            and self._protocol.output_size <= _MAX_UNWRITTEN
        )

    def _begin(self, asked: Asked) -> None:
        key = _key(asked)
        queue = self._queues.get(key)
        if queue is not None:
            self._wait(asked, queue.waiting)
        elif self._max is not None and len(self._tasks) >= self._max:
            self._wait(asked, self._backlog)
        else:
            self._start(key, asked)

    def _wait(self, asked: Asked, where: deque[Asked]) -> None:
        where.append(asked)
        self._waiting += 1
        self._waiting_bytes += asked.size

    def _waited(self, asked: Asked) -> Asked:
        self._waiting -= 1
        self._waiting_bytes -= asked.size
        self._room.set()
        return asked

    def _start(self, key: _Key, asked: Asked) -> None:
        pending = self._handle(asked)
        if pending is None:
            return
        queue = _Queue(pending)
        task = asyncio.create_task(self._run_queue(key, queue, asked))
        queue.task = task
        self._queues[key] = queue
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._ended(task, queue))

    def _handle(self, asked: Asked) -> Awaitable[Decision] | None:
        """Calls an event's handler. What it says at once is answered; otherwise it is returned to be awaited."""
        handler = self._handlers.get(asked.kind)
        if handler is None:
            self._answer(asked, allow())
            return None
        try:
            result = handler(asked.event)
        except Exception:
            self._failed(asked)
            return None
        if inspect.isawaitable(result):
            return result
        self._answer(asked, result)
        return None

    async def _run_queue(self, key: _Key, queue: _Queue, asked: Asked) -> None:
        while True:
            if queue.pending is not None:
                try:
                    decision = await queue.pending
                except asyncio.CancelledError:
                    if queue.is_cancelled:
                        raise
                    # The handler gave up by itself, and the host still waits.
                    self._failed(asked)
                except Exception:
                    if queue.is_cancelled:
                        return
                    self._failed(asked)
                else:
                    if queue.is_cancelled:
                        return
                    self._answer(asked, decision)
            if not queue.waiting:
                del self._queues[key]
                return
            asked = self._waited(queue.waiting.popleft())
            queue.pending = self._handle(asked)

    def _answer(self, asked: Asked, decision: object) -> None:
        if not isinstance(decision, Decision):
            log.error(
                "the handler of %s returned %r, which is no decision; its request is blocked",
                asked.kind.name.lower(),
                decision,
            )
            decision = block(500)
        self.unanswered -= 1
        self._protocol.answer(asked, decision)
        self._unwritten.set()

    def _failed(self, asked: Asked) -> None:
        """Answers for a handler that raised: whoever cannot decide lets nothing pass."""
        log.exception("the handler of %s failed; its request is blocked", asked.kind.name.lower())
        self._answer(asked, block(500))

    def _ended(self, task: asyncio.Task[None], queue: _Queue) -> None:
        self._tasks.discard(task)
        if inspect.iscoroutine(queue.pending):
            # A task that was cancelled before it began has not awaited it.
            queue.pending.close()
        while self._backlog and not self.is_closed and (self._max is None or len(self._tasks) < self._max):
            self._begin(self._waited(self._backlog.popleft()))
        self._room.set()

    def _cancel(self, cancelled: Cancelled) -> None:
        for part in range(3):
            queue = self._queues.pop((cancelled.correlation_id, part), None)
            if queue is None or queue.task is None:
                continue
            queue.is_cancelled = True
            self.unanswered -= 1 + len(queue.waiting)
            for asked in queue.waiting:
                self._waited(asked)
            queue.task.cancel()
        if self._backlog:
            kept = [one for one in self._backlog if one.correlation_id != cancelled.correlation_id]
            for one in self._backlog:
                if one.correlation_id == cancelled.correlation_id:
                    self._waited(one)
                    self.unanswered -= 1
            self._backlog = deque(kept)
        self._callbacks.cancelled(cancelled.correlation_id, cancelled.reason)


def _key(asked: Asked) -> _Key:
    match asked.kind:
        case EventKind.REQUEST_HEADERS | EventKind.REQUEST_BODY:
            return asked.correlation_id, 0
        case EventKind.RESPONSE_HEADERS | EventKind.RESPONSE_BODY:
            return asked.correlation_id, 1
        case _:
            return asked.correlation_id, 2
