"""The headers of the session protocol: which fields each has, in which order, and what they may be (spec/session.md).

A header is read into a dict of all its fields, with their defaults; it is written without the fields that are at their
default, so that equal headers are equal bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, TypedDict, cast

from .limits import MAX_AFFINITY, MAX_HEADER_FIELDS, MAX_METHOD, MAX_NAME
from .msgpack import MalformedError, Packed, Unpacked, pack_map_size, pack_text, pack_uint, unpack
from .msgpack import pack as pack_value
from .status import MAX_DETAILS, MAX_MESSAGE, Code, Status, cut

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?\Z")


class BoundError(MalformedError):
    """A field that is longer than its bound."""


class _Required:
    """In place of a default: the field must be there."""


class _Always:
    """In place of a default: the field is written even so."""

    def __init__(self, value: Packed) -> None:
        self.value = value


def is_name(text: str) -> bool:
    """Whether this may be the name of an agent or a node."""
    return len(text) <= MAX_NAME and _NAME.match(text) is not None


def _is_text(value: Unpacked) -> bool:
    return isinstance(value, str)


def _is_agent(value: Unpacked) -> bool:
    return isinstance(value, str) and is_name(value)


def _is_flag(value: Unpacked) -> bool:
    return isinstance(value, bool)


def _is_bytes(value: Unpacked) -> bool:
    return isinstance(value, bytes)


def _is_key(value: Unpacked) -> bool:
    return isinstance(value, bytes) and len(value) == 32


def _is_list(value: Unpacked) -> bool:
    return isinstance(value, list)


def _uint(bits: int, most: int | None = None) -> Callable[[Unpacked], bool]:
    top = (1 << bits) - 1 if most is None else most
    return lambda value: type(value) is int and 0 <= value <= top


_u64: Final = _uint(64)
_u32: Final = _uint(32)


def _are_texts(value: Unpacked) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _are_pairs(value: Unpacked) -> bool:
    return isinstance(value, list) and all(
        _are_texts(pair) and isinstance(pair, list) and len(pair) == 2 for pair in value
    )


def _are_counts(value: Unpacked) -> bool:
    return isinstance(value, list) and all(
        isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) and _u64(pair[1]) for pair in value
    )


def _are_versions(value: Unpacked) -> bool:
    return isinstance(value, list) and all(map(_uint(16), value))


def _is_map(value: Unpacked) -> bool:
    return isinstance(value, dict)


_OFFER: dict[str, tuple[Callable[[Unpacked], bool], object]] = {
    "name": (_is_agent, _Required()),
    "description": (_is_text, ""),
    "tags": (_are_texts, []),
    "version": (_is_text, ""),
}

FIELDS: dict[str, dict[str, tuple[Callable[[Unpacked], bool], object]]] = {
    "call": {
        "to": (_is_text, _Always("")),
        "method": (_is_text, ""),
        "from": (_is_text, ""),
        "type": (_is_text, ""),
        "deadline_ms": (_u64, None),
        "priority": (_u64, 1),
        "idempotency_key": (_is_text, ""),
        "traceparent": (_is_text, ""),
        "tracestate": (_is_text, ""),
        "carrier": (_is_text, ""),
        "durable": (_uint(64, 2), 0),
        "member": (_u64, 0),
        "affinity": (_is_text, ""),
        "headers": (_are_pairs, []),
    },
    "answer_head": {"type": (_is_text, ""), "headers": (_are_pairs, [])},
    "hello": {
        "versions": (_are_versions, _Always([])),
        "name": (_is_text, ""),
        "software": (_is_text, ""),
        "instance": (_u64, 0),
        "features": (_are_texts, []),
        "additional": (_is_flag, False),
    },
    "register": {
        **_OFFER,
        "max_concurrency": (_u32, 0),
        "socket": (_is_text, ""),
        "schema": (_is_text, ""),
        "priority": (_uint(8), 0),
        "overflow": (_u32, 0),
        "pinned_ms": (_u64, 0),
        "slow_start_ms": (_u64, 0),
        "max_waiting": (_u32, None),
    },
    "offers": {"agents": (_is_list, _Required()), "number": (_u64, 0), "page": (_u32, 0), "pages": (_u32, 0)},
    "offer": {**_OFFER, "group": (_is_map, {})},
    "group": {"members": (_u32, 0), "priority": (_uint(8), 0), "overflow": (_u32, 0)},
    "going_away": {"reason": (_is_text, _Always(""))},
    "topic_record": {
        "topic": (_is_text, ""),
        "node": (_is_key, None),
        "from": (_is_text, ""),
        "content_type": (_is_text, ""),
        "headers": (_are_pairs, []),
        "body": (_is_bytes, b""),
        "sequence": (_u64, 0),
        "at_ms": (_u64, 0),
        "missed": (_u64, 0),
        "missed_of": (_are_counts, []),
        "refused": (_are_texts, []),
        "kept": (_u64, 0),
        "deleted": (_is_flag, False),
        "if_kept": (_u64, None),
        "log": (_u64, 0),
        "reached": (_is_flag, False),
        "away": (_is_text, ""),
        "settled": (_is_flag, False),
    },
    "status": {
        "code": (_u64, _Required()),
        "message": (_is_text, ""),
        "hint": (_is_text, ""),
        "details": (_is_text, ""),
        "retry_after_ms": (_u64, 0),
    },
}
"""For each kind of header its keys in the order of writing, each with a check and its default."""


def encode(kind: str, fields: Mapping[str, Packed]) -> bytes:
    """A header of this kind; fields that are missing are at their default."""
    parts: list[bytes] = []
    for key, (_, default) in FIELDS[kind].items():
        if isinstance(default, _Always):
            value = fields.get(key, default.value)
        elif key in fields and fields[key] != default:
            value = fields[key]
        else:
            continue
        if key == "agents" and isinstance(value, list):
            parts.append(pack_text(key) + _pack_offers(value))
        elif key == "group" and isinstance(value, Mapping):
            parts.append(pack_text(key) + encode("group", value))
        else:
            parts.append(pack_text(key) + pack_value(value))
    return pack_map_size(len(parts)) + b"".join(parts)


def _pack_offers(offers: list[Packed]) -> bytes:
    size = bytes((0x90 | len(offers),)) if len(offers) < 16 else b"\xdc" + len(offers).to_bytes(2, "big")
    return size + b"".join(encode("offer", offer) for offer in offers if isinstance(offer, Mapping))


def decode(kind: str, data: bytes) -> dict[str, Unpacked]:
    """All fields of a header of this kind.

    Raises MalformedError, and BoundError for a field past its bound.
    """
    value = unpack(data)
    if not isinstance(value, dict):
        raise MalformedError("a header is a map")
    return _checked(kind, value)


def _checked(kind: str, value: dict[str, Unpacked]) -> dict[str, Unpacked]:
    fields: dict[str, Unpacked] = {}
    for key, (check, default) in FIELDS[kind].items():
        given = value.get(key)
        if key not in value or (given is None and default is None):
            if isinstance(default, _Required):
                raise MalformedError(f"`{key}` is missing")
            fields[key] = default.value if isinstance(default, _Always) else default  # type: ignore[assignment]
        elif check(given):
            fields[key] = given
        else:
            raise MalformedError(f"`{key}` cannot be what it is")
    if kind == "call":
        _check_call(fields)
    elif kind == "offers":
        offers = fields["agents"]
        assert isinstance(offers, list)
        fields["agents"] = [_offer(offer) for offer in offers]
    elif kind == "status" and isinstance(code := fields["code"], int) and code > 16:
        fields["code"] = int(Code.UNKNOWN)
    return fields


def _check_call(fields: dict[str, Unpacked]) -> None:
    priority, method, affinity, pairs = (fields[key] for key in ("priority", "method", "affinity", "headers"))
    assert (
        isinstance(priority, int) and isinstance(method, str) and isinstance(affinity, str) and isinstance(pairs, list)
    )
    fields["priority"] = min(priority, 3)
    if len(method.encode()) > MAX_METHOD:
        raise BoundError(f"the method's name is longer than {MAX_METHOD} bytes")
    if len(affinity.encode()) > MAX_AFFINITY:
        raise BoundError(f"the affinity key is longer than {MAX_AFFINITY} bytes")
    if len(pairs) > MAX_HEADER_FIELDS:
        raise BoundError(f"it has more than {MAX_HEADER_FIELDS} fields")


def _offer(value: Unpacked) -> dict[str, Unpacked]:
    if not isinstance(value, dict):
        raise MalformedError("an offer is a map")
    offer = _checked("offer", value)
    if group := offer["group"]:
        assert isinstance(group, dict)
        offer["group"] = _checked("group", group)
    return offer


def encode_status(status: Status) -> bytes:
    """The payload of END: nothing where all went well. Texts past their bounds are cut."""
    if status.code == Code.OK:
        return b""
    return encode(
        "status",
        {
            "code": int(status.code),
            "message": cut(status.message, MAX_MESSAGE),
            "hint": cut(status.hint, MAX_MESSAGE),
            "details": cut(status.details, MAX_DETAILS),
            "retry_after_ms": status.retry_after_ms,
        },
    )


def decode_status(payload: bytes) -> Status:
    """What the payload of END says. Raises MalformedError."""
    if not payload:
        return Status(Code.OK)
    fields = decode("status", payload)
    code, message, hint, details, retry_after_ms = fields.values()
    assert isinstance(code, int) and isinstance(message, str) and isinstance(hint, str)
    assert isinstance(details, str) and isinstance(retry_after_ms, int)
    return Status(Code.of(code), message, hint, details, retry_after_ms)


CallFields = TypedDict(
    "CallFields",
    {
        "to": str,
        "method": str,
        "from": str,
        "type": str,
        "deadline_ms": int | None,
        "priority": int,
        "idempotency_key": str,
        "traceparent": str,
        "tracestate": str,
        "carrier": str,
        "durable": int,
        "member": int,
        "affinity": str,
        "headers": list[list[str]],
    },
)
"""All fields of a call's header."""


