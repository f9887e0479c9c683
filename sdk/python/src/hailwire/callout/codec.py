"""The two encodings of messages, JSON and MessagePack, as trees of plain Python values.

Both read what a stranger may send, within bounds: values lie at most 128 deep in each other, a length never exceeds
the bytes that are there, text is UTF-8, and nothing may follow the value. Of a name that comes twice the last counts,
but a map that has such a name remembers every pair (:class:`Fields`), since headers are put together and must not
lose one. Extension types of MessagePack are passed over as :data:`OPAQUE`, which no field accepts.
"""

from __future__ import annotations

import binascii
import json
import re
import struct
from collections.abc import Iterable
from enum import Enum
from typing import Final, cast

MAX_DEPTH: Final = 128
"""How deep values may lie in each other."""


class Encoding(str, Enum):
    """How messages are written after the handshake."""

    JSON = "json"
    MESSAGE_PACK = "msgpack"


class DecodeError(ValueError):
    """Bytes that are not what they should be."""


class Fields(dict[str, object]):
    """A map in which a name came twice, or one that is no text."""

    __slots__ = ("has_other_keys", "pairs")

    def __init__(self, pairs: list[tuple[str, object]], has_other_keys: bool = False) -> None:
        super().__init__(pairs)
        self.pairs = pairs
        self.has_other_keys = has_other_keys


def pairs_of(fields: dict[str, object]) -> Iterable[tuple[str, object]]:
    """Every name with its value, also of a name that came twice."""
    return fields.pairs if isinstance(fields, Fields) else fields.items()


class Opaque(Enum):
    """The kind of :data:`OPAQUE`."""

    OPAQUE = 0


OPAQUE: Final = Opaque.OPAQUE
"""A value of MessagePack that JSON has no form for."""


def as_map(value: object) -> dict[str, object] | None:
    """What was read, if it is a map."""
    return cast("dict[str, object]", value) if isinstance(value, dict) else None


def as_list(value: object) -> list[object] | None:
    """What was read, if it is an array."""
    return cast("list[object]", value) if isinstance(value, list) else None


def decode(payload: bytes, encoding: Encoding) -> object:
    """Reads one value. Raises :class:`DecodeError`."""
    return decode_json(payload) if encoding is Encoding.JSON else unpack(payload)


def encode(value: object, encoding: Encoding) -> bytes:
    """Writes one value. Raises :class:`ValueError` or :class:`TypeError` where it has no form."""
    return encode_json(value) if encoding is Encoding.JSON else pack(value)


def decode_json(payload: bytes) -> object:
    """Reads JSON (RFC 8259). Raises :class:`DecodeError`."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        raise DecodeError("not UTF-8") from None
    if text.count("{") + text.count("[") > MAX_DEPTH and _depth(text) > MAX_DEPTH:
        raise DecodeError("nested too deeply")
    try:
        value: object = _JSON.decode(text)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"invalid JSON: {error}") from None
    if "\\ud" in text or "\\uD" in text:
        _refuse_lone_surrogates(value)
    return value


def encode_json(value: object) -> bytes:
    """Writes JSON without white space."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def decode_base64(text: bytes) -> bytes:
    """The bytes that a base64 text stands for: padded, and nothing else in it. Raises :class:`DecodeError`."""
    try:
        data = binascii.a2b_base64(text)
    except binascii.Error:
        raise DecodeError("invalid base64") from None
    if binascii.b2a_base64(data, newline=False) != text:
        raise DecodeError("invalid base64")
    return data


def encode_base64(data: bytes) -> str:
    """The base64 of some bytes."""
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def unpack(payload: bytes) -> object:
    """Reads MessagePack. Raises :class:`DecodeError`."""
    source = Unpacker(payload)
    value = source.value(0)
    if source.at != len(payload):
        raise DecodeError(f"trailing bytes at byte {source.at}")
    return value


