#!/usr/bin/env python3
"""Checks the golden vectors with a second implementation of the wire format.

It shares nothing with the Rust one but the documents beside it, needs Python 3.9 and no package.

    python3 spec/check.py [DIRECTORY OF VECTORS]

Exit 0 if every vector agrees; otherwise each disagreement is a line on stderr, and exit 1.
"""

import base64
import hashlib
import json
import re
import struct
import sys
from pathlib import Path

import sealed

MAX_FRAME_PAYLOAD = (1 << 24) - 1
MAX_HEADER = 64 * 1024
MAX_HEADER_FIELDS = 128
MAX_TOPIC_RECORD = 1152 * 1024
MAX_HEADER_DEPTH = 16
MAX_METHOD = 128
MAX_AFFINITY = 256


class Refused(Exception):
    """Why input was refused; the text is the name that the vectors use."""


# --- MessagePack, as far as headers need it (https://github.com/msgpack/msgpack/blob/master/spec.md)


def pack(value) -> bytes:
    """Encodes in the shortest form."""
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        for limit, tag, form in (
            (1 << 7, None, ">B"),
            (1 << 8, b"\xcc", ">B"),
            (1 << 16, b"\xcd", ">H"),
            (1 << 32, b"\xce", ">I"),
            (1 << 64, b"\xcf", ">Q"),
        ):
            if 0 <= value < limit:
                return (tag or b"") + struct.pack(form, value)
        raise ValueError("headers hold no such integer")
    if isinstance(value, str):
        data = value.encode()
        return length(len(data), (0xA0, 32), (0xD9, 0xDA, 0xDB)) + data
    if isinstance(value, bytes):
        return length(len(value), (0, 0), (0xC4, 0xC5, 0xC6)) + value
    if isinstance(value, list):
        return length(len(value), (0x90, 16), (None, 0xDC, 0xDD)) + b"".join(map(pack, value))
    if isinstance(value, dict):
        pairs = b"".join(pack(k) + pack(v) for k, v in value.items())
        return length(len(value), (0x80, 16), (None, 0xDE, 0xDF)) + pairs
    raise TypeError(type(value))


def length(n: int, fix: tuple, tags: tuple) -> bytes:
    if n < fix[1]:
        return bytes([fix[0] | n])
    for tag, form, limit in zip(tags, (">B", ">H", ">I"), (1 << 8, 1 << 16, 1 << 32)):
        if tag is not None and n < limit:
            return bytes([tag]) + struct.pack(form, n)
    raise ValueError("too long")


class Unpacker:
    """Reads one value from the front of some bytes."""

    SCALARS = {
        0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
        0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
    }  # fmt: skip
    LENGTHS = {1: ">B", 2: ">H", 4: ">I"}

    def __init__(self, data: bytes):
        self.data, self.at, self.depth = data, 0, 0

    def take(self, n: int) -> bytes:
        part = self.data[self.at : self.at + n]
        if len(part) < n:
            raise Refused("malformed")
        self.at += n
        return part

    def number(self, form: str):
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def value(self):
        tag = self.number(">B")
        if tag < 0x80:
            return tag
        if tag >= 0xE0:
            return tag - 256
        if tag in self.SCALARS:
            return self.number(self.SCALARS[tag])
        if tag in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[tag]
        if 0xA0 <= tag < 0xC0:
            return self.text(tag & 31)
        if 0xD9 <= tag <= 0xDB:
            return self.text(self.number(self.LENGTHS[1 << (tag - 0xD9)]))
        if 0xC4 <= tag <= 0xC6:
            return self.take(self.number(self.LENGTHS[1 << (tag - 0xC4)]))
        if 0x90 <= tag < 0xA0 or tag in (0xDC, 0xDD):
            n = tag & 15 if tag < 0xA0 else self.number(self.LENGTHS[2 << (tag - 0xDC)])
            return self.nested(lambda: [self.value() for _ in range(n)])
        if 0x80 <= tag < 0x90 or tag in (0xDE, 0xDF):
            n = tag & 15 if tag < 0x90 else self.number(self.LENGTHS[2 << (tag - 0xDE)])
            return self.nested(lambda: self.map(n))
        raise Refused("malformed")

    def nested(self, read):
        self.depth += 1
        if self.depth > MAX_HEADER_DEPTH:
            raise Refused("malformed")
        value = read()
        self.depth -= 1
        return value

    def text(self, n: int) -> str:
        try:
            return self.take(n).decode()
        except UnicodeDecodeError:
            raise Refused("malformed") from None

    def map(self, n: int) -> dict:
        result = {}
        for _ in range(n):
            key, value = self.value(), self.value()
            if not isinstance(key, str) or key in result:
                raise Refused("malformed")
            result[key] = value
        return result


