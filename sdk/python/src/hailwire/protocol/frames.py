"""The frames of a stream: a kind, a length of 24 bits, a payload (spec/session.md, "Frames").

`FrameReader` cuts what arrives into frames. It hands on the bytes of `DATA` as they come and holds no more than one
header.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from .limits import MAX_HEADER

HELLO: Final = 0x01
CALL: Final = 0x02
SEND: Final = 0x03
STREAM: Final = 0x04
REGISTER: Final = 0x05
HEAD: Final = 0x10
DATA: Final = 0x11
END: Final = 0x12
PING: Final = 0x20
PONG: Final = 0x21
GOING_AWAY: Final = 0x22
OFFERS: Final = 0x23
MORE_OFFERS: Final = 0x24

KINDS: Final = {
    "HELLO": HELLO,
    "CALL": CALL,
    "SEND": SEND,
    "STREAM": STREAM,
    "REGISTER": REGISTER,
    "HEAD": HEAD,
    "DATA": DATA,
    "END": END,
    "PING": PING,
    "PONG": PONG,
    "GOING_AWAY": GOING_AWAY,
    "OFFERS": OFFERS,
    "MORE_OFFERS": MORE_OFFERS,
}
"""Every kind by its name."""
_KNOWN: Final = frozenset(KINDS.values())

DATA_KIND: Final = b"\x11"
END_OK: Final = b"\x12\x00\x00\x00"

SMALL_BODY: Final = 16_000
"""Bytes of a body that leaves in one write with all that stands around it: one frame of the multiplexer takes both."""
LARGE_FRAME: Final = 1 << 20


class FrameError(ValueError):
    """A stream that cannot be read any further."""


class HeaderTooLargeError(FrameError):
    """A frame other than DATA that is longer than MAX_HEADER."""

    def __init__(self, kind: int, size: int) -> None:
        super().__init__(f"a frame of kind {kind:#04x} has {size} bytes, more than {MAX_HEADER}")


class TruncatedError(FrameError):
    """A direction that ended inside a frame."""

    def __init__(self) -> None:
        super().__init__("the stream ended inside a frame")


def frame(kind: int, payload: bytes) -> bytes:
    """One frame. The payload has at most MAX_FRAME_PAYLOAD bytes."""
    return bytes((kind,)) + len(payload).to_bytes(3, "big") + payload


def data_frames(body: bytes) -> Iterator[bytes]:
    """A body as DATA frames, none for an empty one: a small one in one piece, of a large one each prefix and what
    follows it apart, since joining them would copy it.
    """
    if 0 < len(body) <= SMALL_BODY:
        yield frame(DATA, body)
        return
    for at in range(0, len(body), LARGE_FRAME):
        part = body[at : at + LARGE_FRAME]
        yield DATA_KIND + len(part).to_bytes(3, "big")
        yield part


class FrameReader:
    """Cuts one direction of a stream into events: `(kind, payload)`, where DATA may come in any number of parts.

    Frames of unknown kind are skipped, unless the kind is that of an opening: whoever reads must answer those.
    """

    __slots__ = ("_held", "_kind", "_left", "_need")

    def __init__(self) -> None:
        # The beginning of a prefix or of a header's frame, and how many bytes it must have before it is looked at
        # again.
        self._held = bytearray()
        self._need = 0
        # Of a DATA or skipped frame its kind, and how many bytes are still to come.
        self._kind = -1
        self._left = 0

    def feed(self, chunk: bytes) -> list[tuple[int, bytes]]:
        """The events of the next bytes. Raises HeaderTooLargeError; nothing more can be read then."""
        events: list[tuple[int, bytes]] = []
        if self._held:
            self._held += chunk
            if len(self._held) < self._need:
                return events
            chunk = bytes(self._held)
            self._held.clear()
        at, size = 0, len(chunk)
        while at < size:
            if self._left:
                part = chunk[at : at + self._left]
                at += len(part)
                self._left -= len(part)
                if self._kind == DATA:
                    events.append((DATA, part))
                continue
            if size - at < 4:
                return self._hold(chunk[at:], 4, events)
            kind = chunk[at]
            length = int.from_bytes(chunk[at + 1 : at + 4], "big")
            if kind == DATA or (kind not in _KNOWN and not 1 <= kind <= 0x0F):
                self._kind, self._left = kind, length
                at += 4
                continue
            if length > MAX_HEADER:
                raise HeaderTooLargeError(kind, length)
            if size - at < 4 + length:
                return self._hold(chunk[at:], 4 + length, events)
            events.append((kind, chunk[at + 4 : at + 4 + length]))
            at += 4 + length
        return events

    def _hold(self, rest: bytes, need: int, events: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        self._held += rest
        self._need = need
        return events

    def finish(self) -> None:
        """Says that the direction has ended. Raises TruncatedError if that was inside a frame."""
        if self._left or self._held:
            raise TruncatedError
