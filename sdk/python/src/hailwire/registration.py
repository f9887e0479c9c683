"""An agent's place at the node."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from .agents import Agent
from .errors import HailError
from .protocol import frames, headers
from .protocol.msgpack import MalformedError
from .protocol.mux import MuxStream
from .protocol.status import Code, Status

if TYPE_CHECKING:
    from .connection import Connection


class Registration(MuxStream):
    """An agent's place at the node, which lasts while this stream is open."""

    __slots__ = ("_agent", "_leaving", "_reader", "accepted", "ended")

    mux: Connection

    def __init__(self, connection: Connection, agent: Agent) -> None:
        super().__init__(connection, 2)
        self._agent = agent
        self._reader = frames.FrameReader()
        self._leaving = False
        self.accepted: asyncio.Future[None] = connection.loop.create_future()
        """Resolves once the node has accepted; with the reason as its error where it has not."""
        self.ended: asyncio.Future[Status] = connection.loop.create_future()
        """Resolves with the reason once it is over."""

    def start(self) -> None:
        """Asks the node."""
        self.write(frames.frame(frames.REGISTER, self._agent.encoded()))

    def leave(self) -> None:
        """Takes the agent back in order: no new calls are wanted. It is over once those under way have ended."""
        self.finish()

    def drop(self) -> None:
        """Takes the agent back at once."""
        self.reset(Code.CANCELLED)
        self.stop(Code.CANCELLED)
        self._over(Status(Code.CANCELLED, "the agent was taken back"))

    def handle_data(self, data: bytes, fin: bool) -> None:
        if not fin:
            self.consumed(len(data))
        try:
            for kind, payload in self._reader.feed(data):
                if kind == frames.HEAD and not self.accepted.done():
                    self.accepted.set_result(None)
                elif kind == frames.END:
                    self._over(headers.decode_status(payload))
        except (frames.FrameError, MalformedError) as error:
            self._over(Status(Code.INTERNAL, f"what the node says of the registration cannot be read: {error}"))
        if fin:
            self._over(Status(Code.UNAVAILABLE, "the node ended the registration"))

    def handle_reset(self, code: int) -> None:
        self._over(Status(Code.of(code) if code > 1 else Code.UNAVAILABLE, "the node ended the registration"))

    def handle_lost(self) -> None:
        self._over(Status(Code.UNAVAILABLE, "the node is gone"))

    def _over(self, status: Status) -> None:
        if not self.accepted.done():
            refused = status if status.code != Code.OK else Status(Code.INTERNAL, "the node refused without a reason")
            self.accepted.set_exception(HailError.of(refused))
            self.accepted.exception()
        if not self.ended.done():
            self.ended.set_result(status)
        if not self.send_done:
            self.finish()