# --- Headers. For each type its keys in the order of writing: check, and the default that is left
# --- out (REQUIRED: always written, and must be there; ALWAYS: written, and may be missing).

REQUIRED, ALWAYS = object(), object()


def integer(bits):
    return lambda v: type(v) is int and 0 <= v < 1 << bits


def texts(value):
    return isinstance(value, list) and all(isinstance(v, str) for v in value)


def pairs(value):
    return isinstance(value, list) and all(texts(pair) and len(pair) == 2 for pair in value)


def counts(value):
    return isinstance(value, list) and all(
        isinstance(pair, list) and len(pair) == 2 and is_text(pair[0]) and integer(64)(pair[1]) for pair in value
    )


def is_flag(value):
    return isinstance(value, bool)


def is_text(value):
    return isinstance(value, str)


def is_agent(value):
    return isinstance(value, str) and is_name(value)


OFFER = {
    "name": (is_agent, REQUIRED),
    "description": (is_text, ""),
    "tags": (texts, []),
    "version": (is_text, ""),
}
HEADERS = {
    "call": {
        "to": (is_text, ALWAYS),
        "method": (is_text, ""),
        "from": (is_text, ""),
        "type": (is_text, ""),
        "deadline_ms": (integer(64), None),
        "priority": (integer(64), 1),
        "idempotency_key": (is_text, ""),
        "traceparent": (is_text, ""),
        "tracestate": (is_text, ""),
        "carrier": (is_text, ""),
        "durable": (lambda v: integer(64)(v) and v <= 2, 0),
        "member": (integer(64), 0),
        "affinity": (is_text, ""),
        "headers": (pairs, []),
    },
    "answer_head": {"type": (is_text, ""), "headers": (pairs, [])},
    "hello": {
        "versions": (lambda v: isinstance(v, list) and all(map(integer(16), v)), ALWAYS),
        "name": (is_text, ""),
        "software": (is_text, ""),
        "instance": (integer(64), 0),
        "features": (texts, []),
        "additional": (lambda v: isinstance(v, bool), False),
    },
    "register": {
        **OFFER,
        "max_concurrency": (integer(32), 0),
        "socket": (is_text, ""),
        "schema": (is_text, ""),
        "priority": (integer(8), 0),
        "overflow": (integer(32), 0),
        "pinned_ms": (integer(64), 0),
        "slow_start_ms": (integer(64), 0),
        "max_waiting": (integer(32), None),
    },
    "offers": {
        "agents": (lambda v: isinstance(v, list), REQUIRED),
        "number": (integer(64), 0),
        "page": (integer(32), 0),
        "pages": (integer(32), 0),
    },
    "offer": {**OFFER, "group": (lambda v: isinstance(v, dict), {})},
    "group": {"members": (integer(32), 0), "priority": (integer(8), 0), "overflow": (integer(32), 0)},
    "going_away": {"reason": (is_text, ALWAYS)},
    "topic_record": {
        "topic": (is_text, ""),
        "node": (lambda v: isinstance(v, bytes) and len(v) == 32, None),
        "from": (is_text, ""),
        "content_type": (is_text, ""),
        "headers": (pairs, []),
        "body": (lambda v: isinstance(v, bytes), b""),
        "sequence": (integer(64), 0),
        "at_ms": (integer(64), 0),
        "missed": (integer(64), 0),
        "missed_of": (counts, []),
        "refused": (texts, []),
        "kept": (integer(64), 0),
        "deleted": (is_flag, False),
        "if_kept": (integer(64), None),
        "log": (integer(64), 0),
        "reached": (is_flag, False),
        "away": (is_text, ""),
        "settled": (is_flag, False),
    },
    "topic_interest": {"patterns": (texts, ALWAYS)},
    "topic_replay": {
        "patterns": (texts, ALWAYS),
        "log": (integer(64), 0),
        "after": (integer(64), 0),
        "from": (integer(64), None),
        "last": (integer(64), None),
        "since_ms": (integer(64), None),
    },
    "status": {
        "code": (integer(64), REQUIRED),
        "message": (is_text, ""),
        "hint": (is_text, ""),
        "details": (is_text, ""),
        "retry_after_ms": (integer(64), 0),
    },
}


