"""The request of an event that cannot be read as a whole, so that whoever waits is told no.

It is found wherever it comes before what is no JSON or MessagePack at all: fields of another kind, bytes where texts
should be, and an end that is missing do not hide it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from .codec import DecodeError, Encoding, Unpacker


def event_id(payload: bytes, encoding: Encoding) -> str | None:
    """The request that an event belongs to, if it says."""
    found: str | None = None
    for name, value in _json(payload) if encoding is Encoding.JSON else _packed(payload):
        if isinstance(value, str) and value:
            if name == "metadata":
                return value
            found = found or value
    return found


def _json(payload: bytes) -> Iterator[tuple[str, object]]:
    text = payload.decode(errors="replace")
    for name, at in _members(text, 0):
        if name == "correlation_id":
            yield name, _text(text, at)
        elif name == "metadata":
            for inner, place in _members(text, at):
                if inner == "correlation_id":
                    yield name, _text(text, place)


def _members(text: str, at: int) -> Iterator[tuple[str, int]]:
    """The names of an object and where their values are, up to what cannot be read."""
    decoder = json.JSONDecoder()
    at = _space(text, at)
    if text[at : at + 1] != "{":
        return
    try:
        while text[at : at + 1] in ("{", ","):
            at = _space(text, at + 1)
            if text[at : at + 1] != '"':
                return
            name, at = decoder.raw_decode(text, at)
            at = _space(text, at)
            if text[at : at + 1] != ":":
                return
            at = _space(text, at + 1)
            yield name, at
            _, at = decoder.raw_decode(text, at)
            at = _space(text, at)
    except (ValueError, RecursionError):
        return


def _text(text: str, at: int) -> str | None:
    if text[at : at + 1] != '"':
        return None
    try:
        found = str(json.JSONDecoder().raw_decode(text, at)[0])
        found.encode()
    except ValueError:
        return None
    # What was no UTF-8 is no id that a host could have given.
    return None if "\ufffd" in found else found


def _space(text: str, at: int) -> int:
    while text[at : at + 1] in (" ", "\t", "\n", "\r"):
        at += 1
    return at


def _packed(payload: bytes) -> Iterator[tuple[str, object]]:
    source = Unpacker(payload)
    try:
        for _ in range(source.map_length() or 0):
            name = source.value(1)
            if name == "metadata":
                if (names := source.map_length()) is not None:
                    for _ in range(names):
                        inner, value = source.value(2), source.value(2)
                        if inner == "correlation_id":
                            yield "metadata", value
                elif (values := source.array_length()) is not None:
                    for index in range(values):
                        value = source.value(2)
                        if index == 0:
                            yield "metadata", value
                else:
                    source.value(1)
            else:
                value = source.value(1)
                if name == "correlation_id":
                    yield "correlation_id", value
    except DecodeError:
        return