_DEADLINE_KEY: Final = pack_text("deadline_ms")
_UINT_WIDTHS: Final = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_SEEN: dict[bytes, CallFields] = {}
_MOST_SEEN: Final = 1024
_LONGEST_SEEN: Final = 512


def decode_call(data: bytes) -> CallFields:
    """All fields of a call's header, of which the caller may change none. Raises MalformedError.

    Most calls of an agent differ in nothing but the time that is left, so headers are remembered without it.
    """
    at = data.find(_DEADLINE_KEY)
    if at < 0:
        return _seen(data, data, 0)
    value = at + len(_DEADLINE_KEY)
    tag = data[value] if value < len(data) else 0xFF
    width = 0 if tag < 0x80 else _UINT_WIDTHS.get(tag, -1)
    end = value + 1 + width
    if width < 0 or end > len(data):
        return cast("CallFields", decode("call", data))
    known = _SEEN.get(data[:value] + data[end:])
    if known is None:
        return _seen(data, data[:value] + data[end:], at)
    fields = known.copy()
    fields["deadline_ms"] = tag if width == 0 else int.from_bytes(data[value + 1 : end], "big")
    return fields


def _seen(data: bytes, key: bytes, at: int) -> CallFields:
    known = _SEEN.get(key)
    if known is not None and at == 0:
        return known
    fields = cast("CallFields", decode("call", data))
    # Only where what stands before the deadline is what a writer writes there: then it is the deadline, and no text
    # that looks like it.
    before = encode_plain_call(fields["to"], fields["method"], fields["from"], fields["type"], None)
    if len(key) <= _LONGEST_SEEN and (at == 0 or data[1:at] == before[1:]):
        if len(_SEEN) >= _MOST_SEEN:
            _SEEN.clear()
        _SEEN[key] = fields
    return fields