def encode_header(kind: str, fields: dict) -> bytes:
    return pack(written(kind, fields))


def encode_topic_records(kind: str, records: list) -> bytes:
    """Records as they follow each other in a body."""
    encoded = [encode_header(kind, fields) for fields in records]
    return b"".join(struct.pack(">I", len(record)) + record for record in encoded)


def decode_topic_records(kind: str, data: bytes) -> list:
    records = []
    while data:
        if len(data) < 4:
            raise Refused("malformed")
        (size,) = struct.unpack_from(">I", data)
        if size > MAX_TOPIC_RECORD:
            raise Refused("bound")
        record, data = data[4 : 4 + size], data[4 + size :]
        if len(record) < size:
            raise Refused("malformed")
        records.append(decode_header(kind, record))
    return records


def written(kind: str, fields: dict) -> dict:
    """The keys of a header that are written, in their order."""
    result = {}
    if kind == "topic_record":
        # In the file, a key is its text and a body one, too.
        fields = dict(fields)
        if isinstance(fields.get("node"), str):
            fields["node"] = decode_key(fields["node"])
        if isinstance(fields.get("body"), str):
            fields["body"] = fields["body"].encode()
    for key, (_, default) in HEADERS[kind].items():
        if key in fields and (default in (REQUIRED, ALWAYS) or fields[key] != default):
            result[key] = fields[key]
        elif default is ALWAYS:
            result[key] = [] if key in ("versions", "patterns") else ""
    if kind == "offers":
        result["agents"] = [written("offer", agent) for agent in fields["agents"]]
    if "group" in result:
        result["group"] = written("group", result["group"])
    return result


def decode_header(kind: str, data: bytes) -> dict:
    value = Unpacker(data).value()
    if not isinstance(value, dict):
        raise Refused("malformed")
    return known(kind, value)


def known(kind: str, value: dict) -> dict:
    """The fields that this version knows, checked, without those at their default."""
    fields = {}
    for key, (check, default) in HEADERS[kind].items():
        if key not in value:
            if default is REQUIRED:
                raise Refused("malformed")
            continue
        if value[key] is None and default is None:
            continue
        if not check(value[key]):
            raise Refused("malformed")
        fields[key] = value[key]
    if kind == "call":
        fields["priority"] = min(fields.get("priority", 1), 3)
        if len(fields.get("method", "").encode()) > MAX_METHOD:
            raise Refused("bound")
        if len(fields.get("affinity", "").encode()) > MAX_AFFINITY:
            raise Refused("bound")
        if len(fields.get("headers", [])) > MAX_HEADER_FIELDS:
            raise Refused("bound")
    if kind == "offers":
        if not all(isinstance(agent, dict) for agent in value["agents"]):
            raise Refused("malformed")
        fields["agents"] = [known("offer", agent) for agent in value["agents"]]
    if "group" in fields:
        fields["group"] = known("group", fields["group"])
    if kind == "status" and fields["code"] > 16:
        fields["code"] = 2
    return written(kind, fields)


# --- Batches of durable messages. In the vectors bytes stand as {"hex": "…"}.

MAX_BATCH = 1024
MAX_PROGRESS_TEXT = 256
MAX_PARTIAL = 256 * 1024


