"""MessagePack as far as headers need it: bounded in depth, shortest forms when writing.

Writes None, booleans, integers from 0 to 2^64-1, text, bytes, lists and maps with text keys. Reads every value of
[MessagePack](https://github.com/msgpack/msgpack/blob/master/spec.md); refuses a key that occurs
twice, text that is no UTF-8, and lists and maps more than 16 deep in each other (`MAX_HEADER_DEPTH`).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from .limits import MAX_HEADER_DEPTH

Packed: TypeAlias = "None | bool | int | float | str | bytes | Sequence[Packed] | Mapping[str, Packed]"
"""What is written."""


class Extension(NamedTuple):
    """A value of an extension type. No header has any; one of a later version may."""

    type: int
    data: bytes


Unpacked: TypeAlias = "None | bool | int | float | str | bytes | Extension | list[Unpacked] | dict[str, Unpacked]"
"""What is read."""


class MalformedError(ValueError):
    """Bytes that are no MessagePack, or none that a header may have."""


def pack(value: Packed) -> bytes:
    """Encodes a value in its shortest form."""
    out: list[bytes] = []
    _pack(value, out)
    return b"".join(out)


def _pack(value: Packed, out: list[bytes]) -> None:
    if isinstance(value, str):
        out.append(pack_text(value))
    elif value is None:
        out.append(b"\xc0")
    elif isinstance(value, bool):
        out.append(b"\xc3" if value else b"\xc2")
    elif isinstance(value, int):
        out.append(pack_uint(value))
    elif isinstance(value, (bytes, bytearray, memoryview)):
        out.append(_sized(len(value), 0, 0, b"\xc4", b"\xc5", b"\xc6"))
        out.append(bytes(value))
    elif isinstance(value, Mapping):
        out.append(_sized(len(value), 0x80, 16, None, b"\xde", b"\xdf"))
        for key, inner in value.items():
            out.append(pack_text(key))
            _pack(inner, out)
    elif isinstance(value, Sequence):
        out.append(_sized(len(value), 0x90, 16, None, b"\xdc", b"\xdd"))
        for inner in value:
            _pack(inner, out)
    else:
        raise TypeError(f"a header cannot hold a value of type {type(value).__name__}")


def pack_uint(value: int) -> bytes:
    """An integer from 0 to 2^64-1."""
    if 0 <= value < 0x80:
        return value.to_bytes(1, "big")
    if 0 <= value < 0x100:
        return b"\xcc" + value.to_bytes(1, "big")
    if 0 <= value < 0x10000:
        return b"\xcd" + value.to_bytes(2, "big")
    if 0 <= value < 0x1_0000_0000:
        return b"\xce" + value.to_bytes(4, "big")
    if 0 <= value < 1 << 64:
        return b"\xcf" + value.to_bytes(8, "big")
    raise ValueError(f"a header cannot hold the integer {value}")


def pack_text(value: str) -> bytes:
    """A text, in UTF-8."""
    data = value.encode()
    if len(data) < 32:
        return bytes((0xA0 | len(data),)) + data
    return _sized(len(data), 0xA0, 32, b"\xd9", b"\xda", b"\xdb") + data


def pack_map_size(count: int) -> bytes:
    """What a map of so many pairs begins with."""
    return _sized(count, 0x80, 16, None, b"\xde", b"\xdf")


def _sized(n: int, fixed: int, below: int, one: bytes | None, two: bytes, four: bytes) -> bytes:
    if n < below:
        return bytes((fixed | n,))
    if one is not None and n < 0x100:
        return one + n.to_bytes(1, "big")
    if n < 0x10000:
        return two + n.to_bytes(2, "big")
    return four + n.to_bytes(4, "big")


def unpack(data: bytes, max_depth: int = MAX_HEADER_DEPTH) -> Unpacked:
    """The value that some bytes begin with. What follows it is ignored.

    Raises MalformedError. Memory and time are in proportion to the bytes that are there, whatever lengths they claim.
    """
    try:
        return _Reader(data, max_depth).value()
    except (IndexError, struct.error):
        raise MalformedError("it ends inside a value") from None


_SCALARS = {
    0xCA: struct.Struct(">f"),
    0xCB: struct.Struct(">d"),
    0xCC: struct.Struct(">B"),
    0xCD: struct.Struct(">H"),
    0xCE: struct.Struct(">I"),
    0xCF: struct.Struct(">Q"),
    0xD0: struct.Struct(">b"),
    0xD1: struct.Struct(">h"),
    0xD2: struct.Struct(">i"),
    0xD3: struct.Struct(">q"),
}


class _Reader:
    __slots__ = ("at", "data", "left")

    def __init__(self, data: bytes, max_depth: int) -> None:
        self.data = data
        self.at = 0
        self.left = max_depth

    def value(self) -> Unpacked:
        tag = self.data[self.at]
        self.at += 1
        if tag < 0x80:
            return tag
        if tag < 0x90:
            return self.map(tag & 15)
        if tag < 0xA0:
            return self.list(tag & 15)
        if tag < 0xC0:
            return self.text(tag & 31)
        if tag >= 0xE0:
            return tag - 256
        if tag in _SCALARS:
            form = _SCALARS[tag]
            number: int | float = form.unpack_from(self.data, self.at)[0]
            self.at += form.size
            return number
        match tag:
            case 0xC0:
                return None
            case 0xC2 | 0xC3:
                return tag == 0xC3
            case 0xC4 | 0xC5 | 0xC6:
                return self.bytes(self.size(1 << (tag - 0xC4)))
            case 0xC7 | 0xC8 | 0xC9:
                size = self.size(1 << (tag - 0xC7))
                return Extension(self.size(1), self.bytes(size))
            case 0xD4 | 0xD5 | 0xD6 | 0xD7 | 0xD8:
                return Extension(self.size(1), self.bytes(1 << (tag - 0xD4)))
            case 0xD9 | 0xDA | 0xDB:
                return self.text(self.size(1 << (tag - 0xD9)))
            case 0xDC | 0xDD:
                return self.list(self.size(2 << (tag - 0xDC)))
            case 0xDE | 0xDF:
                return self.map(self.size(2 << (tag - 0xDE)))
        raise MalformedError(f"no header has a value that begins with {tag:#04x}")

    def size(self, width: int) -> int:
        return int.from_bytes(self.bytes(width), "big")

    def bytes(self, n: int) -> bytes:
        part = self.data[self.at : self.at + n]
        if len(part) < n:
            raise MalformedError("it ends inside a value")
        self.at += n
        return part

    def text(self, n: int) -> str:
        try:
            return self.bytes(n).decode()
        except UnicodeDecodeError:
            raise MalformedError("a text is no UTF-8") from None

    def deeper(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise MalformedError("its values lie too deep in each other")

    def list(self, n: int) -> list[Unpacked]:
        self.deeper()
        values = [self.value() for _ in range(n)]
        self.left += 1
        return values

    def map(self, n: int) -> dict[str, Unpacked]:
        self.deeper()
        result: dict[str, Unpacked] = {}
        for _ in range(n):
            key = self.value()
            if not isinstance(key, str):
                raise MalformedError("a key is no text")
            if key in result:
                raise MalformedError(f"the key `{key}` occurs twice")
            result[key] = self.value()
        self.left += 1
        return result
