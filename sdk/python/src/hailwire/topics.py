"""Publish and subscribe (spec/topics.md): at most once, so that what is published while a subscriber is away or reads
too slowly is lost to it; or from what nodes keep, and then nothing is lost that they still have.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from .admin import PublishReceipt
from .bodies import DEFAULT_LIMIT
from .calls import AnswerStream, Upload, open_upload
from .convert import to_bytes
from .errors import HailError
from .protocol.keys import key_text
from .protocol.msgpack import MalformedError, Unpacked
from .protocol.records import RecordReader, encode_message

if TYPE_CHECKING:
    from .client import Client


@dataclass(frozen=True, slots=True)
class TopicMessage:
    """A message under a topic."""

    topic: str
    body: bytes
    type: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    publisher: str = ""
    """The agent that published it, as it says itself; empty for a program without a name."""
    node: str | None = None
    """The key of the peer that it was published at; None for this machine."""
    sequence: int = 0
    """Counted by that node, over all that is published there; 0 in a replay."""
    at_ms: int = 0
    """When, by that node's clock: milliseconds since 1970."""
    kept: int = 0
    """Its number in that node's log; 0 where it is not kept."""
    deleted: bool = False
    """The value under this topic is deleted."""

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Missed:
    """So many messages were lost before what follows."""

    count: int


@dataclass(frozen=True, slots=True)
class Reached:
    """All has come that a node had kept when it was asked."""

    node: str | None


@dataclass(frozen=True, slots=True)
class Away:
    """What a peer keeps does not come now."""

    node: str
    why: str


@dataclass(frozen=True, slots=True)
class Settled:
    """Every node has said that all has come, or that it is away, or has had its time."""


TopicEvent: TypeAlias = TopicMessage | Missed | Reached | Away | Settled
"""What a subscription tells."""


def message_fields(
    topic: str,
    body: object,
    type: str,
    headers: Iterable[tuple[str, str]],
    publisher: str,
    deleted: bool,
    if_kept: int | None,
) -> bytes:
    """A message that is to be published. Raises HailError for what no node would take."""
    fields: dict[str, Any] = {
        "topic": topic,
        "from": publisher,
        "content_type": type,
        "headers": [[name, value] for name, value in headers],
        "body": to_bytes(body),
        "deleted": deleted,
        "if_kept": if_kept,
    }
    try:
        return encode_message(fields)
    except ValueError as error:
        raise HailError("invalid_argument", str(error)) from None