def with_bytes(value):
    """The same, with bytes where the vectors have their hex."""
    if isinstance(value, dict):
        if set(value) == {"hex"}:
            return bytes.fromhex(value["hex"])
        return {key: with_bytes(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_bytes(inner) for inner in value]
    return value


def decode_batch(kind: str, data: bytes):
    reader = Unpacker(data)
    batch = reader.value()
    if reader.at != len(data) or not isinstance(batch, dict):
        raise Refused("malformed")
    if kind == "batch":
        check_batch(batch)
    return batch


def check_batch(batch: dict):
    for key in ("messages", "receipts", "withdrawals", "progress"):
        if not isinstance(batch.get(key, []), list):
            raise Refused("malformed")
        if len(batch.get(key, [])) > MAX_BATCH:
            raise Refused("bound")
    if not integer(64)(batch.get("left_out", 0)):
        raise Refused("malformed")
    ids = list(batch.get("withdrawals", []))
    for key in ("messages", "receipts", "progress"):
        ids += [entry.get("id") for entry in batch.get(key, [])]
    if not all(isinstance(one, bytes) and len(one) == 16 for one in ids):
        raise Refused("malformed")
    for receipt in batch.get("receipts", []):
        if receipt.get("state") not in range(10):
            raise Refused("malformed")
    for told in batch.get("progress", []):
        if not integer(32)(told.get("attempt")):
            raise Refused("malformed")
        if len(told.get("text", "").encode()) > MAX_PROGRESS_TEXT:
            raise Refused("bound")
        if told.get("offset", 0) + len(told.get("partial", b"")) > MAX_PARTIAL:
            raise Refused("bound")


# --- Sealed batches that a hub holds; as of records, all but the signature within.

HELD_VERSION = 1
HELD_DOMAIN = b"hailwire held v1\0"
HELD_CLASSES = tuple(4096 << 2 * step for step in range(5))
MAX_HELD = 1 + 32 + HELD_CLASSES[-1] + 16


def open_held(receiver: bytes, seed: bytes, sender: bytes, data: bytes) -> dict:
    """What `sender` sealed to the node with the key `receiver` and this seed."""
    if len(data) > MAX_HELD:
        raise Refused("too_large")
    if not data:
        raise Refused("malformed")
    if data[0] != HELD_VERSION:
        raise Refused("version")
    if len(data) < 33:
        raise Refused("malformed")
    info, secret = HELD_DOMAIN + sender + receiver, sealed.secret_of_seed(seed)
    own = sealed.other_form(receiver)
    try:
        plain = sealed.open_sealed(secret, own, info, data[:1], data[1:33], data[33:])
    except sealed.NotSealed:
        raise Refused("sealed") from None
    if len(plain) not in HELD_CLASSES:
        raise Refused("malformed")
    length = int.from_bytes(plain[:4], "big")
    envelope = plain[4 : 4 + length]
    if len(envelope) < 96 or any(plain[4 + length :]):
        raise Refused("malformed")
    content = Unpacker(envelope[96:]).value()
    if envelope[:32] != sender or content["to"] != receiver:
        raise Refused("forged")
    return content


# --- Frames

OPENING = range(0x01, 0x10)
KINDS = {
    "HELLO": 0x01, "CALL": 0x02, "SEND": 0x03, "STREAM": 0x04, "REGISTER": 0x05,
    "HEAD": 0x10, "DATA": 0x11, "END": 0x12,
    "PING": 0x20, "PONG": 0x21, "GOING_AWAY": 0x22, "OFFERS": 0x23,
    "MORE_OFFERS": 0x24,
}  # fmt: skip


def encode_frame(kind: int, payload: bytes) -> bytes:
    assert len(payload) <= MAX_FRAME_PAYLOAD
    return bytes([kind]) + len(payload).to_bytes(3, "big") + payload


def decode_frames(data: bytes) -> list:
    """Every frame that a reader acts on; neighbouring DATA is joined, as it may be cut anywhere."""
    events, at = [], 0
    while at < len(data):
        if at + 4 > len(data):
            raise Refused("truncated")
        kind, size = data[at], int.from_bytes(data[at + 1 : at + 4], "big")
        acted_on = kind in KINDS.values() or kind in OPENING
        if kind != KINDS["DATA"] and acted_on and size > MAX_HEADER:
            raise Refused("header_too_large")
        at += 4
        if at + size > len(data):
            raise Refused("truncated")
        payload, at = data[at : at + size], at + size
        if kind == KINDS["DATA"]:
            if payload and events and events[-1]["kind"] == kind:
                events[-1]["payload"] += payload.hex()
            elif payload:
                events.append({"kind": kind, "payload": payload.hex()})
        elif acted_on:
            events.append({"kind": kind, "payload": payload.hex()})
    return events


# --- Addresses

ZBASE32 = "ybndrfg8ejkmcpqxot1uwisza345h769"
NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?")


def is_name(text: str) -> bool:
    return NAME.fullmatch(text) is not None


def encode_key(key: bytes) -> str:
    bits = int.from_bytes(key, "big") << 4  # 256 bits and 4 of padding are 52 letters of 5
    return "".join(ZBASE32[bits >> shift & 31] for shift in range(255, -1, -5))


def decode_key(text: str) -> bytes:
    if len(text) != 52 or any(letter not in ZBASE32 for letter in text):
        raise Refused("node_id")
    bits = 0
    for letter in text:
        bits = bits << 5 | ZBASE32.index(letter)
    if bits & 15:
        raise Refused("node_id")
    return (bits >> 4).to_bytes(32, "big")


def decode_agent(text: str) -> str:
    if not is_name(text):
        raise Refused("agent_name")
    return text


def decode_node_name(text: str) -> str:
    if not is_name(text):
        raise Refused("node_name")
    try:
        decode_key(text)
    except Refused:
        return text
    raise Refused("name_is_key")


def decode_address(text: str) -> dict:
    agent, at, node = text.partition("@")
    address = {"agent": decode_agent(agent)}
    if at:
        try:
            address["node_id"] = decode_key(node).hex()
        except Refused:
            address["node_name"] = decode_node_name(node)
    return address


ADDRESS_KINDS = {
    "address": decode_address,
    "agent": decode_agent,
    "node_name": decode_node_name,
    "node_id": decode_key,
}


# --- Records, permissions and tickets: everything but the signature, for which Python has no
# --- Ed25519; the vectors fix its bytes.

RECORD = ("name", "addresses", "tcp", "relay", "agents", "sequence", "issued", "expires")
PERMIT = ("hub", "method", "path", "body", "expires")
TICKETS = {
    "node": (1, ("node", "secret", "expires", "name", "addresses", "tcp", "relay", "hub_key")),
    "hub": (2, ("url", "key", "secret", "expires", "trust")),
}
PERMIT_LIFETIME_S = 60
CHECKSUM = 4


def ordered(keys: tuple, fields: dict) -> dict:
    return {key: fields[key] for key in keys if key in fields}


def encode_record_body(fields: dict) -> bytes:
    fields = ordered(RECORD, fields)
    if "agents" in fields:
        fields["agents"] = [written("offer", agent) for agent in fields["agents"]]
    return pack(fields)


def encode_permit_body(permit: dict) -> bytes:
    digest = hashlib.sha256(permit["body"].encode()).digest()
    expires = permit["now"] + PERMIT_LIFETIME_S
    return pack(ordered(PERMIT, {**permit, "body": digest, "expires": expires}))


def unbase32(text: str) -> bytes:
    padded = text + "=" * (-len(text) % 8)
    try:
        data = base64.b32decode(padded)
    except ValueError:
        raise Refused("damaged") from None
    if base64.b32encode(data).decode().rstrip("=") != text:
        raise Refused("damaged")
    return data


def ticket_checksum(content: bytes) -> bytes:
    return hashlib.sha256(b"hail1" + content).digest()[:CHECKSUM]


def encode_ticket(kind: str, fields: dict) -> str:
    number, keys = TICKETS[kind]
    raw = {
        key: decode_key(value)
        if key in ("node", "hub_key", "key")
        else unbase32(value.upper())
        if key == "secret"
        else value
        for key, value in fields.items()
    }
    content = bytes([number]) + pack(ordered(keys, raw))
    text = base64.b32encode(content + ticket_checksum(content)).decode()
    return "hail1" + text.rstrip("=").lower()


def decode_ticket(text: str) -> dict:
    text = "".join(text.split()).upper()
    if not text.startswith("HAIL1"):
        raise Refused("not_a_ticket")
    data = unbase32(text[5:])
    content = data[:-CHECKSUM]
    if len(data) <= CHECKSUM or ticket_checksum(content) != data[-CHECKSUM:]:
        raise Refused("damaged")
    for kind, (number, keys) in TICKETS.items():
        if content[0] == number:
            value = Unpacker(content[1:]).value()
            if not isinstance(value, dict) or not all(k in value for k in ("secret", "expires")):
                raise Refused("malformed")
            if kind == "hub" and not re.match(HUB_URL, value.get("url", "")):
                raise Refused("malformed")
            fields = ordered(keys, value)
            for key in ("node", "hub_key", "key"):
                if key in fields:
                    fields[key] = encode_key(fields[key])
            secret = base64.b32encode(fields["secret"]).decode().rstrip("=")
            return {**fields, "secret": secret.lower(), "kind": kind}
    raise Refused("unknown_kind")


# --- Capsules (spec/http2.md)

CAPSULES = {"DATAGRAM": 0x00, "STOP": 0x28687701, "CLOSE": 0x28687702}
CAPSULE_LENGTHS = {0x00: (0, 1100), 0x28687701: (9, 9), 0x28687702: (4, 4 + 1024)}


def lease_request(text: str) -> dict:
    """A request for a lease, if a hub would take it."""
    try:
        fields = json.loads(text)
        candidate = base64.b64decode(fields["candidate"], validate=True)
        name, ttl, token = fields["name"], fields["ttl_ms"], fields.get("token", 0)
    except (ValueError, KeyError, TypeError):
        raise Refused("malformed") from None
    numbers = all(isinstance(n, int) and n >= 0 for n in (ttl, token))
    if not is_name(name) or len(candidate) != 16 or not numbers:
        raise Refused("malformed")
    if not 1_000 <= ttl <= 600_000:
        raise Refused("bound")
    return fields


def encode_varint(value: int) -> bytes:
    if value < 1 << 6:
        return struct.pack(">B", value)
    if value < 1 << 14:
        return struct.pack(">H", value | 1 << 14)
    return struct.pack(">I", value | 2 << 30)


def encode_capsule(fields: dict) -> bytes:
    kind = fields["kind"]
    if kind == "DATAGRAM":
        value = bytes.fromhex(fields["payload"])
    elif kind == "STOP":
        value = struct.pack(">BII", fields["connection"], fields["stream"], fields["code"])
    else:
        value = struct.pack(">I", fields["code"]) + fields["reason"].encode()
    return encode_varint(CAPSULES[kind]) + encode_varint(len(value)) + value


def decode_varint(data: bytes) -> tuple:
    size = 1 << (data[0] >> 6)
    return int.from_bytes(data[:size], "big") & (1 << (8 * size - 2)) - 1, data[size:]


def decode_capsules(data: bytes) -> list:
    capsules = []
    while data:
        kind, data = decode_varint(data)
        size, data = decode_varint(data)
        if kind in CAPSULE_LENGTHS:
            least, most = CAPSULE_LENGTHS[kind]
            if not least <= size <= most:
                raise Refused("length")
        value, data = data[:size], data[size:]
        if kind == CAPSULES["DATAGRAM"]:
            capsules.append({"kind": "DATAGRAM", "payload": value.hex()})
        elif kind == CAPSULES["STOP"]:
            connection, stream, code = struct.unpack(">BII", value)
            if connection > 1:
                raise Refused("connection")
            capsules.append(
                {"kind": "STOP", "connection": connection, "stream": stream, "code": code_of(code)}
            )
        elif kind == CAPSULES["CLOSE"]:
            (code,) = struct.unpack(">I", value[:4])
            reason = value[4:].decode("utf-8", "replace")
            capsules.append({"kind": "CLOSE", "code": code_of(code), "reason": reason})
    return capsules


def code_of(number: int) -> int:
    """An unknown code is read as `unknown`."""
    return number if number <= 16 else 2


HUB_URL = r"https://|http://(127\.|localhost|\[::1\])"


# --- The check


# --- the agent protocol


def callout_meaning(tree: dict, means: dict) -> tuple:
    """What a message says, and what it should, in the same form: data as hex, nothing that is null."""
    tree = dict(tree)
    if "answer" in means and "decision" in tree:
        custom = dict(tree["audit"]["custom"])
        answer_id = custom.pop("correlation_id")
        audit = {**tree["audit"], "custom": custom}
        tree = {"id": answer_id, "answer": {**tree, "audit": audit}}
    elif "metadata" in tree and isinstance(tree["metadata"], dict) and "uri" in tree:
        tree.pop("correlation_id", None)
    return said(tree), said(means, "hex")


def said(value, data="base64"):
    """Without nulls, and with the bytes under `data` as they are."""
    if isinstance(value, dict):
        return {
            k: plain_data(v, data) if k == "data" and v is not None else said(v, data)
            for k, v in value.items()
            if v is not None
        }
    if isinstance(value, list):
        return [said(v, data) for v in value]
    return value


def plain_data(value, form: str) -> bytes:
    if isinstance(value, bytes):
        return value
    return bytes.fromhex(value) if form == "hex" else base64.b64decode(value, validate=True)


class Check:
    def __init__(self, directory: Path):
        self.directory, self.count, self.wrong = directory, 0, []

    def load(self, name: str) -> dict:
        return json.loads((self.directory / name).read_text(encoding="utf-8"))

    def same(self, where: str, got, expected):
        self.count += 1
        if got != expected:
            self.wrong.append(f"{where}: got {got!r}, expected {expected!r}")

    def refused(self, where: str, error: str, function, *args):
        try:
            got = function(*args)
        except Refused as refusal:
            self.same(where, str(refusal), error)
        else:
            self.same(where, got, f"refused as {error}")

    def addresses(self):
        file = self.load("addresses.json")
        for v in file["keys"]:
            self.same(f"key {v['name']}, text", encode_key(bytes.fromhex(v["bytes"])), v["text"])
            self.same(f"key {v['name']}, bytes", decode_key(v["text"]).hex(), v["bytes"])
        for v in file["addresses"]:
            self.same(f"address {v['name']}", decode_address(v["text"]), v["parts"])
        for v in file["refused"]:
            parse = ADDRESS_KINDS[v["kind"]]
            self.refused(f"refused address {v['name']}", v["error"], parse, v["text"])

    def headers(self, file_name: str):
        file = self.load(file_name)
        for v in file["vectors"]:
            kind = v["type"]
            got = encode_header(kind, v["fields"]).hex()
            self.same(f"{kind} {v['name']}, bytes", got, v["bytes"])
        for v in file["vectors"] + file["readable"]:
            got = decode_header(v["type"], bytes.fromhex(v["bytes"]))
            self.same(f"{v['type']} {v['name']}, fields", got, written(v["type"], v["fields"]))
        for v in file["refused"]:
            where = f"refused {v['type']} {v['name']}"
            data = bytes.fromhex(v["bytes"])
            self.refused(where, v["error"], decode_header, v["type"], data)

    def topics(self):
        self.headers("topics.json")
        file = self.load("topics.json")
        for v in file["bodies"]:
            kind, data = v["type"], bytes.fromhex(v["bytes"])
            self.same(f"body {v['name']}, bytes", encode_topic_records(kind, v["records"]).hex(), v["bytes"])
            records = [written(kind, fields) for fields in v["records"]]
            self.same(f"body {v['name']}, records", decode_topic_records(kind, data), records)
        for v in file["refused_bodies"]:
            where, data = f"refused body {v['name']}", bytes.fromhex(v["bytes"])
            self.refused(where, v["error"], decode_topic_records, v["type"], data)

    def messages(self):
        file = self.load("messages.json")
        for v in file["vectors"]:
            fields, data = with_bytes(v["fields"]), bytes.fromhex(v["bytes"])
            self.same(f"{v['type']} {v['name']}, bytes", pack(fields).hex(), v["bytes"])
            self.same(f"{v['type']} {v['name']}, fields", decode_batch(v["type"], data), fields)
        for v in file["refused"]:
            where = f"refused {v['type']} {v['name']}"
            self.refused(where, v["error"], decode_batch, v["type"], bytes.fromhex(v["bytes"]))

    def held(self):
        """What was sealed is opened, and says what the vector says."""
        file = self.load("held.json")
        by_name = {}
        for v in file["vectors"]:
            sender, receiver = bytes.fromhex(v["sender"]), bytes.fromhex(v["receiver"])
            data = bytes.fromhex(v["sealed"])
            by_name[v["name"]] = (receiver, bytes.fromhex(v["receiver_seed"]), sender, data)
            content = {"to": receiver, "sealed_ms": v["sealed_ms"], "batch": pack(with_bytes(v["batch"]))}
            self.same(f"held {v['name']}", open_held(*by_name[v["name"]]), content)
            check_batch(with_bytes(v["batch"]))
        for v in file["refused"]:
            receiver, seed, sender, data = by_name[v["of"]]
            data = data[: v["cut"]] if "cut" in v else data
            for at in v.get("altered", []):
                data = data[:at] + bytes([data[at] ^ 0x80]) + data[at + 1 :]
            self.refused(f"refused held {v['name']}", v["error"], open_held, receiver, seed, sender, data)

    def frames(self):
        file = self.load("frames.json")
        self.same("frame kinds", file["kinds"], KINDS)
        for v in file["frames"]:
            got = encode_frame(KINDS[v["kind"]], bytes.fromhex(v["payload"])).hex()
            self.same(f"frame {v['name']}", got, v["bytes"])
        for v in file["streams"]:
            events = [{"kind": e["kind"], "payload": e["payload"]} for e in v["events"]]
            self.same(f"stream {v['name']}", decode_frames(bytes.fromhex(v["bytes"])), events)
        for v in file["refused"]:
            data = bytes.fromhex(v["bytes"])
            self.refused(f"refused stream {v['name']}", v["error"], decode_frames, data)

    def records(self):
        file = self.load("records.json")
        for v in file["records"]:
            data = bytes.fromhex(v["bytes"])
            self.same(f"record {v['name']}, key", encode_key(data[:32]), v["key"])
            self.same(f"record {v['name']}, body", data[96:], encode_record_body(v["fields"]))
        for v in file["permits"]:
            scheme, token = v["authorization"].split(" ")
            self.same(f"permit {v['name']}, scheme", scheme, "Hailwire")
            data = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
            self.same(f"permit {v['name']}, body", data[96:], encode_permit_body(v))

    def tickets(self):
        file = self.load("tickets.json")
        for v in file["tickets"]:
            where = f"ticket {v['name']}"
            self.same(f"{where}, text", encode_ticket(v["kind"], v["fields"]), v["text"])
            self.same(where, decode_ticket(v["text"]), {**v["fields"], "kind": v["kind"]})
        for v in file["readable"]:
            same = decode_ticket(v["same_as"])
            self.same(f"readable ticket {v['name']}", decode_ticket(v["text"]), same)
        for v in file["refused"]:
            self.refused(f"refused ticket {v['name']}", v["error"], decode_ticket, v["text"])

    def capsules(self):
        file = self.load("capsules.json")
        for v in file["capsules"]:
            data = bytes.fromhex(v["bytes"])
            self.same(f"capsule {v['name']}, bytes", encode_capsule(v["capsule"]), data)
            self.same(f"capsule {v['name']}", decode_capsules(data), [v["capsule"]])
        for v in file["readable"]:
            got = decode_capsules(bytes.fromhex(v["bytes"]))
            self.same(f"readable capsule {v['name']}", got, v["capsules"])
        for v in file["refused"]:
            data = bytes.fromhex(v["bytes"])
            self.refused(f"refused capsule {v['name']}", v["error"], decode_capsules, data)

    def leases(self):
        """JSON of leases says what the vector says, and what a hub refuses breaks a rule of spec/records.md."""
        file = json.loads((self.directory / "leases.json").read_text())
        for v in file["messages"]:
            name = f"lease {v['name']}"
            self.same(name, json.loads(v["json"]), v["fields"])
            self.same(f"{name}, written", json.dumps(v["fields"], separators=(",", ":")), v["json"])
            if v["type"] == "request":
                self.same(f"{name}, bounds", lease_request(v["json"]), v["fields"])
        for v in file["refused"]:
            self.refused(f"refused lease {v['name']}", v["error"], lease_request, v["json"])

    def callout(self):
        """Both encodings of each message of the agent protocol say what the vector says."""
        for path in sorted((self.directory / "callout").glob("*.json")):
            # A recorded session of HAProxy has frames and nothing that this reads.
            for v in json.loads(path.read_text()).get("vectors", []):
                name = f"callout {path.stem} {v['name']}"
                trees = []
                if "json" in v:
                    trees.append(("JSON", json.loads(v["json"])))
                if "msgpack" in v:
                    trees.append(("MessagePack", Unpacker(bytes.fromhex(v["msgpack"])).value()))
                for encoding, tree in trees:
                    self.same(f"{name} as {encoding}", *callout_meaning(tree, v["means"]))

    def run(self) -> int:
        self.addresses()
        self.headers("headers.json")
        self.headers("status.json")
        self.topics()
        self.messages()
        self.held()
        self.frames()
        self.records()
        self.tickets()
        self.capsules()
        self.leases()
        self.callout()
        for line in self.wrong:
            print(line, file=sys.stderr)
        print(f"{self.count - len(self.wrong)} of {self.count} checks agree")
        return 1 if self.wrong else 0


if __name__ == "__main__":
    default = Path(__file__).resolve().parent / "vectors"
    sys.exit(Check(Path(sys.argv[1]) if len(sys.argv) > 1 else default).run())
