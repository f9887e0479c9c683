"""Events: what a host asks its agent about.

Each belongs to one request and carries its ``correlation_id``, which the host chose. :func:`decode_event` reads them
in either encoding, as a map or as an array of the fields in their order, and refuses a field that is missing or of
another kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final, TypeAlias, cast

from .codec import OPAQUE, DecodeError, Encoding, Fields, as_list, as_map, decode, decode_base64, pairs_of


class EventKind(IntEnum):
    """The kinds of events, by the type of their frame."""

    REQUEST_HEADERS = 0x10
    REQUEST_BODY = 0x11
    RESPONSE_HEADERS = 0x12
    RESPONSE_BODY = 0x13
    REQUEST_COMPLETE = 0x14
    WEBSOCKET_FRAME = 0x15
    GUARDRAIL = 0x16
    CONFIGURE = 0x17

    @property
    def number(self) -> int:
        """Its number in an agent's capabilities, from 1."""
        return self.value - 0x0F


class Headers:
    """Header fields. A name may have several values, and its case does not matter."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Iterable[tuple[str, Iterable[str]]] = ()) -> None:
        self._fields: dict[str, tuple[str, list[str]]] = {}
        for name, values in fields:
            known = self._fields.setdefault(name.lower(), (name, []))
            known[1].extend(values)

    def get(self, name: str, default: str | None = None) -> str | None:
        """The first value of a name."""
        values = self.get_all(name)
        return values[0] if values else default

    def get_all(self, name: str) -> list[str]:
        """Every value of a name."""
        found = self._fields.get(name.lower())
        return found[1] if found else []

    def items(self) -> Iterator[tuple[str, str]]:
        """Every value with its name."""
        for name, values in self._fields.values():
            for value in values:
                yield name, value

    def to_dict(self) -> dict[str, list[str]]:
        """The names, as they came, and their values."""
        return dict(self._fields.values())

    def __contains__(self, name: str) -> bool:
        return bool(self.get_all(name))

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._fields.values())

    def __len__(self) -> int:
        return len(self._fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Headers) and self._fields == other._fields

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Headers({self.to_dict()!r})"


@dataclass(slots=True)
class Metadata:
    """What a host knows of a request besides its head."""

    correlation_id: str
    request_id: str
    client_ip: str
    client_port: int
    protocol: str
    """Such as ``HTTP/1.1``."""
    timestamp: str
    """When the request came (RFC 3339)."""
    server_name: str | None = None
    tls_version: str | None = None
    tls_cipher: str | None = None
    route_id: str | None = None
    upstream_id: str | None = None
    traceparent: str | None = None


@dataclass(slots=True)
class RequestHeaders:
    """The head of a request."""

    metadata: Metadata
    method: str
    uri: str
    """The target, with its query."""
    headers: Headers

    @property
    def correlation_id(self) -> str:
        """Whose head it is."""
        return self.metadata.correlation_id


@dataclass(slots=True)
class BodyChunk:
    """A chunk of a body."""

    correlation_id: str
    data: bytes
    is_last: bool
    total_size: int | None = None
    """Bytes of the whole body, where they are known."""
    index: int = 0
    """Which chunk this is, from 0."""
    transferred: int = 0
    """Bytes of the body so far, with these."""
    of_response: bool = False
    """Whether it is of a response's body."""


@dataclass(slots=True)
class ResponseHeaders:
    """The head of a response."""

    correlation_id: str
    status: int
    headers: Headers


@dataclass(slots=True)
class RequestComplete:
    """A request has ended; for records."""

    correlation_id: str
    status: int
    duration_ms: int
    request_body_size: int
    response_body_size: int
    upstream_attempts: int
    error: str | None = None


class Opcode(str, Enum):
    """The kind of a WebSocket frame (RFC 6455, 5.2)."""

    CONTINUATION = "continuation"
    TEXT = "text"
    BINARY = "binary"
    CLOSE = "close"
    PING = "ping"
    PONG = "pong"


@dataclass(slots=True)
class WebSocketFrame:
    """A WebSocket frame, in either direction."""

    correlation_id: str
    opcode: Opcode
    data: bytes
    client_to_server: bool
    index: int
    fin: bool
    client_ip: str
    route_id: str | None = None


class GuardrailCheck(str, Enum):
    """What to look for in a text."""

    PROMPT_INJECTION = "prompt_injection"
    PII_DETECTION = "pii_detection"


