"""The callee's end of a stream that the node has opened: reads the request, runs the handler, writes the answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .agents import Agent, chunks_of, in_thread, thread_chunks
from .bodies import ChunkQueue, WriterGate, too_long
from .convert import is_json, to_bytes
from .errors import HailError
from .protocol import frames, headers
from .protocol.limits import MAX_HEADER, MAX_HEADER_FIELDS, MAX_SEND_BODY
from .protocol.msgpack import MalformedError, Unpacked
from .protocol.mux import MuxStream
from .protocol.status import OK, OUT_OF_TIME, Code, Status
from .requests import KINDS, Request, Response, read_caller
from .serving_context import Serving, serving

if TYPE_CHECKING:
    from .connection import Connection

log = logging.getLogger("hailwire")

OPENING_PATIENCE = 10.0
REFUSAL_LINGER = 1.0


class ServedStream(MuxStream):
    """The callee's end of a stream that the node has opened."""

    __slots__ = (
        "_answered",
        "_chunks",
        "_ended",
        "_gate",
        "_opened",
        "_reader",
        "_seen",
        "_task",
        "_whole",
        "deadline",
        "kind",
        "timer_key",
    )

    mux: Connection

    def __init__(self, connection: Connection, priority: int) -> None:
        super().__init__(connection, priority)
        self._reader: frames.FrameReader | None = None
        self._opened = False
        self._ended = False
        self._answered = False
        self._seen = 0
        # The body, where it came whole with its header; else what has come of it.
        self._whole: bytes | None = None
        self._chunks: ChunkQueue | None = None
        self._gate: WriterGate | None = None
        self._task: asyncio.Task[None] | None = None
        self.kind = 0
        self.deadline: float | None = None
        self.timer_key = 0

    @property
    def chunks(self) -> ChunkQueue:
        """What has come of the body."""
        chunks = self._chunks
        if chunks is None:
            chunks = self._chunks = ChunkQueue(self)
            if self._whole is not None:
                if self._whole:
                    chunks.put(self._whole)
                chunks.end(OK)
                self._whole = None
        return chunks

    # --- what came

    def handle_data(self, data: bytes, fin: bool) -> None:
        if self._ended:
            # Read to its end, so that the answer is not overtaken.
            if not fin:
                self.consumed(len(data))
            return
        if self._reader is None:
            if fin and self._read_whole(data):
                return
            self._reader = frames.FrameReader()
        framing = len(data)
        try:
            for kind, payload in self._reader.feed(data):
                if not self._opened:
                    self._open(kind, payload)
                    if self._ended:
                        break
                elif kind == frames.DATA:
                    framing -= len(payload)
                    self._body(payload)
            if fin:
                self._reader.finish()
                if self._opened:
                    self.chunks.end(OK)
                else:
                    self.refuse(Status(Code.INVALID_ARGUMENT, "the stream ended before its first frame"))
        except frames.FrameError as error:
            self._malformed(Status(Code.INVALID_ARGUMENT, str(error)))
        if not fin and framing and not self._recv_done:
            self.consumed(framing)
        if not self._opened and not self.timer_key:
            self._expire_in(OPENING_PATIENCE)

    def _read_whole(self, data: bytes) -> bool:
        """Nearly every request is small and whole: a header, and one DATA frame. Whether this was one."""
        size = len(data)
        begin = 4 + int.from_bytes(data[1:4], "big")
        if size > begin + 4 and data[0] == frames.CALL:
            if data[begin] != frames.DATA or int.from_bytes(data[begin + 1 : begin + 4], "big") != size - begin - 4:
                return False
            self._whole = data[begin + 4 :]
        elif size != begin or data[0] != frames.CALL:
            return False
        else:
            self._whole = b""
        self._open(frames.CALL, data[4:begin])
        return True

    def _body(self, payload: bytes) -> None:
        self._seen += len(payload)
        if self.kind == frames.SEND and self._seen > MAX_SEND_BODY:
            self._malformed(too_long(MAX_SEND_BODY).status)
            return
        self.chunks.put(payload)

    def _malformed(self, status: Status) -> None:
        self.chunks.fail(status)
        self._cancel_task()
        self.refuse(status)

    def _open(self, kind: int, payload: bytes) -> None:
        if kind == frames.HELLO:
            self._ended = True
            self.mux.shut(Status(Code.INVALID_ARGUMENT, "the node opened a second control stream"))
            return
        if kind not in KINDS:
            self.refuse(Status(Code.UNIMPLEMENTED, f"a stream cannot begin with a frame of kind {kind:#04x} here"))
            return
        try:
            fields = headers.decode_call(payload)
            caller = read_caller(fields["from"])
        except MalformedError as error:
            self.refuse(Status(Code.INVALID_ARGUMENT, f"the call's header cannot be read: {error}"))
            return
        self._opened = True
        self.kind = kind
        connection = self.mux
        self._set_deadline(fields["deadline_ms"])
        if self._ended:
            return
        agent = connection.owner.agents.get(fields["to"])
        if agent is None:
            self.refuse(Status(Code.NOT_FOUND, f"`{fields['to']}` is no longer served here"))
            return
        if kind == frames.STREAM:
            self.write(b"\x10\x00\x00\x01\x80")
        request = Request(self, kind, fields, caller)
        task = connection.create_task(self._serve(agent, request))
        # One that was begun at once may have ended at once.
        if not task.done():
            self._task = task
            connection.owner.tasks.add(task)

    def _set_deadline(self, deadline_ms: Unpacked) -> None:
        connection = self.mux
        self._forget_timer()
        if isinstance(deadline_ms, int):
            # Beyond a year nobody waits, and clocks have no room for more.
            left = min(deadline_ms, 1 << 35) / 1000
            self.deadline = connection.loop.time() + left
            if deadline_ms == 0:
                self.refuse(OUT_OF_TIME)
                return
            connection.wheel.add(self.deadline, left, self)

    def handle_expired(self) -> None:
        if not self._opened:
            self.refuse(Status(Code.DEADLINE_EXCEEDED, "the stream's first frame did not come in time"))
            return
        if self._answered and self._ended:
            # What was left of the body has had its time.
            self.stop(Code.OK)
            return
        self._cancel_task()
        self.chunks.fail(OUT_OF_TIME)
        if self.queued:
            # Inside a frame only a reset can follow.
            self._ended = True
            self.reset(Code.DEADLINE_EXCEEDED)
            self.stop(Code.OK)
        else:
            self.end(OUT_OF_TIME)

    def handle_reset(self, code: int) -> None:
        status = Status(Code.CANCELLED if code in (0, 1) else Code.of(code), "the caller gave up")
        self.chunks.fail(status)

    def handle_stop(self, code: int) -> None:
        self._give_up(Status(Code.CANCELLED, "the caller gave up"))

    def handle_writable(self) -> None:
        if self._gate is not None:
            self._gate.open()

    def handle_lost(self) -> None:
        self._give_up(Status(Code.CANCELLED, "the node is gone"))

    def _give_up(self, why: Status) -> None:
        self._ended = True
        self._forget_timer()
        self.chunks.fail(why)
        if self._gate is not None:
            self._gate.shut(why)
        self._cancel_task()
        self.stop(Code.OK)

    def _cancel_task(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _expire_in(self, seconds: float) -> None:
        self.mux.wheel.add(self.mux.loop.time() + seconds, seconds, self)

    def _forget_timer(self) -> None:
        if self.timer_key:
            self.mux.wheel.remove(self)

    # --- the answer

    async def whole_body(self, limit: int) -> bytes:
        """The body, without waiting where it is there."""
        whole, self._whole = self._whole, None
        if whole is not None:
            self._chunks = ChunkQueue(self)
            self._chunks.end(OK)
            return whole
        return await self.chunks.all(limit)

    async def _serve(self, agent: Agent, request: Request) -> None:
        serving.set(Serving(agent.name, self.deadline))
        try:
            shape = agent.handler_of(request.method)
            if shape.is_plain and self._whole is not None:
                body, self._whole = self._whole, None
                value = await shape.call(body)
                if type(value) is bytes and 0 < len(value) <= frames.SMALL_BODY and self.kind == frames.CALL:
                    self._finish(frames.DATA_KIND + len(value).to_bytes(3, "big") + value + frames.END_OK)
                else:
                    await self._answer(value)
                return
            arguments = await shape.arguments(request)
            if shape.is_generator:
                await self._answer_chunks(chunks_of(shape, arguments), "", ())
            elif shape.is_async:
                await self._answer(await shape.call(*arguments))
            else:
                await self._answer(await in_thread(shape.call, *arguments))
        except HailError as error:
            self.end(error.status)
        except asyncio.CancelledError:
            if not self._ended:
                self.end(Status(Code.CANCELLED, "the handler was cancelled"))
        except Exception as error:
            log.exception("the handler of `%s` failed", agent.name)
            self.end(Status(Code.INTERNAL, f"the handler failed: {type(error).__name__}"))
        finally:
            task = asyncio.current_task()
            if task is not None:
                self.mux.owner.tasks.discard(task)

    async def _answer(self, value: Any) -> None:
        media_type: str = ""
        pairs: Sequence[tuple[str, str]] = ()
        if isinstance(value, Response):
            media_type, pairs, value = value.type, value.headers, value.body
        if isinstance(value, bytes):
            body = value
        elif hasattr(value, "__aiter__") or isinstance(value, Iterator):
            await self._answer_chunks(value if hasattr(value, "__aiter__") else thread_chunks(value), media_type, pairs)
            return
        else:
            body = to_bytes(value)
            if not media_type and is_json(value):
                media_type = "application/json"
        head = self._head(media_type, pairs)
        if self.kind == frames.SEND or self._ended:
            self.end(OK)
        elif len(body) <= frames.SMALL_BODY:
            self._finish(b"".join((head, *frames.data_frames(body), frames.END_OK)))
        else:
            if head:
                self.write(head)
            gate = self.gate
            for at in range(0, len(body), frames.LARGE_FRAME):
                for data in frames.data_frames(body[at : at + frames.LARGE_FRAME]):
                    self.write(data)
                # Between frames alone: the deadline may pass meanwhile, and END cannot follow inside one.
                await gate.wait(self)
            self._finish(frames.END_OK)

    async def _answer_chunks(self, values: Any, media_type: str, pairs: Sequence[tuple[str, str]]) -> None:
        if head := self._head(media_type, pairs):
            self.write(head)
        gate = self.gate
        try:
            async for value in values:
                gate.check()
                chunk = to_bytes(value)
                if is_json(value):
                    chunk += b"\n"
                if chunk and self.kind != frames.SEND:
                    for data in frames.data_frames(chunk):
                        self.write(data)
                    if self.queued:
                        await gate.wait(self)
        finally:
            close = getattr(values, "aclose", None)
            if close is not None:
                await close()
        self.end(OK)

    def _head(self, media_type: str, pairs: Sequence[tuple[str, str]]) -> bytes:
        # A raw stream was accepted with its head before the handler began, and a send is only acknowledged.
        if self.kind != frames.CALL or not (media_type or pairs):
            return b""
        encoded = headers.encode(
            "answer_head", {"type": media_type, "headers": [[name, value] for name, value in pairs]}
        )
        if len(encoded) > MAX_HEADER or len(pairs) > MAX_HEADER_FIELDS:
            raise HailError("internal", "the head of the answer exceeds its bound")
        return frames.frame(frames.HEAD, encoded)

    @property
    def gate(self) -> WriterGate:
        """Whoever writes the answer waits here."""
        if self._gate is None:
            self._gate = WriterGate()
            if self.send_done:
                self._gate.shut(Status(Code.CANCELLED, "the caller gave up"))
        return self._gate

    def end(self, status: Status) -> None:
        """Ends the answer with a status; nothing happens where it has ended."""
        if not self._ended:
            self._finish(
                frames.END_OK if status.code == Code.OK else frames.frame(frames.END, headers.encode_status(status))
            )

    def _finish(self, last: bytes) -> None:
        if self._ended:
            return
        self._ended = self._answered = True
        self._forget_timer()
        self.write(last, True)
        if not self._recv_done:
            # A stop could overtake the answer on its way, so the caller has some time to end its direction by itself.
            for chunk in self.chunks.chunks:
                self.consumed(len(chunk))
            self.chunks.chunks.clear()
            self._expire_in(REFUSAL_LINGER)

    def refuse(self, status: Status) -> None:
        """Ends a stream that no handler has, or has any longer."""
        self._opened = True
        self.end(status)
