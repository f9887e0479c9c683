"""The agent's side of one connection, without I/O.

Bytes go in with :meth:`AgentProtocol.receive`, which says what came of them; bytes to write come out of
:meth:`AgentProtocol.take_output`. Pings, handshakes and events that cannot be read are answered here. An event that
cannot be read is answered with a block of status 500, never with an allow; when not even its request can be found in
it, the connection ends.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final, TypeAlias

from . import frames, salvage
from .codec import DecodeError, Encoding, decode_json
from .decisions import VERSION, Decision, block
from .events import Event, EventKind, Record, decode_event
from .frames import FrameBuffer, ProtocolError
from .handshake import (
    WINDOW,
    Capabilities,
    Extensions,
    decode_handshake,
    decode_registration_response,
    encode_handshake_response,
    encode_registration,
)
from .notices import Notice, encode_notice

log = logging.getLogger("hailwire.callout")

_CANCEL_REASONS: Final = (
    "client_disconnect",
    "timeout",
    "blocked_by_agent",
    "upstream_error",
    "proxy_shutdown",
    "manual",
)


class HandshakeError(ProtocolError):
    """What the other side sent is no handshake that this agent can answer."""


class RefusedError(Exception):
    """The host does not want this agent."""


@dataclass(slots=True, frozen=True)
class ProtocolOptions:
    """What an agent speaks."""

    encodings: tuple[Encoding, ...] = (Encoding.MESSAGE_PACK, Encoding.JSON)
    """The best first. A host that speaks none of them gets JSON."""
    extensions: bool = True
    """Whether what only Hailwire speaks is agreed to."""
    window: int = WINDOW
    """Bytes of one direction of a request's body that may be on their way."""


@dataclass(slots=True, frozen=True)
class Registration:
    """What an agent shows to a host that it connects to."""

    token: str | None = None
    metadata: object = None


@dataclass(slots=True)
class Opened:
    """The handshake is done."""

    host_id: str
    host_version: str
    config: object


@dataclass(slots=True)
class Asked:
    """An event, and what to answer it to: its number, or else its request."""

    kind: EventKind
    event: Event
    correlation_id: str
    size: int
    number: int | None = None


@dataclass(slots=True)
class Cancelled:
    """The host no longer waits for what it asked about a request."""

    correlation_id: str
    reason: str


Incoming: TypeAlias = Opened | Asked | Cancelled