def decode_head(data: bytes) -> tuple[str, list[tuple[str, str]]]:
    """Media type and fields of an answer's head. Raises MalformedError."""
    fields = decode("answer_head", data)
    if len(cast("list[list[str]]", fields["headers"])) > MAX_HEADER_FIELDS:
        raise BoundError(f"it has more than {MAX_HEADER_FIELDS} fields")
    return cast("str", fields["type"]), [(name, value) for name, value in cast("list[list[str]]", fields["headers"])]


_PLAIN_PREFIXES: dict[tuple[str, str, str, str], tuple[int, bytes]] = {}
_MOST_PREFIXES: Final = 1024


def encode_plain_call(to: str, method: str, caller: str, media_type: str, deadline_ms: int | None) -> bytes:
    """The header of a call that states nothing but this, which most calls do: what repeats is encoded once."""
    key = (to, method, caller, media_type)
    known = _PLAIN_PREFIXES.get(key)
    if known is None:
        parts = [pack_text("to") + pack_text(to)]
        for name, value in (("method", method), ("from", caller), ("type", media_type)):
            if value:
                parts.append(pack_text(name) + pack_text(value))
        if len(_PLAIN_PREFIXES) >= _MOST_PREFIXES:
            _PLAIN_PREFIXES.clear()
        known = _PLAIN_PREFIXES[key] = (0x80 | len(parts), b"".join(parts))
    count, fields = known
    if deadline_ms is None:
        return bytes((count,)) + fields
    return bytes((count + 1,)) + fields + _DEADLINE_KEY + pack_uint(deadline_ms)
