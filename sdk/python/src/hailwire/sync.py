"""The same client for programs without an event loop: each method waits until it is done.

```python
from hailwire import sync

with sync.connect() as hail:
    print(hail.call("word-count@laptop", "one two three", timeout=2).text)
```

One thread runs the loop of each client; methods may be called from any number of others at once. Ctrl-C while one
waits cancels what it waits for.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

from . import client as asynchronous
from .admin import AgentDescription, AgentRow, MessageDetail, MessageRow, NodeStatus, PublishReceipt, SendReceipt
from .agents import Agent, Handler
from .answers import Answer
from .bodies import DEFAULT_LIMIT, Chunk
from .calls import AnswerStream, RawStream
from .state import StateValue
from .topics import Subscription, TopicEvent

T = TypeVar("T")


class Waiting(Generic[T]):
    """An iterator over what comes; leaving its `with` block, or dropping it, leaves the stream."""

    def __init__(self, client: Client, source: AsyncIterator[T], leave: Any) -> None:
        self._client = client
        self._source = source
        self._leave = leave

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        try:
            return self._client.wait(_next(self._source))
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> Waiting[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leaves it."""
        self._client.tell(self._leave)

    def __del__(self) -> None:
        self.close()


async def _next(source: AsyncIterator[T]) -> T:
    return await source.__anext__()


