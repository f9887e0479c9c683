"""Frames: what travels over a connection.

====== ====================== =========================================================================
offset bytes                  meaning
====== ====================== =========================================================================
0      4                      length of type and payload together, big-endian: 1 to 16,777,216
4      1                      type
5      length - 1             payload
====== ====================== =========================================================================

Another length ends the connection. Between two of Hailwire four more types are spoken once the handshake has agreed
on them (``spec/callout-extensions.md``): events and answers that have numbers, and chunks of bodies as the bytes that
they are.
"""

from __future__ import annotations

import struct
from typing import Final

from .codec import DecodeError, Encoding
from .decisions import Decision, encode_decision
from .events import BodyChunk, EventKind

MAX_FRAME: Final = 16 << 20
"""The greatest length, of type and payload together."""

HANDSHAKE: Final = 0x01
HANDSHAKE_ANSWER: Final = 0x02
ANSWER: Final = 0x20
CANCEL: Final = 0x40
PING: Final = 0x41
PONG: Final = 0x42
NUMBERED_EVENT: Final = 0x50
NUMBERED_ANSWER: Final = 0x51
NUMBERED_CHUNK: Final = 0x52
NUMBERED_ANSWER_DATA: Final = 0x53

KNOWN_TYPES: Final = frozenset(
    {HANDSHAKE, HANDSHAKE_ANSWER, ANSWER, CANCEL, PING, PONG, 0x30, 0x31, 0x32, 0x33}
    | {int(kind) for kind in EventKind}
)
"""The types that every peer knows."""

_OF_RESPONSE, _LAST, _SIZED = 1, 2, 4
_CHUNK = struct.Struct(">QBIQQH")
_ANSWER_DATA = struct.Struct(">QBII")


class ProtocolError(Exception):
    """The other side does not speak the protocol: the connection ends."""


class FrameBuffer:
    """Bytes that arrived, until they are whole frames. Holds at most one frame, and what one read brought after it."""

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        """Appends what was read."""
        self._bytes += data

    def next(self) -> tuple[int, bytes] | None:
        """Takes the type and payload of the first whole frame.

        Raises :class:`ProtocolError` for a length that cannot be.
        """
        held = self._bytes
        if len(held) < 4:
            return None
        length = int.from_bytes(held[:4], "big")
        if not 1 <= length <= MAX_FRAME:
            raise ProtocolError(f"invalid frame length {length}: must be 1 to 16,777,216")
        if len(held) < 4 + length:
            return None
        kind, payload = held[4], bytes(memoryview(held)[5 : 4 + length])
        del held[: 4 + length]
        return kind, payload


def frame(kind: int, payload: bytes) -> bytes:
    """A frame. Raises :class:`ValueError` for a payload that is too large."""
    if len(payload) >= MAX_FRAME:
        raise ValueError(f"payload of {len(payload)} bytes is too large: at most 16,777,215")
    return (1 + len(payload)).to_bytes(4, "big") + bytes((kind,)) + payload


def take_number(payload: bytes) -> int:
    """The number of an event or chunk. Raises :class:`DecodeError`: whose it is cannot be known."""
    if len(payload) < 8:
        raise DecodeError("truncated frame")
    return int.from_bytes(payload[:8], "big")


def take_event_head(payload: bytes) -> tuple[EventKind, bytes]:
    """The kind and the payload of an event after its number. Raises :class:`DecodeError`."""
    if len(payload) < 9:
        raise DecodeError("truncated frame")
    try:
        return EventKind(payload[8]), payload[9:]
    except ValueError:
        raise DecodeError(f"unknown event code {payload[8]:#04x}") from None


def take_chunk(payload: bytes) -> BodyChunk:
    """A chunk of a body, as the bytes that it is. Raises :class:`DecodeError`."""
    if len(payload) < _CHUNK.size:
        raise DecodeError("truncated frame")
    _, flags, index, transferred, total, length = _CHUNK.unpack_from(payload)
    if flags & ~(_OF_RESPONSE | _LAST | _SIZED):
        raise DecodeError(f"unknown flags {flags:#04x}")
    start = _CHUNK.size + length
    if len(payload) < start:
        raise DecodeError("truncated id")
    try:
        correlation_id = payload[_CHUNK.size : start].decode()
    except UnicodeDecodeError:
        raise DecodeError("id is not UTF-8") from None
    return BodyChunk(
        correlation_id,
        payload[start:],
        bool(flags & _LAST),
        total if flags & _SIZED else None,
        index,
        transferred,
        bool(flags & _OF_RESPONSE),
    )


def answer_frame(correlation_id: str, decision: Decision, encoding: Encoding) -> bytes:
    """The frame of an answer. Raises :class:`ValueError` or :class:`TypeError` for what has no form on the wire."""
    return frame(ANSWER, encode_decision(correlation_id, decision, encoding))


def numbered_answer_frame(number: int, decision: Decision, encoding: Encoding) -> bytes:
    """The frame of an answer to an event with a number. Raises as :func:`answer_frame`."""
    data = _only_data(decision)
    if data is None:
        said = b"" if decision.says_nothing() else encode_decision("", decision, encoding)
        return frame(NUMBERED_ANSWER, number.to_bytes(8, "big") + said)
    of_response, index, replacement = data
    rest = Decision(
        decision.verdict,
        decision.request_headers,
        decision.response_headers,
        decision.routing_metadata,
        decision.audit,
        decision.needs_more,
        websocket=decision.websocket,
    )
    said = b"" if rest.says_nothing() else encode_decision("", rest, encoding)
    head = _ANSWER_DATA.pack(number, _OF_RESPONSE if of_response else 0, index, len(said))
    return frame(NUMBERED_ANSWER_DATA, head + said + replacement)


def _only_data(decision: Decision) -> tuple[bool, int, bytes] | None:
    """What replaces a chunk, where that is of one direction only."""
    request, response = decision.request_body, decision.response_body
    if (request is None) == (response is None):
        return None
    mutation = request if request is not None else response
    if mutation is None or mutation.data is None:
        return None
    return response is not None, mutation.index, mutation.data
