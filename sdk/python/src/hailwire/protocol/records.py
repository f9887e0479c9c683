"""Messages of topics as they follow each other in a body: a length of four bytes, a MessagePack map (spec/topics.md,
"Records").
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from .headers import BoundError, decode, encode
from .limits import MAX_HEADER_FIELDS, MAX_TOPIC, MAX_TOPIC_BODY, MAX_TOPIC_RECORD, MAX_TOPIC_TOKENS
from .msgpack import MalformedError, Packed, Unpacked

_TOKEN = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,62}[a-z0-9])?\Z")


def check_topic(topic: str) -> None:
    """Raises ValueError, which says why, for what is no topic."""
    if len(topic.encode()) > MAX_TOPIC:
        raise ValueError(f"a topic has at most {MAX_TOPIC} bytes")
    tokens = topic.split(".")
    if len(tokens) > MAX_TOPIC_TOKENS:
        raise ValueError(f"a topic has at most {MAX_TOPIC_TOKENS} tokens")
    for token in tokens:
        if not _TOKEN.match(token):
            raise ValueError(
                f"`{topic}` is no topic: `{token}` is not 1 to 64 of a-z 0-9 _ -, with a letter or digit at both ends"
            )


def encode_message(fields: Mapping[str, Packed]) -> bytes:
    """A message that is to be published. Raises ValueError for what no node would take."""
    topic, body, pairs = fields.get("topic"), fields.get("body", b""), fields.get("headers", [])
    check_topic(topic if isinstance(topic, str) else "")
    if isinstance(body, bytes) and len(body) > MAX_TOPIC_BODY:
        raise ValueError(f"a message under a topic has at most {MAX_TOPIC_BODY} bytes")
    if isinstance(pairs, list) and len(pairs) > MAX_HEADER_FIELDS:
        raise ValueError(f"a message has at most {MAX_HEADER_FIELDS} fields")
    record = encode("topic_record", fields)
    if len(record) > MAX_TOPIC_RECORD:
        raise ValueError(f"a message and its fields have at most {MAX_TOPIC_RECORD} bytes")
    return len(record).to_bytes(4, "big") + record


class RecordReader:
    """Cuts a body into records, wherever its chunks were cut. Holds one record at most besides the chunk."""

    __slots__ = ("_held", "_need")

    def __init__(self) -> None:
        self._held = bytearray()
        self._need = 4

    def feed(self, chunk: bytes) -> list[dict[str, Unpacked]]:
        """The records that are whole now. Raises MalformedError."""
        self._held += chunk
        records: list[dict[str, Unpacked]] = []
        if len(self._held) < self._need:
            return records
        data = bytes(self._held)
        at = 0
        self._need = 4
        while len(data) - at >= 4:
            size = int.from_bytes(data[at : at + 4], "big")
            if size > MAX_TOPIC_RECORD:
                raise BoundError(f"a record has at most {MAX_TOPIC_RECORD} bytes")
            if len(data) - at - 4 < size:
                self._need = 4 + size
                break
            records.append(decode("topic_record", data[at + 4 : at + 4 + size]))
            at += 4 + size
        self._held = bytearray(data[at:])
        return records

    def finish(self) -> None:
        """Says that the body has ended. Raises MalformedError if that was inside a record."""
        if self._held:
            raise MalformedError("it ends inside a record")