class Publisher:
    """Publishes many messages over one stream, in their order: `async with hail.publisher() as publisher`.

    Leaving it waits until all are published; `receipt` says then what became of them.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._upload: Upload | None = None
        self.receipt: PublishReceipt | None = None
        """Set once it was left in order."""

    async def __aenter__(self) -> Publisher:
        self._upload = open_upload(self._client, "node", "topic.publish")
        return self

    async def publish(
        self,
        topic: str,
        body: object = b"",
        *,
        type: str = "",
        headers: Iterable[tuple[str, str]] = (),
        publisher: str = "",
        deleted: bool = False,
        if_kept: int | None = None,
    ) -> None:
        """Publishes a message; returns once it is on its way to the node. Raises HailError; what came before is
        published then.
        """
        if self._upload is None:
            raise RuntimeError("use `async with hail.publisher() as publisher`")
        await self._upload.send(message_fields(topic, body, type, headers, publisher, deleted, if_kept))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._upload is not None
        if kind is not None:
            self._upload.give_up()
            return
        answer = await self._upload.finished()
        self.receipt = cast("PublishReceipt", answer.json())


class Subscription:
    """Messages and news as they come: `async with hail.subscribe("build.>") as events: async for event in events`."""

    def __init__(self, client: Client, request: dict[str, Any]) -> None:
        self._client = client
        self._name: str = request.get("name", "")
        self._answer: AnswerStream = aiter_of(
            client.call("node", json.dumps(request), method="topic.subscribe", limit=DEFAULT_LIMIT)
        )
        self._reader = RecordReader()
        self._events: list[TopicEvent] = []
        self._logs: dict[str | None, int] = {}
        self._stands = False

    async def __aenter__(self) -> Subscription:
        """Returns once the node has accepted, so that nothing is missed that is published from then on. Raises
        HailError.
        """
        try:
            while not self._stands:
                await self._read()
        except StopAsyncIteration:
            raise HailError("unavailable", "the node ended the subscription before it stood") from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leaves it."""
        self._answer.close()

    def __aiter__(self) -> AsyncIterator[TopicEvent]:
        return self

    async def __anext__(self) -> TopicEvent:
        while not self._events:
            await self._read()
        return self._events.pop(0)

    async def messages(self) -> AsyncIterator[TopicMessage]:
        """The messages alone."""
        async for event in self:
            if isinstance(event, TopicMessage):
                yield event

    async def confirm(self, message: TopicMessage) -> None:
        """Of a named subscription: this message, and all before it of the same node, are done. Raises HailError."""
        log = self._logs.get(message.node)
        if not self._name or log is None or message.kept == 0:
            raise HailError("failed_precondition", "only what a named subscriber reads of what is kept is confirmed")
        request = {"name": self._name, "node": message.node, "log": log, "kept": message.kept}
        await self._client.admin("topic.confirm", request)

    async def _read(self) -> None:
        chunk = await self._answer.__anext__()
        try:
            for record in self._reader.feed(chunk):
                self._stands = True
                event = self._event(record)
                if event is not None:
                    self._events.append(event)
        except MalformedError as error:
            self.close()
            raise HailError("internal", f"a message cannot be read: {error}") from None

    def _event(self, record: dict[str, Unpacked]) -> TopicEvent | None:
        fields = cast("dict[str, Any]", record)
        node = key_text(fields["node"]) if fields["node"] is not None else None
        if fields["topic"]:
            return TopicMessage(
                fields["topic"],
                fields["body"],
                fields["content_type"],
                tuple((name, value) for name, value in fields["headers"]),
                fields["from"],
                node,
                fields["sequence"],
                fields["at_ms"],
                fields["kept"],
                fields["deleted"],
            )
        if fields["log"]:
            self._logs[node] = fields["log"]
        if fields["missed"]:
            return Missed(fields["missed"])
        if fields["reached"]:
            return Reached(node)
        if fields["settled"]:
            return Settled()
        if node is not None and fields["away"]:
            return Away(node, fields["away"])
        return None


def aiter_of(call: Any) -> AnswerStream:
    """The answer of a call, chunk by chunk."""
    return cast("AnswerStream", call.__aiter__())


class Topics:
    """The part of a client that is about topics."""

    async def publish(
        self,
        topic: str,
        body: object = b"",
        *,
        type: str = "",
        headers: Iterable[tuple[str, str]] = (),
        publisher: str = "",
        deleted: bool = False,
        if_kept: int | None = None,
    ) -> PublishReceipt:
        """Publishes a message of at most 1 MiB under a topic such as `build.web.done`.

        Where topics are kept as their last message, `if_kept` publishes only if the newest under this topic has this
        number (0 for none), and `deleted` deletes it. Raises HailError: `invalid_argument`, `aborted` where `if_kept`
        is not so, `resource_exhausted`.
        """
        client = cast("Client", self)
        record = message_fields(topic, body, type, headers, publisher, deleted, if_kept)
        answer = await client.call("node", record, method="topic.publish")
        return cast("PublishReceipt", answer.json())

    def publisher(self) -> Publisher:
        """Publishes many messages over one stream."""
        return Publisher(cast("Client", self))

    def subscribe(self, *patterns: str) -> Subscription:
        """What is published from now on under topics that match: `build.*.done`, `build.>`, `>`. At most once."""
        return Subscription(cast("Client", self), {"patterns": list(patterns)})

    def replay(
        self,
        patterns: str | Sequence[str],
        *,
        since: float | None = None,
        last: int | None = None,
        start: int | None = None,
        name: str = "",
        settle: float | None = None,
    ) -> Subscription:
        """What nodes keep under these patterns, and then what follows, without a seam: what was published no longer
        than `since` seconds ago, the newest `last`, or from number `start` on; from now on where none is said.

        With a `name` what was `confirm`ed is remembered, and whoever reads under it next goes on after that. After
        `settle` seconds, 3 by default, `Settled` comes whatever peers say.
        """
        request: dict[str, Any] = {"patterns": [patterns] if isinstance(patterns, str) else list(patterns)}
        if start is not None:
            request["from"] = start
        elif last is not None:
            request["last"] = last
        else:
            request["since_ms"] = round((since or 0) * 1000)
        if name:
            request["name"] = name
        if settle is not None:
            request["settle_ms"] = round(settle * 1000)
        return Subscription(cast("Client", self), request)