class Unpacker:
    """Reads MessagePack, value by value."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def value(self, depth: int) -> object:
        """Takes the next value, which lies in ``depth`` others."""
        data, at = self.data, self.at
        if at >= len(data):
            raise DecodeError("unexpected end of input")
        marker = data[at]
        self.at = at + 1
        if 0xA0 <= marker <= 0xBF:
            return self._text(marker & 0x1F)
        if marker <= 0x7F:
            return marker
        if marker <= 0x8F:
            return self._map(marker & 0x0F, depth)
        if marker <= 0x9F:
            return self._array(marker & 0x0F, depth)
        if marker >= 0xE0:
            return marker - 0x100
        match marker:
            case 0xC0:
                return None
            case 0xC2:
                return False
            case 0xC3:
                return True
            case 0xC4 | 0xC5 | 0xC6:
                return self._take(self._uint(1 << (marker - 0xC4)))
            case 0xC7 | 0xC8 | 0xC9:
                self._take(self._uint(1 << (marker - 0xC7)) + 1)
                return OPAQUE
            case 0xCA:
                return float(_FLOAT32.unpack(self._take(4))[0])
            case 0xCB:
                return float(_FLOAT64.unpack(self._take(8))[0])
            case 0xCC | 0xCD | 0xCE | 0xCF:
                return self._uint(1 << (marker - 0xCC))
            case 0xD0 | 0xD1 | 0xD2 | 0xD3:
                return int.from_bytes(self._take(1 << (marker - 0xD0)), "big", signed=True)
            case 0xD4 | 0xD5 | 0xD6 | 0xD7 | 0xD8:
                self._take((1 << (marker - 0xD4)) + 1)
                return OPAQUE
            case 0xD9 | 0xDA | 0xDB:
                return self._text(self._uint(1 << (marker - 0xD9)))
            case 0xDC | 0xDD:
                return self._array(self._uint(2 << (marker - 0xDC)), depth)
            case 0xDE | 0xDF:
                return self._map(self._uint(2 << (marker - 0xDE)), depth)
            case _:
                raise DecodeError(f"unsupported type at byte {at}")

    def map_length(self) -> int | None:
        """Takes the beginning of a map: how many names it has; ``None`` where no map comes."""
        marker = self.data[self.at] if self.at < len(self.data) else 0xC1
        if 0x80 <= marker <= 0x8F:
            self.at += 1
            return marker & 0x0F
        if marker in (0xDE, 0xDF):
            self.at += 1
            return self._uint(2 << (marker - 0xDE))
        return None

    def array_length(self) -> int | None:
        """Takes the beginning of an array: how many values it has; ``None`` where no array comes."""
        marker = self.data[self.at] if self.at < len(self.data) else 0xC1
        if 0x90 <= marker <= 0x9F:
            self.at += 1
            return marker & 0x0F
        if marker in (0xDC, 0xDD):
            self.at += 1
            return self._uint(2 << (marker - 0xDC))
        return None

    def _take(self, length: int) -> bytes:
        start, end = self.at, self.at + length
        if end > len(self.data):
            raise DecodeError("unexpected end of input")
        self.at = end
        return self.data[start:end]

    def _uint(self, length: int) -> int:
        return int.from_bytes(self._take(length), "big")

    def _text(self, length: int) -> str:
        try:
            return self._take(length).decode()
        except UnicodeDecodeError:
            raise DecodeError(f"text is not UTF-8 before byte {self.at}") from None

    def _array(self, length: int, depth: int) -> list[object]:
        self._enter(length, depth)
        return [self.value(depth + 1) for _ in range(length)]

    def _map(self, length: int, depth: int) -> dict[str, object]:
        self._enter(2 * length, depth)
        pairs: list[tuple[str, object]] = []
        value = self.value
        for _ in range(length):
            key = value(depth + 1)
            item = value(depth + 1)
            if isinstance(key, str):
                pairs.append((key, item))
        found = dict(pairs)
        if len(found) == length:
            return found
        return Fields(pairs, has_other_keys=len(pairs) != length)

    def _enter(self, values: int, depth: int) -> None:
        if depth >= MAX_DEPTH:
            raise DecodeError("nested too deeply")
        # Each value is a byte at least: a length that lies is known before anything is kept for it.
        if values > len(self.data) - self.at:
            raise DecodeError("unexpected end of input")


def pack(value: object) -> bytes:
    """Writes MessagePack, each value in its shortest form. A :class:`Float32` takes five bytes."""
    out = bytearray()
    _pack(value, out)
    return bytes(out)


class Float32(float):
    """A number that MessagePack writes with single precision."""


def _pack(value: object, out: bytearray) -> None:
    if isinstance(value, str):
        text = value.encode()
        _pack_length(len(text), out, 0xA0, 32, (0xD9, 0xDA, 0xDB))
        out += text
    elif value is None:
        out.append(0xC0)
    elif isinstance(value, bool):
        out.append(0xC3 if value else 0xC2)
    elif isinstance(value, int):
        _pack_int(value, out)
    elif isinstance(value, Float32):
        out += b"\xca" + _FLOAT32.pack(value)
    elif isinstance(value, float):
        out += b"\xcb" + _FLOAT64.pack(value)
    elif isinstance(value, dict):
        items = cast("dict[object, object]", value).items()
        _pack_length(len(items), out, 0x80, 16, (None, 0xDE, 0xDF))
        for key, item in items:
            if not isinstance(key, str):
                raise TypeError(f"a name of a map is text, not {type(key).__name__}")
            _pack(key, out)
            _pack(item, out)
    elif isinstance(value, (list, tuple)):
        values = cast("list[object] | tuple[object, ...]", value)
        _pack_length(len(values), out, 0x90, 16, (None, 0xDC, 0xDD))
        for item in values:
            _pack(item, out)
    elif isinstance(value, bytes):
        _pack_length(len(value), out, 0, 0, (0xC4, 0xC5, 0xC6))
        out += value
    else:
        raise TypeError(f"{type(value).__name__} has no form in MessagePack")


def _pack_length(length: int, out: bytearray, short: int, below: int, markers: tuple[int | None, int, int]) -> None:
    one, two, four = markers
    if length < below:
        out.append(short | length)
    elif one is not None and length < 1 << 8:
        out += bytes((one, length))
    elif length < 1 << 16:
        out.append(two)
        out += length.to_bytes(2, "big")
    else:
        out.append(four)
        out += length.to_bytes(4, "big")


def _pack_int(value: int, out: bytearray) -> None:
    if -32 <= value < 128:
        out.append(value & 0xFF)
        return
    for power in range(4):
        length = 1 << power
        if 0 <= value < 1 << 8 * length:
            out.append(0xCC + power)
            out += value.to_bytes(length, "big")
            return
        if value < 0 and value >= -(1 << (8 * length - 1)):
            out.append(0xD0 + power)
            out += value.to_bytes(length, "big", signed=True)
            return
    raise ValueError("number out of range")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else Fields(pairs)


def _refuse(word: str) -> object:
    raise ValueError(f"{word} is no number")


def _depth(text: str) -> int:
    deepest = depth = 0
    for token in _BRACKETS.finditer(text):
        match token[0][0]:
            case "{" | "[":
                depth += 1
                deepest = max(deepest, depth)
            case "}" | "]":
                depth -= 1
            case _:
                pass
    return deepest


def _refuse_lone_surrogates(value: object) -> None:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise DecodeError("unpaired surrogate") from None
    elif (fields := as_map(value)) is not None:
        for key, item in pairs_of(fields):
            _refuse_lone_surrogates(key)
            _refuse_lone_surrogates(item)
    elif (values := as_list(value)) is not None:
        for item in values:
            _refuse_lone_surrogates(item)


_FLOAT32 = struct.Struct(">f")
_FLOAT64 = struct.Struct(">d")
_JSON = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_refuse)
_BRACKETS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