class AgentProtocol:
    """One connection: a handshake, then events in and answers out."""

    def __init__(
        self,
        capabilities: Capabilities,
        options: ProtocolOptions,
        registration: Registration | None = None,
    ) -> None:
        self.is_open = False
        """Whether the handshake is done."""
        self.encoding = Encoding.JSON
        """The encoding of everything after the handshake."""
        self.is_numbered = False
        """Whether both sides are Hailwire."""
        self._capabilities = capabilities
        self._options = options
        self._registers = registration is not None
        self._incoming = FrameBuffer()
        self._output = bytearray()
        if registration is not None:
            ours = self._extensions(list(options.encodings)) if options.extensions else None
            said = encode_registration(capabilities, registration.token, registration.metadata, ours)
            self._output += frames.frame(frames.HANDSHAKE, said)

    def receive(self, data: bytes) -> list[Incoming]:
        """Takes what was read, and says what came.

        Raises :class:`ProtocolError` or :class:`RefusedError` where the connection ends.
        """
        self._incoming.feed(data)
        came: list[Incoming] = []
        while (frame := self._incoming.next()) is not None:
            kind, payload = frame
            if self.is_open:
                self._frame(kind, payload, came)
            elif self._registers:
                came.append(self._registered(kind, payload))
            else:
                came.append(self._greeted(kind, payload))
        return came

    def answer(self, asked: Asked, decision: Decision) -> None:
        """Answers an event. What cannot be written is answered with a block, since nobody else would tell the host."""
        try:
            self._output += self._answer(asked.number, asked.correlation_id, decision)
        except (ValueError, TypeError, OverflowError, RecursionError, AttributeError) as error:
            log.warning("answer could not be written; its request is blocked: %s", error)
            self._output += self._answer(asked.number, asked.correlation_id, block(500))

    def notify(self, notice: Notice) -> None:
        """Tells the host something unasked.

        Raises :class:`ValueError` or :class:`TypeError` for what has no form on the wire.
        """
        self._output += frames.frame(*encode_notice(notice, self.encoding))

    @property
    def output_size(self) -> int:
        """Bytes that wait to be written."""
        return len(self._output)

    def take_output(self) -> bytes:
        """Takes what is to be written."""
        taken = bytes(self._output)
        self._output.clear()
        return taken

    def _answer(self, number: int | None, correlation_id: str, decision: Decision) -> bytes:
        if number is None:
            return frames.answer_frame(correlation_id, decision, self.encoding)
        return frames.numbered_answer_frame(number, decision, self.encoding)

    def _extensions(self, encodings: list[Encoding]) -> Extensions:
        return Extensions(True, self._options.window, encodings)

    def _greeted(self, kind: int, payload: bytes) -> Opened:
        if kind != frames.HANDSHAKE:
            raise HandshakeError(f"expected a handshake frame, got frame type {kind:#04x}")
        try:
            hello = decode_handshake(payload)
            if VERSION not in hello.supported_versions:
                raise DecodeError(f"version {VERSION} is spoken")
        except DecodeError as error:
            said = encode_handshake_response(self._capabilities, Encoding.JSON, None, str(error))
            self._output += frames.frame(frames.HANDSHAKE_ANSWER, said)
            raise HandshakeError(f"invalid handshake: {error}") from None
        spoken = [one for one in hello.supported_encodings if one in self._options.encodings]
        self.encoding = spoken[0] if spoken else Encoding.JSON
        agreed = None
        if self._options.extensions and hello.extensions is not None and hello.extensions.raw_bodies:
            agreed = self._extensions([])
            agreed.window = min(agreed.window, hello.extensions.window)
        said = encode_handshake_response(self._capabilities, self.encoding, agreed)
        self._output += frames.frame(frames.HANDSHAKE_ANSWER, said)
        self.is_numbered = agreed is not None
        self.is_open = True
        return Opened(hello.proxy_id, hello.proxy_version, hello.config)

    def _registered(self, kind: int, payload: bytes) -> Opened:
        if kind != frames.HANDSHAKE_ANSWER:
            raise HandshakeError(f"expected a handshake answer, got frame type {kind:#04x}")
        try:
            answer = decode_registration_response(payload)
        except DecodeError as error:
            raise HandshakeError(f"invalid handshake: {error}") from None
        if not answer.success:
            raise RefusedError(answer.error or "refused by the host")
        agreed = answer.extensions if self._options.extensions else None
        if agreed is not None:
            self.encoding = agreed.encodings[0] if agreed.encodings else Encoding.JSON
            self.is_numbered = agreed.raw_bodies
            if self.encoding is not Encoding.JSON and self.encoding not in self._options.encodings:
                raise HandshakeError(f"the host chose an encoding that was not offered: {self.encoding.value}")
        self.is_open = True
        return Opened(answer.proxy_id, answer.proxy_version, None)

    def _frame(self, kind: int, payload: bytes, came: list[Incoming]) -> None:
        if self.is_numbered and kind in (frames.NUMBERED_EVENT, frames.NUMBERED_CHUNK):
            self._numbered(kind, payload, came)
        elif 0x10 <= kind <= 0x17:
            self._event(EventKind(kind), payload, came)
        elif kind == frames.CANCEL:
            try:
                record = Record(decode_json(payload), ())
                reason = record.value("reason")
                known = type(reason) is int and 0 <= reason < len(_CANCEL_REASONS)
                name = _CANCEL_REASONS[reason] if known and isinstance(reason, int) else "manual"
                came.append(Cancelled(record.text("correlation_id"), name))
            except DecodeError as error:
                log.debug("cancel that cannot be read ignored: %s", error)
        elif kind == frames.PING:
            self._output += frames.frame(frames.PONG, payload)
        elif kind in frames.KNOWN_TYPES:
            log.debug("frame for the other direction ignored: %#04x", kind)
        else:
            raise ProtocolError(f"unknown frame type {kind:#04x}")

    def _event(self, kind: EventKind, payload: bytes, came: list[Incoming]) -> None:
        try:
            event = decode_event(kind, payload, self.encoding)
        except DecodeError as error:
            correlation_id = salvage.event_id(payload, self.encoding)
            if correlation_id is None:
                raise ProtocolError(f"event of nobody: {error}") from None
            self._unreadable(None, correlation_id, error)
            return
        came.append(Asked(kind, event, event.correlation_id, len(payload)))

    def _numbered(self, code: int, payload: bytes, came: list[Incoming]) -> None:
        try:
            number = frames.take_number(payload)
        except DecodeError as error:
            raise ProtocolError(f"event of nobody: {error}") from None
        try:
            event: Event
            if code == frames.NUMBERED_CHUNK:
                event = chunk = frames.take_chunk(payload)
                kind = EventKind.RESPONSE_BODY if chunk.of_response else EventKind.REQUEST_BODY
            else:
                kind, said = frames.take_event_head(payload)
                event = decode_event(kind, said, self.encoding)
        except DecodeError as error:
            self._unreadable(number, "", error)
            return
        came.append(Asked(kind, event, event.correlation_id, len(payload), number))

    def _unreadable(self, number: int | None, correlation_id: str, error: DecodeError) -> None:
        log.warning("event could not be decoded; its request is blocked: %s", error)
        self._output += self._answer(number, correlation_id, block(500))
