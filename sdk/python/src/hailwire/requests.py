"""What comes for an agent, and what it may answer."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from .answers import Pairs
from .convert import value_of
from .errors import HailError
from .protocol import frames, headers
from .protocol.keys import is_key
from .protocol.limits import MAX_SEND_BODY
from .protocol.msgpack import MalformedError

if TYPE_CHECKING:
    from .served_stream import ServedStream

T = TypeVar("T")
Kind: TypeAlias = type[T]
"""A type, where `type` means something else."""

REQUEST_LIMIT = MAX_SEND_BODY
"""Bytes of a request's body that is read whole, where nothing else is said."""
KINDS = {frames.CALL: "call", frames.SEND: "send", frames.STREAM: "stream"}


class Caller(NamedTuple):
    """Who calls."""

    agent: str
    """The agent's name, as it says itself; empty for a program without one."""
    node: str | None
    """The key of the node that the call came from, as its tunnel has proved; None for a program of this machine."""


@dataclasses.dataclass(slots=True)
class Response:
    """An answer with a media type, or with fields of the application's own."""

    body: Any = b""
    """Bytes, text, a value that travels as JSON, or chunks as they come."""
    type: str = ""
    headers: Sequence[tuple[str, str]] = ()


class Request:
    """A call, a send or a raw stream that came for an agent."""

    __slots__ = ("_fields", "_stream", "agent", "caller", "deadline", "kind")

    def __init__(self, stream: ServedStream, kind: int, fields: headers.CallFields, caller: Caller) -> None:
        self._stream = stream
        self._fields = fields
        self.kind = KINDS[kind]
        """`"call"`, `"send"` or `"stream"`."""
        self.agent = self._fields["to"]
        """Which agent is called."""
        self.caller = caller
        """Who calls."""
        self.deadline = stream.deadline
        """When the answer has to be whole, by the event loop's clock; None for no bound."""

    @property
    def method(self) -> str:
        """What is asked of the agent; empty where it has one method."""
        return self._fields["method"]

    @property
    def type(self) -> str:
        """The media type of the body; empty for bytes."""
        return self._fields["type"]

    @property
    def headers(self) -> Pairs:
        """The application's own fields, in their order."""
        return [(name, value) for name, value in self._fields["headers"]]

    def header(self, name: str) -> str | None:
        """The first of the fields with this name."""
        return next((value for key, value in self._fields["headers"] if key == name), None)

    @property
    def time_left(self) -> float | None:
        """Seconds until the deadline; None for no bound."""
        return None if self.deadline is None else max(self.deadline - self._stream.mux.loop.time(), 0.0)

    @property
    def priority(self) -> int:
        """How urgent: 0 low, 1 medium, 2 high, 3 critical."""
        return self._fields["priority"]

    @property
    def idempotency_key(self) -> str:
        """Calls with equal keys are the same work; empty where it has none."""
        return self._fields["idempotency_key"]

    @property
    def affinity(self) -> str:
        """Calls with equal keys come to the same member of a group; empty where it has none."""
        return self._fields["affinity"]

    @property
    def traceparent(self) -> str:
        """W3C trace context; empty where there is none."""
        return self._fields["traceparent"]

    @property
    def tracestate(self) -> str:
        """W3C trace context; empty where there is none."""
        return self._fields["tracestate"]

    @property
    def message_id(self) -> str | None:
        """The id of the durable message that this is; None for a call that is none."""
        return self.header("hail-message-id") if self._fields["durable"] else None

    @property
    def attempt(self) -> int:
        """How often the durable message was handed over, this time included; 0 for a call that is none."""
        text = self.header("hail-message-attempt") if self._fields["durable"] else None
        return int(text) if text and text.isdigit() else 0

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        chunk = await self._stream.chunks.next()
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    async def bytes(self, limit: int = REQUEST_LIMIT) -> bytes:
        """All that is left of the body. Raises HailError, `resource_exhausted` where that is more than so many
        bytes.
        """
        return await self._stream.chunks.all(limit)

    async def text(self, limit: int = REQUEST_LIMIT) -> str:
        """The body as text. Raises HailError, `invalid_argument` where it is no UTF-8."""
        return await self.to(str, limit)

    async def json(self, limit: int = REQUEST_LIMIT) -> Any:
        """The body as JSON. Raises HailError, `invalid_argument` where it is none."""
        return read_value(dict, await self.bytes(limit), any_json=True)

    async def to(self, kind: Kind[T], limit: int = REQUEST_LIMIT) -> T:
        """The body as a value of a type. Raises HailError, `invalid_argument` where it is none."""
        value: T = read_value(kind, await self.bytes(limit))
        return value


def read_value(kind: Any, body: bytes, any_json: bool = False) -> Any:
    """A request's body as a value of a type. Raises HailError, `invalid_argument`, where it is none."""
    try:
        return json.loads(body) if any_json else value_of(kind, body)
    except (TypeError, ValueError) as error:
        raise HailError(
            "invalid_argument", f"the body does not fit: {error}", hint="`hail describe` says what the agent takes"
        ) from None


@functools.lru_cache(maxsize=1024)
def read_caller(text: str) -> Caller:
    """Who calls, as the node says it: an agent's name, `agent@key` or `@key`. Raises MalformedError."""
    agent, at, key = text.partition("@")
    if agent and not headers.is_name(agent):
        raise MalformedError(f"`{agent}` is no agent's name")
    if not at:
        return Caller(agent, None)
    if not is_key(key):
        raise MalformedError(f"`{key}` is no node's key")
    return Caller(agent, key)