class Stream:
    """A raw stream: bytes both ways at once, from two threads if need be."""

    def __init__(self, client: Client, stream: RawStream) -> None:
        self._client = client
        self._stream = stream

    def __enter__(self) -> Stream:
        self._client.wait(self._stream.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.tell(self._stream.close)

    def send(self, chunk: Chunk) -> None:
        """Sends a chunk. Raises HailError where the agent reads no more."""
        self._client.wait(self._stream.send(chunk))

    def finish(self) -> None:
        """Ends this side's direction in order."""
        self._client.tell(self._stream.finish)

    def receive(self) -> bytes | None:
        """The next chunk; None once the agent has ended its direction. Raises HailError."""
        return self._client.wait(self._stream.receive())

    def __iter__(self) -> Iterator[bytes]:
        while (chunk := self.receive()) is not None:
            yield chunk


class Client:
    """A program's handle on the node of its machine. Methods take and raise what those of `hailwire.Client` do."""

    def __init__(self, data_dir: str | Path | None = None, *, name: str = "", reconnect: bool = True) -> None:
        self._client = asynchronous.Client(data_dir, name=name, reconnect=reconnect)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hailwire", daemon=True)

    def __enter__(self) -> Client:
        self._thread.start()
        try:
            self.wait(self._client.attach())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Detaches."""
        if self._thread.is_alive():
            self.wait(self._client.close())
            self._stop()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the client's loop, and waits for it."""
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def tell(self, work: Any) -> None:
        """Has a function run in the client's loop soon."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(work)

    def call(
        self, to: str, body: object = None, *, timeout: float | None = None, limit: int = DEFAULT_LIMIT, **header: Any
    ) -> Answer:
        """Calls an agent, and waits for the whole answer."""

        async def made() -> Answer:
            return await self._client.call(to, body, timeout=timeout, limit=limit, **header)

        return self.wait(made())

    def call_chunks(
        self, to: str, body: object = None, *, timeout: float | None = None, **header: Any
    ) -> Waiting[bytes]:
        """Calls an agent; the answer chunk by chunk as it comes."""
        answer: AnswerStream = self._client.call(to, body, timeout=timeout, **header).__aiter__()
        return Waiting(self, answer, answer.close)

    def send(self, to: str, body: object = None, *, timeout: float | None = None, **header: Any) -> None:
        """Sends a one-way message."""
        self.wait(self._client.send(to, body, timeout=timeout, **header))

    def stream(self, to: str, *, timeout: float | None = None, **header: Any) -> Stream:
        """Prepares a raw stream; `with` opens it."""
        return Stream(self, self._client.stream(to, timeout=timeout, **header))

    def serve(self, agent: Agent | str, handler: Handler | None = None, **described: Any) -> None:
        """Offers an agent until the client is closed. Functions that are no coroutines run in threads."""
        self.wait(self._client.serve(agent, handler, **described))

    def publish(
        self,
        topic: str,
        body: object = b"",
        *,
        type: str = "",
        headers: Iterable[tuple[str, str]] = (),
        publisher: str = "",
    ) -> PublishReceipt:
        """Publishes a message under a topic."""
        return self.wait(self._client.publish(topic, body, type=type, headers=headers, publisher=publisher))

    def subscribe(self, *patterns: str) -> Waiting[TopicEvent]:
        """What is published under topics that match; it stands when this returns."""
        return self._subscribed(self._client.subscribe(*patterns))

    def replay(self, patterns: str | list[str], **start: Any) -> Waiting[TopicEvent]:
        """What nodes keep under patterns, and then what follows."""
        return self._subscribed(self._client.replay(patterns, **start))

    def _subscribed(self, subscription: Subscription) -> Waiting[TopicEvent]:
        self.wait(subscription.__aenter__())
        return Waiting(self, subscription, subscription.close)

    def state_put(self, key: str, value: object, *, type: str = "", if_revision: int | None = None) -> PublishReceipt:
        """Puts a shared value."""
        return self.wait(self._client.state_put(key, value, type=type, if_revision=if_revision))

    def state_get(self, key: str, *, patience: float = 3.0) -> StateValue | None:
        """The shared value of a key."""
        return self.wait(self._client.state_get(key, patience=patience))

    def state_values(self, pattern: str, *, patience: float = 3.0) -> list[StateValue]:
        """The shared values of all keys that match."""
        return self.wait(self._client.state_values(pattern, patience=patience))

    def submit(self, to: str, body: object = None, **described: Any) -> SendReceipt:
        """Hands out work that takes its time."""
        return self.wait(self._client.submit(to, body, **described))

    def send_durable(self, to: str, body: object = None, **described: Any) -> SendReceipt:
        """Has the node keep a message until the agent has done it."""
        return self.wait(self._client.send_durable(to, body, **described))

    def task(self, id: str) -> MessageDetail:
        """What is known of a task."""
        return self.wait(self._client.task(id))

    def wait_task(self, id: str) -> MessageDetail:
        """Waits until a task has its end."""
        return self.wait(self._client.wait_task(id))

    def cancel_task(self, id: str) -> MessageRow:
        """Withdraws a task."""
        return self.wait(self._client.cancel_task(id))

    def list_tasks(self, states: Iterable[str] = ()) -> list[MessageRow]:
        """The tasks that were submitted from this machine."""
        return self.wait(self._client.list_tasks(states))

    def inbox(self, agent: str = "", **query: Any) -> list[MessageRow]:
        """The durable messages of this machine."""
        return self.wait(self._client.inbox(agent, **query))

    def admin(self, method: str, request: object = None, *, timeout: float | None = None) -> Any:
        """Asks the node itself."""
        return self.wait(self._client.admin(method, request, timeout=timeout))

    def status(self) -> NodeStatus:
        """How the node is."""
        return self.wait(self._client.status())

    def list_agents(self, **query: Any) -> list[AgentRow]:
        """The agents that this machine can call."""
        return self.wait(self._client.list_agents(**query))

    def describe(self, who: str) -> AgentDescription:
        """What an agent says of itself."""
        return self.wait(self._client.describe(who))


def connect(data_dir: str | Path | None = None, *, name: str = "", reconnect: bool = True) -> Client:
    """A client of the node of this machine, which `with` attaches. It takes what `hailwire.connect` takes."""
    return Client(data_dir, name=name, reconnect=reconnect)


__all__ = ["Client", "Stream", "Waiting", "connect"]
