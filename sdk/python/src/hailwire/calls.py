"""Calls and raw streams as a program holds them: prepared, then awaited, iterated or entered."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Generator
from math import ceil
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from .answers import Answer, Pairs
from .attempts import attempt_until_begun
from .bodies import CHUNK_TYPES, DEFAULT_LIMIT, Body, Chunk, as_bytes, too_long
from .call_stream import CallHeader, CallStream, plain_header
from .convert import to_body, value_of
from .errors import HailError
from .protocol import frames
from .protocol.status import OK
from .serving_context import Serving, serving

if TYPE_CHECKING:
    from .client import Client

T = TypeVar("T")
Kind: TypeAlias = type[T]
"""A type, where `type` means something else."""


def prepared(to: str, body: object, header: dict[str, Any]) -> tuple[CallHeader, Body]:
    """The header and the body of a call; a value that travels as JSON says so in its media type. Raises HailError."""
    given = to_body(body)
    if given is not body and "type" not in header:
        header["type"] = "application/json"
    return CallHeader(to, **header) if header else plain_header(to), given


class Call(Coroutine[Any, Any, Answer]):
    """A call that was prepared. Nothing happens until it is awaited, entered or iterated, once.

    `await call` gives the whole `Answer`; `async for chunk in call` gives its chunks as they come, and leaving the loop
    cancels the call; `async with call as answer` gives an `AnswerStream` once the answer has begun.
    """

    __slots__ = (
        "_body",
        "_client",
        "_entered",
        "_generator",
        "_header",
        "_hedge_after",
        "_kind",
        "_limit",
        "_retries",
        "_tell_only",
        "_timeout",
    )

    def __init__(
        self,
        client: Client,
        kind: int,
        header: CallHeader,
        body: Body,
        timeout: float | None,
        limit: int,
        retries: int,
        hedge_after: float | None,
        tell_only: bool = False,
    ) -> None:
        self._client = client
        # Whether the time is only told, as for a message that outlasts whoever sends it, and not kept here.
        self._tell_only = tell_only
        self._kind = kind
        self._header = header
        self._body = body
        self._timeout = timeout
        self._limit = limit
        self._retries = retries
        self._hedge_after = hedge_after
        self._generator: Generator[Any, Any, Answer] | None = None
        self._entered: AnswerStream | None = None

    def _start(self, whole: bool, current: Serving | None, at: float | None, now: float) -> CallStream:
        """Opens the stream. Raises HailError where there is no node."""
        body, header = self._body, self._header
        stream = CallStream(self._client.connection(), header.priority, whole, self._limit)
        opening = b""
        if at is None or at > now:
            caller = header.caller or (current.agent if current is not None else "")
            # Less than a millisecond is rounded up.
            left = None if at is None else ceil((at - now) * 1000)
            opening = header.opening(self._kind, caller, left)
        if at is not None:
            stream.expire_at(at, at - now, not self._tell_only)
        if body is None or isinstance(body, CHUNK_TYPES):
            stream.start(opening, b"" if body is None else as_bytes(cast("Chunk", body)), self._kind != frames.STREAM)
        else:
            stream.start(opening, b"", False)
            if stream.ended is None:
                stream.start_pump(body)
        return stream

    def _deadline(self, current: Serving | None, now: float) -> float | None:
        """When it is over, by the loop's clock: what is left of the call being served, or less."""
        inherited = current.deadline if current is not None and not self._tell_only else None
        if self._timeout is None:
            return inherited
        at = now + self._timeout
        return at if inherited is None else min(at, inherited)

    def _once(self) -> Generator[Any, Any, Answer]:
        now = self._client.connection().loop.time()
        current = serving.get()
        stream = self._start(True, current, self._deadline(current, now), now)
        future = stream.future
        try:
            result: Answer = yield from future
        except BaseException:
            stream.give_up()
            raise
        return result

    async def _begun(self) -> CallStream:
        """A stream whose answer has begun."""
        at = self._deadline(serving.get(), asyncio.get_running_loop().time())
        if self._retries or self._hedge_after is not None:
            return await attempt_until_begun(
                self._client, self._start_attempt, self._header, self._body, at, self._retries, self._hedge_after
            )
        return await self._start_attempt(at)

    async def _start_attempt(self, at: float | None) -> CallStream:
        stream = self._start(False, serving.get(), at, asyncio.get_running_loop().time())
        try:
            await stream.future
        except BaseException:
            stream.give_up()
            raise
        return stream

    async def _attempts(self) -> Answer:
        stream = await self._begun()
        try:
            body = await stream.chunks.all(self._limit)
        except BaseException:
            stream.give_up()
            raise
        return Answer(body, *stream.head)

    def __await__(self) -> Generator[Any, Any, Answer]:
        if self._generator is not None:
            raise RuntimeError("a call is made once")
        if self._retries or self._hedge_after is not None:
            self._generator = self._attempts().__await__()
        else:
            self._generator = self._once()
        return self._generator

    # A coroutine, so that `asyncio.create_task` and task groups take it.
    def send(self, value: Any) -> Any:
        """Goes on, as a coroutine does."""
        return (self._generator or self.__await__()).send(value)

    def throw(self, *args: Any) -> Any:
        """Raises within it, as in a coroutine."""
        return (self._generator or self.__await__()).throw(*args)

    def close(self) -> None:
        """Ends it: a call under way is cancelled."""
        if self._generator is not None:
            self._generator.close()

    def __aiter__(self) -> AnswerStream:
        return AnswerStream(self)

    async def __aenter__(self) -> AnswerStream:
        self._entered = stream = AnswerStream(self)
        await stream.begin()
        return stream

    async def __aexit__(self, *_: object) -> None:
        if self._entered is not None:
            self._entered.close()


