"""An inspection agent: its handlers, and how it is served.

::

    from hailwire import callout

    agent = callout.Agent("my-waf", version="1.0")

    @agent.request_headers
    async def check(request: callout.RequestHeaders) -> callout.Decision:
        return callout.block(403) if request.uri.startswith("/admin") else callout.allow()

    agent.run("agent.sock")

A handler may be a coroutine function or a plain one; a plain one runs in the event loop and must return quickly.
Handlers of different requests run side by side, those of one request one after the other.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import re
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, TypeAlias, TypeVar

from .codec import Encoding
from .decisions import Decision
from .events import (
    BodyChunk,
    Configure,
    EventKind,
    Guardrail,
    RequestComplete,
    RequestHeaders,
    ResponseHeaders,
    WebSocketFrame,
)
from .frames import ProtocolError
from .handshake import WINDOW, AgentLimits, Capabilities, Features
from .notices import Health, HealthState, Notice
from .protocol import AgentProtocol, ProtocolOptions, Registration
from .session import ByteStream, Handler, Host, Session
from .unix_socket import SocketStream, UnixListener

log = logging.getLogger("hailwire.callout")

_Answer: TypeAlias = "Decision | Awaitable[Decision]"
_Any = TypeVar("_Any", bound=Handler)
_RequestHeaders = TypeVar("_RequestHeaders", bound=Callable[[RequestHeaders], _Answer])
_BodyChunk = TypeVar("_BodyChunk", bound=Callable[[BodyChunk], _Answer])
_ResponseHeaders = TypeVar("_ResponseHeaders", bound=Callable[[ResponseHeaders], _Answer])
_RequestComplete = TypeVar("_RequestComplete", bound=Callable[[RequestComplete], _Answer])
_WebSocketFrame = TypeVar("_WebSocketFrame", bound=Callable[[WebSocketFrame], _Answer])
_Guardrail = TypeVar("_Guardrail", bound=Callable[[Guardrail], _Answer])
_Configure = TypeVar("_Configure", bound=Callable[[Configure], _Answer])
_Connected = TypeVar("_Connected", bound=Callable[[Host], object])
_Cancelled = TypeVar("_Cancelled", bound=Callable[[str, str], object])

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_LEAST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 30.0


class Agent:
    """An inspection agent. Each event has a decorator, and each may be left out: hosts are told which are there."""

    def __init__(
        self,
        name: str,
        *,
        version: str = "",
        limits: AgentLimits | None = None,
        encodings: tuple[Encoding, ...] = (Encoding.MESSAGE_PACK, Encoding.JSON),
        extensions: bool = True,
        window: int = WINDOW,
        handshake_timeout: float = 10.0,
        max_connections: int = 1024,
    ) -> None:
        """``name`` has letters, digits and ``-_.``; ``handshake_timeout`` is in seconds.

        Of ``max_connections`` hosts through one listener the next is accepted when another has left. Raises
        :class:`ValueError` for a name that cannot be.
        """
        if not _NAME.fullmatch(name):
            raise ValueError(f"an agent's name is 1 to 64 letters, digits and -_., not {name!r}")
        self.name = name
        self.version = version
        self.limits = limits or AgentLimits()
        self._options = ProtocolOptions(tuple(encodings), extensions, window)
        self._handshake_timeout = handshake_timeout
        self._max_connections = max_connections
        self._handlers: dict[EventKind, Handler] = {}
        self._connected: list[Callable[[Host], object]] = []
        self._cancelled: list[Callable[[str, str], object]] = []
        self._hosts: set[Host] = set()

    def request_headers(self, handler: _RequestHeaders) -> _RequestHeaders:
        """The head of a request."""
        return self._add(EventKind.REQUEST_HEADERS, handler)

    def request_body(self, handler: _BodyChunk) -> _BodyChunk:
        """A chunk of a request's body."""
        return self._add(EventKind.REQUEST_BODY, handler)

    def response_headers(self, handler: _ResponseHeaders) -> _ResponseHeaders:
        """The head of a response."""
        return self._add(EventKind.RESPONSE_HEADERS, handler)

    def response_body(self, handler: _BodyChunk) -> _BodyChunk:
        """A chunk of a response's body."""
        return self._add(EventKind.RESPONSE_BODY, handler)

    def request_complete(self, handler: _RequestComplete) -> _RequestComplete:
        """A request has ended. The decision is not looked at."""
        return self._add(EventKind.REQUEST_COMPLETE, handler)

    def websocket_frame(self, handler: _WebSocketFrame) -> _WebSocketFrame:
        """A WebSocket frame."""
        return self._add(EventKind.WEBSOCKET_FRAME, handler)

    def guardrail(self, handler: _Guardrail) -> _Guardrail:
        """A text for or from a language model; see :class:`~hailwire.callout.Findings`."""
        return self._add(EventKind.GUARDRAIL, handler)

    def configure(self, handler: _Configure) -> _Configure:
        """A new configuration. Whatever is not an allow refuses it."""
        return self._add(EventKind.CONFIGURE, handler)

    def connected(self, callback: _Connected) -> _Connected:
        """A host has connected. It may be told things from now on, until its connection ends."""
        self._connected.append(callback)
        return callback

    def cancelled(self, callback: _Cancelled) -> _Cancelled:
        """A host no longer waits for a request, with its id and the reason. Its handlers are cancelled besides."""
        self._cancelled.append(callback)
        return callback

    @property
    def hosts(self) -> list[Host]:
        """The hosts that are connected."""
        return [host for host in self._hosts if not host.is_closed]

    @property
    def capabilities(self) -> Capabilities:
        """What hosts are told."""
        events = frozenset(self._handlers)
        features = Features(
            streaming_body=not events.isdisjoint({EventKind.REQUEST_BODY, EventKind.RESPONSE_BODY}),
            websocket=EventKind.WEBSOCKET_FRAME in events,
            guardrails=EventKind.GUARDRAIL in events,
            config_push=EventKind.CONFIGURE in events,
            concurrent_requests=self.limits.max_concurrency,
        )
        return Capabilities(self.name, self.name, self.version, events, features, self.limits)

    def notify(self, notice: Notice) -> None:
        """Tells every host something unasked."""
        for host in self.hosts:
            host.notify(notice)

    def run(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        ready: Callable[[], object] | None = None,
        drain_within: float = 5.0,
    ) -> None:
        """Serves at a Unix socket until SIGINT or SIGTERM, then drains; ``ready`` is called once it listens.

        Without a path the socket is the one that ``HAIL_SOCKET`` names, as ``hail callout agent`` does for its
        program. Raises :class:`ValueError` without either, and as :meth:`serve`.
        """
        path = path or os.environ.get("HAIL_SOCKET")
        if not path:
            raise ValueError("no socket to listen at: give its path, or name it in HAIL_SOCKET")
        asyncio.run(self._run(path, ready, drain_within))

    async def serve(self, path: str | os.PathLike[str], *, ready: Callable[[], object] | None = None) -> None:
        """Serves at a Unix socket, which only this user may connect to, until it is cancelled.

        Raises :class:`OSError` of the socket; what happens to one connection ends that one. A cancel closes every
        connection and cancels its handlers.
        """
        listener = UnixListener(os.fspath(path))
        places = asyncio.Semaphore(self._max_connections)
        connections: set[asyncio.Task[None]] = set()
        try:
            if ready is not None:
                ready()
            while True:
                await places.acquire()
                try:
                    connection = await listener.accept()
                except OSError as error:
                    if not _is_passing(error):
                        raise
                    log.warning("accepting a connection from a host failed: %s", error)
                    places.release()
                    await asyncio.sleep(0.05)
                    continue
                task = asyncio.create_task(self._serve_accepted(connection, places))
                connections.add(task)
                task.add_done_callback(connections.discard)
        finally:
            listener.close()
            for task in connections:
                task.cancel()
            await asyncio.gather(*connections, return_exceptions=True)

    async def serve_stream(self, stream: ByteStream) -> None:
        """Serves one host over any stream of bytes that it opened, until it leaves, and closes the stream.

        Raises :class:`ProtocolError`, :class:`TimeoutError` where the handshake takes too long, or what the stream
        raises.
        """
        await self._serve(stream, None)

    async def connect(self, path: str | os.PathLike[str], *, token: str | None = None, metadata: object = None) -> None:
        """Connects to a host that listens at a Unix socket for agents, and serves it; again and again, when the
        connection ends.

        The pauses between attempts grow from 0.1 to 30 seconds. Raises :class:`RefusedError` where the host does not
        want this agent; anything else is tried again.
        """
        pause = _LEAST_PAUSE
        while True:
            started = time.monotonic()
            try:
                stream = await SocketStream.connect(os.fspath(path))
                await self.register_stream(stream, token=token, metadata=metadata)
                log.info("host disconnected")
            except (OSError, ProtocolError, TimeoutError, asyncio.TimeoutError) as error:
                log.info("host unreachable: %s", error)
            if time.monotonic() - started > _LONGEST_PAUSE:
                pause = _LEAST_PAUSE
            # Shortened by up to half, so that many agents do not come at once.
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def register_stream(self, stream: ByteStream, *, token: str | None = None, metadata: object = None) -> None:
        """Registers with a host over a stream of bytes that this agent opened, and serves it until it leaves.

        Raises :class:`RefusedError`, and as :meth:`serve_stream`.
        """
        await self._serve(stream, Registration(token, metadata))

    async def drain(self, within: float) -> bool:
        """Tells every host that this agent drains, and waits until it has answered everything.

        Returns whether it has, in ``within`` seconds.
        """
        in_flight = sum(host.in_flight for host in self.hosts)
        health = Health(HealthState.DRAINING, drain_eta_ms=int(within * 1000))
        for host in self.hosts:
            host.notify(replace(health, in_flight=host.in_flight))
        deadline = time.monotonic() + within
        while in_flight and time.monotonic() < deadline:
            await asyncio.sleep(min(0.02, within))
            in_flight = sum(host.in_flight for host in self.hosts)
        return not in_flight

    async def _run(self, path: str | os.PathLike[str], ready: Callable[[], object] | None, drain_within: float) -> None:
        loop = asyncio.get_running_loop()
        stopped = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)
        serving = asyncio.create_task(self.serve(path, ready=ready))
        stopping = asyncio.create_task(stopped.wait())
        try:
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
            await self.drain(drain_within)
        finally:
            for task in (serving, stopping):
                task.cancel()
            await asyncio.gather(serving, stopping, return_exceptions=True)

    async def _serve_accepted(self, connection: socket.socket, places: asyncio.Semaphore) -> None:
        try:
            await self._serve(await SocketStream.accepted(connection), None)
            log.debug("host disconnected")
        except (OSError, ProtocolError, TimeoutError, asyncio.TimeoutError) as error:
            log.warning("connection to a host lost: %s", error)
        except Exception:
            log.exception("connection to a host lost")
        finally:
            connection.close()
            places.release()

    async def _serve(self, stream: ByteStream, registration: Registration | None) -> None:
        protocol = AgentProtocol(self.capabilities, self._options, registration)
        callbacks = _Callbacks(self._connected, self._cancelled, self._hosts)
        session = Session(stream, protocol, self._handlers, callbacks, self.limits.max_concurrency)
        try:
            await session.run(self._handshake_timeout)
        finally:
            if callbacks.host is not None:
                self._hosts.discard(callbacks.host)

    def _add(self, kind: EventKind, handler: _Any) -> _Any:
        if kind in self._handlers:
            raise ValueError(f"there is a handler for {kind.name.lower()} already")
        self._handlers[kind] = handler
        return handler


class _Callbacks:
    """Tells an agent's callbacks about one connection. What they raise is logged, and ends nothing."""

    def __init__(
        self,
        connected: list[Callable[[Host], object]],
        cancelled: list[Callable[[str, str], object]],
        hosts: set[Host],
    ) -> None:
        self.host: Host | None = None
        self._connected = connected
        self._cancelled = cancelled
        self._hosts = hosts

    def connected(self, host: Host) -> None:
        self.host = host
        self._hosts.add(host)
        for callback in self._connected:
            try:
                callback(host)
            except Exception:
                log.exception("a callback for a connected host failed")

    def cancelled(self, correlation_id: str, reason: str) -> None:
        for callback in self._cancelled:
            try:
                callback(correlation_id, reason)
            except Exception:
                log.exception("a callback for a cancelled request failed")


def _is_passing(error: OSError) -> bool:
    """Whether others may be accepted later."""
    return error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ECONNABORTED, errno.EINTR)