@dataclass(slots=True)
class Guardrail:
    """A text for or from a language model."""

    correlation_id: str
    inspection_type: GuardrailCheck
    content: str
    model: str | None = None
    categories: list[str] = field(default_factory=list[str])
    route_id: str | None = None
    metadata: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(slots=True)
class Configure:
    """The agent's configuration. Whatever is not an allow refuses it."""

    correlation_id: str
    config: object = None
    """Anything that JSON can say."""
    config_version: str | None = None


Event: TypeAlias = (
    RequestHeaders | BodyChunk | ResponseHeaders | RequestComplete | WebSocketFrame | Guardrail | Configure
)


def decode_event(kind: EventKind, payload: bytes, encoding: Encoding) -> Event:
    """Reads the payload of an event's frame.

    Raises :class:`DecodeError`: whoever asked must be answered with a block.
    """
    tree = decode(payload, encoding)
    match kind:
        case EventKind.REQUEST_HEADERS:
            return _request_headers(tree)
        case EventKind.REQUEST_BODY | EventKind.RESPONSE_BODY:
            return _body_chunk(tree, of_response=kind is EventKind.RESPONSE_BODY)
        case EventKind.RESPONSE_HEADERS:
            record = Record(tree, ("correlation_id", "status", "headers"))
            return ResponseHeaders(
                record.text("correlation_id"), record.uint("status", 16), _headers(record.value("headers"))
            )
        case EventKind.REQUEST_COMPLETE:
            return _request_complete(tree)
        case EventKind.WEBSOCKET_FRAME:
            return _websocket_frame(tree)
        case EventKind.GUARDRAIL:
            return _guardrail(tree)
        case EventKind.CONFIGURE:
            record = Record(tree, ("correlation_id", "config", "config_version"))
            config = record.value("config")
            _refuse_what_json_has_not(config)
            return Configure(record.text("correlation_id"), config, record.optional_text("config_version"))


class Record:
    """A structure: a map of its fields, or an array of them in their order."""

    __slots__ = ("_values",)

    def __init__(self, tree: object, names: tuple[str, ...]) -> None:
        fields, values = as_map(tree), as_list(tree)
        if fields is not None:
            self._values = fields
        elif values is not None:
            self._values = dict(zip(names, values, strict=False))
        else:
            raise DecodeError("expected a structure")

    def value(self, name: str) -> object:
        """What a field holds; ``None`` where it is missing."""
        return self._values.get(name)

    def text(self, name: str) -> str:
        """A text that has to be there."""
        value = self._values.get(name)
        if not isinstance(value, str):
            raise self._wrong(name, "a text")
        return value

    def optional_text(self, name: str) -> str | None:
        """A text that may be null or missing."""
        return None if self._values.get(name) is None else self.text(name)

    def uint(self, name: str, bits: int) -> int:
        """An integer that is not negative and fits."""
        value = self._values.get(name)
        if type(value) is not int:
            raise self._wrong(name, "an integer")
        if not 0 <= value < 1 << bits:
            raise DecodeError(f"number out of range, in {name}")
        return value

    def optional_uint(self, name: str, bits: int) -> int | None:
        """An integer that may be null or missing."""
        return None if self._values.get(name) is None else self.uint(name, bits)

    def flag(self, name: str) -> bool:
        """A truth value."""
        value = self._values.get(name)
        if not isinstance(value, bool):
            raise self._wrong(name, "a boolean")
        return value

    def data(self, name: str) -> bytes:
        """Bytes, or the base64 of some."""
        value = self._values.get(name)
        if isinstance(value, bytes):
            return value
        if isinstance(value, str):
            return decode_base64(value.encode())
        raise self._wrong(name, "data")

    def texts(self, name: str) -> list[str]:
        """An array of texts; null or missing is as good as an empty one."""
        value = self._values.get(name)
        return [] if value is None else _texts(value, name)

    def pairs(self, name: str) -> dict[str, str]:
        """A map of texts; null or missing is as good as an empty one."""
        value = self._values.get(name)
        if value is None:
            return {}
        fields = as_map(value)
        if fields is None:
            raise self._wrong(name, "a map")
        return dict(zip(fields, _texts(list(fields.values()), name), strict=True))

    def _wrong(self, name: str, expected: str) -> DecodeError:
        if self._values.get(name) is None:
            return DecodeError(f"missing field {name}")
        return DecodeError(f"expected {expected}, in {name}")


_METADATA: Final = (
    "correlation_id",
    "request_id",
    "client_ip",
    "client_port",
    "server_name",
    "protocol",
    "tls_version",
    "tls_cipher",
    "route_id",
    "upstream_id",
    "timestamp",
    "traceparent",
)