class AnswerStream:
    """An answer as it comes. Leaving it before its end, or dropping it, cancels the call."""

    __slots__ = ("__weakref__", "_call", "_limit", "_stream")

    def __init__(self, call: Call) -> None:
        self._call: Call | None = call
        self._limit = call._limit
        self._stream: CallStream | None = None

    async def begin(self) -> None:
        """Makes the call, and waits until its answer begins: with its head, its first bytes, or its end.

        Raises HailError where it ended without an answer.
        """
        call, self._call = self._call, None
        if call is not None:
            self._stream = await call._begun()

    @property
    def type(self) -> str:
        """The media type of the answer; empty for bytes, and before the answer has begun."""
        return self._stream.head[0] if self._stream else ""

    @property
    def headers(self) -> Pairs:
        """The application's own fields."""
        return self._stream.head[1] if self._stream else []

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._stream is None:
            await self.begin()
        assert self._stream is not None
        chunk = await self._stream.chunks.next()
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    async def bytes(self, limit: int | None = None) -> bytes:
        """What is left of the answer, at most so many bytes; as many as the call's `limit` where none is given. Raises
        HailError.
        """
        if self._stream is None:
            await self.begin()
        assert self._stream is not None
        return await self._stream.chunks.all(self._limit if limit is None else limit)

    async def lines(self) -> AsyncIterator[str]:
        """The answer's lines, without their ends. Raises HailError, `resource_exhausted` for a line longer than the
        call's `limit`.
        """
        held = b""
        async for chunk in self:
            held += chunk
            *whole, held = held.split(b"\n")
            for line in whole:
                yield line.decode()
            if len(held) > self._limit:
                raise too_long(self._limit)
        if held:
            yield held.decode()

    async def values(self, kind: Kind[T]) -> AsyncIterator[T]:
        """The answer's lines as values of a type, as an agent that yields values sends them."""
        async for line in self.lines():
            if line:
                yield value_of(kind, line.encode())

    def close(self) -> None:
        """Leaves the answer: what has not come is not wanted. Nothing happens after its end."""
        if self._stream is not None:
            self._stream.give_up()

    async def aclose(self) -> None:
        """Leaves the answer, as `contextlib.aclosing` wants it."""
        self.close()

    def __del__(self) -> None:
        stream = self._stream
        if stream is None or stream.ended is not None:
            return
        connection = stream.mux
        if connection.loop.is_closed():
            return
        if threading.get_ident() == connection.thread:
            stream.give_up()
        else:
            connection.loop.call_soon_threadsafe(stream.give_up)


class RawStream:
    """Bytes both ways. Leaving it gives up what has not ended.

    `async with hail.stream("echo") as stream:`, then `await stream.send(…)`, `async for chunk in stream`,
    `stream.finish()`.
    """

    __slots__ = ("_answer", "_call")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._answer: AnswerStream | None = None

    async def __aenter__(self) -> RawStream:
        answer = AnswerStream(self._call)
        await answer.begin()
        self._answer = answer
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _opened(self) -> CallStream:
        if self._answer is None or self._answer._stream is None:
            raise RuntimeError("the stream is not open: use `async with hail.stream(…) as stream`")
        return self._answer._stream

    @property
    def type(self) -> str:
        """The media type of what the agent sends; empty for bytes."""
        return self._opened().head[0]

    @property
    def headers(self) -> Pairs:
        """The fields with which the agent accepted."""
        return self._opened().head[1]

    async def send(self, chunk: Chunk) -> None:
        """Sends a chunk, and waits until it is on its way. Raises HailError where the agent reads no more.

        If it is cancelled, the chunk is sent all the same.
        """
        await self._opened().send(as_bytes(chunk))

    def finish(self) -> None:
        """Ends this side's direction in order; the agent's goes on."""
        self._opened().finish()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        chunk = await self._opened().chunks.next()
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    async def receive(self) -> bytes | None:
        """The next chunk; None once the agent has ended its direction. Raises HailError where that ended badly."""
        return await self._opened().chunks.next()

    async def bytes(self, limit: int = DEFAULT_LIMIT) -> bytes:
        """All that is left of the agent's direction, at most so many bytes. Raises HailError."""
        return await self._opened().chunks.all(limit)

    def close(self) -> None:
        """Gives the stream up. Nothing happens after its end."""
        if self._answer is not None:
            self._answer.close()


class Upload:
    """A call whose body is written by hand, and whose answer is awaited whole."""

    __slots__ = ("_stream",)

    def __init__(self, stream: CallStream) -> None:
        self._stream = stream

    async def send(self, chunk: bytes) -> None:
        """Writes a chunk, and waits until it is on its way. Raises HailError: how the call ended, if it has."""
        try:
            await self._stream.send(chunk)
        except HailError:
            ended = self._stream.ended
            if ended is not None and ended is not OK:
                raise HailError.of(ended) from None
            raise

    async def finished(self) -> Answer:
        """Ends the body, and waits for the answer. Raises HailError."""
        self._stream.finish()
        try:
            answer: Answer = await self._stream.future
        except BaseException:
            self.give_up()
            raise
        return answer

    def give_up(self) -> None:
        """The answer is not wanted."""
        self._stream.give_up()


def open_upload(client: Client, to: str, method: str) -> Upload:
    """Opens a call whose body is written by hand. Raises HailError."""
    stream = CallStream(client.connection(), 1, True, DEFAULT_LIMIT)
    stream.start(CallHeader(to, method=method).opening(frames.CALL, "", None), b"", False)
    return Upload(stream)