def _request_headers(tree: object) -> RequestHeaders:
    head = Record(tree, ("metadata", "method", "uri", "headers"))
    about = Record(head.value("metadata"), _METADATA)
    metadata = Metadata(
        correlation_id=about.text("correlation_id"),
        request_id=about.text("request_id"),
        client_ip=about.text("client_ip"),
        client_port=about.uint("client_port", 16),
        protocol=about.text("protocol"),
        timestamp=about.text("timestamp"),
        server_name=about.optional_text("server_name"),
        tls_version=about.optional_text("tls_version"),
        tls_cipher=about.optional_text("tls_cipher"),
        route_id=about.optional_text("route_id"),
        upstream_id=about.optional_text("upstream_id"),
        traceparent=about.optional_text("traceparent"),
    )
    return RequestHeaders(metadata, head.text("method"), head.text("uri"), _headers(head.value("headers")))


def _body_chunk(tree: object, *, of_response: bool) -> BodyChunk:
    if (values := as_list(tree)) is not None:
        # A size that was not known is left out of the array, and moves the numbers after it forward.
        numbers = values[3:6]
        tree = values[:3] + (numbers if len(numbers) == 3 else [None, *numbers])
    record = Record(tree, ("correlation_id", "data", "is_last", "total_size", "chunk_index", "bytes_received"))
    transferred = record.optional_uint("bytes_received", 64)
    if transferred is None:
        transferred = record.optional_uint("bytes_sent", 64)
    return BodyChunk(
        record.text("correlation_id"),
        record.data("data"),
        record.flag("is_last"),
        record.optional_uint("total_size", 64),
        record.optional_uint("chunk_index", 32) or 0,
        transferred or 0,
        of_response,
    )


def _request_complete(tree: object) -> RequestComplete:
    record = Record(
        tree,
        (
            "correlation_id",
            "status",
            "duration_ms",
            "request_body_size",
            "response_body_size",
            "upstream_attempts",
            "error",
        ),
    )
    return RequestComplete(
        record.text("correlation_id"),
        record.uint("status", 16),
        record.uint("duration_ms", 64),
        record.uint("request_body_size", 64),
        record.uint("response_body_size", 64),
        record.uint("upstream_attempts", 32),
        record.optional_text("error"),
    )


def _websocket_frame(tree: object) -> WebSocketFrame:
    record = Record(
        tree,
        (
            "correlation_id",
            "opcode",
            "data",
            "client_to_server",
            "frame_index",
            "fin",
            "route_id",
            "client_ip",
        ),
    )
    try:
        opcode = Opcode(record.text("opcode"))
    except ValueError:
        raise DecodeError("unknown opcode") from None
    return WebSocketFrame(
        record.text("correlation_id"),
        opcode,
        record.data("data"),
        record.flag("client_to_server"),
        record.uint("frame_index", 64),
        record.flag("fin"),
        record.text("client_ip"),
        record.optional_text("route_id"),
    )


def _guardrail(tree: object) -> Guardrail:
    record = Record(
        tree,
        ("correlation_id", "inspection_type", "content", "model", "categories", "route_id", "metadata"),
    )
    try:
        check = GuardrailCheck(record.text("inspection_type"))
    except ValueError:
        raise DecodeError("unknown inspection type") from None
    return Guardrail(
        record.text("correlation_id"),
        check,
        record.text("content"),
        record.optional_text("model"),
        record.texts("categories"),
        record.optional_text("route_id"),
        record.pairs("metadata"),
    )


def _headers(tree: object) -> Headers:
    fields = as_map(tree)
    if fields is None:
        raise DecodeError("expected a map of names to lists of values, in headers")
    return Headers((name, _texts(values, "headers")) for name, values in pairs_of(fields))


def _texts(value: object, name: str) -> list[str]:
    values = as_list(value)
    if values is None:
        raise DecodeError(f"expected a list of texts, in {name}")
    for text in values:
        if not isinstance(text, str):
            raise DecodeError(f"expected a text, in {name}")
    return cast("list[str]", values)


def _refuse_what_json_has_not(value: object) -> None:
    if value is OPAQUE or isinstance(value, bytes):
        raise DecodeError("value has no JSON form, in config")
    if isinstance(value, Fields) and value.has_other_keys:
        raise DecodeError("a name that is no text, in config")
    if (fields := as_map(value)) is not None:
        for item in fields.values():
            _refuse_what_json_has_not(item)
    elif (values := as_list(value)) is not None:
        for item in values:
            _refuse_what_json_has_not(item)
