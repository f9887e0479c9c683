"""Messages that hold, and tasks: kept on disk by the node until the agent has done them (spec/messages.md)."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any, cast

from .admin import MessageDetail, MessageRow, SendReceipt
from .bodies import DEFAULT_LIMIT
from .calls import Call, prepared
from .errors import HailError
from .protocol import frames

if TYPE_CHECKING:
    from .client import Client
    from .requests import Request

_WAIT_MS = 60_000


def content(part: dict[str, str]) -> bytes:
    """The bytes of a `body`, `answer` or `partial` of a message."""
    return part["text"].encode() if "text" in part else base64.b64decode(part.get("base64", ""))


class Messages:
    """The part of a client that is about durable messages and tasks."""

    async def send_durable(
        self,
        to: str,
        body: object = None,
        *,
        in_order: bool = True,
        answered: bool = False,
        expires: float | None = None,
        keep: float | None = None,
        attempts: int | None = None,
        headers: Iterable[tuple[str, str]] = (),
        **header: Any,
    ) -> SendReceipt:
        """Has the node keep a message until the agent has done it, however often either machine is restarted; returns
        once it is on disk.

        With `in_order` it comes after what this program sent to the same agent before. `answered` has the agent's
        answer kept, for `wait_task`. `expires` is how many seconds it is worth anything, a week by default; `keep` how
        many its row stays after its end, a week by default and 30 days at most; `attempts` how often an agent is handed
        it at most. An `idempotency_key` makes sending twice harmless. At most 16 MiB.

        Raises HailError: `not_found`, `permission_denied`, `resource_exhausted` (the inbox or the disk is full);
        nothing is accepted then.
        """
        pairs = list(headers)
        if keep is not None:
            pairs.append(("hail-message-keep", str(round(keep * 1000))))
        if attempts is not None:
            pairs.append(("hail-message-attempts", str(attempts)))
        described, given = prepared(to, body, {**header, "headers": pairs, "durable": 1 if in_order else 2})
        kind = frames.CALL if answered else frames.SEND
        answer = await Call(
            cast("Client", self), kind, described, given, expires, DEFAULT_LIMIT, 0, None, tell_only=True
        )
        return cast("SendReceipt", answer.json())

    async def submit(self, to: str, body: object = None, *, in_order: bool = False, **described: Any) -> SendReceipt:
        """Hands out work that takes its time: a durable call, whose answer is kept. It takes what `send_durable`
        takes.
        """
        return await self.send_durable(to, body, in_order=in_order, answered=True, **described)

    async def task(self, id: str) -> MessageDetail:
        """What is known of a task, or of any durable message. Raises HailError, `not_found`."""
        return cast("MessageDetail", await self._ask("message.show", {"id": id}))

    async def list_tasks(self, states: Iterable[str] = ()) -> list[MessageRow]:
        """The tasks that were submitted from this machine, newest first, up to 1,000; in these states alone where any
        is named: `submitted`, `working`, `completed`, `failed`, `cancelled`, `rejected`. Raises HailError.
        """
        return cast("list[MessageRow]", await self._ask("message.list", {"sent": True, "tasks": list(states)}))

    async def inbox(
        self, agent: str = "", *, states: Iterable[str] = (), most: int = 0, sent: bool = False
    ) -> list[MessageRow]:
        """The durable messages that came for agents of this machine, or were sent from it, in their order. Raises
        HailError.
        """
        query = {"sent": sent, "agent": agent, "states": list(states), "most": most}
        return cast("list[MessageRow]", await self._ask("message.list", query))

    async def take(self, agent: str, *, most: int = 1, lease: float = 60.0) -> list[MessageDetail]:
        """Takes messages out of the inbox by hand, for so many seconds: `acknowledge` each. There may be none; it does
        not wait. Raises HailError.
        """
        request = {"agent": agent, "most": most, "lease_ms": round(lease * 1000)}
        return cast("list[MessageDetail]", await self._ask("message.take", request))

    async def acknowledge(
        self, id: str, *, failed: str | None = None, retry: bool = False, answer: str = ""
    ) -> MessageRow:
        """Says how a message that was taken by hand went: done, with an answer, or failed and why, to be tried again or
        not. Raises HailError.
        """
        request = {"id": id, "failed": failed, "retry": retry, "answer": answer}
        return cast("MessageRow", await self._ask("message.ack", request))

    async def retry_message(self, id: str) -> MessageRow:
        """Hands a message that was given up over again. Raises HailError."""
        return cast("MessageRow", await self._ask("message.retry", {"id": id}))

    async def drop_message(self, id: str) -> MessageRow:
        """Removes a message from the inbox. Raises HailError."""
        return cast("MessageRow", await self._ask("message.drop", {"id": id}))

    async def wait_task(self, id: str) -> MessageDetail:
        """Waits until a task has its end, for as long as that takes; how it ended is in it. Raises HailError."""
        return await self._wait({"id": id, "state": "", "timeout_ms": _WAIT_MS})

    async def follow_task(self, id: str) -> AsyncIterator[MessageDetail]:
        """What is new of a task each time: another attempt, progress, more of its answer; last its end. Raises
        HailError.
        """
        detail = await self.task(id)
        while True:
            yield detail
            if detail["ended_at_ms"] is not None:
                return
            progress = detail["progress"]
            seen = {
                "attempts": detail["attempts"],
                "progress_at_ms": progress["at_ms"] if progress else 0,
                "partial_bytes": detail["partial_bytes"],
            }
            detail = await self._wait({"id": id, "state": "", "seen": seen, "timeout_ms": _WAIT_MS})

    async def _wait(self, request: dict[str, Any]) -> MessageDetail:
        while True:
            try:
                return cast("MessageDetail", await self._ask("message.wait", request))
            except HailError as error:
                if error.code != "deadline_exceeded":
                    raise

    async def cancel_task(self, id: str) -> MessageRow:
        """Withdraws a task, or any durable message, that was sent from this machine; its handler is cancelled. Raises
        HailError: `not_found`, `failed_precondition` where it has another end already.
        """
        return cast("MessageRow", await self._ask("task.cancel", {"id": id}))

    async def report_progress(self, request: Request, done: int, total: int = 0, text: str = "") -> None:
        """Says how far a handler is with the durable message that it was handed: `done` of `total` (0 where nobody
        knows), and what it is at, of which 256 bytes are kept.

        Raises HailError, `failed_precondition` where it is no durable message, or nobody waits for this attempt any
        more.
        """
        id = request.message_id
        if id is None:
            what = "the call is no durable message, so nobody keeps its progress"
            raise HailError("failed_precondition", what, hint="`submit` makes a durable one")
        report = {"id": id, "attempt": request.attempt, "done": done, "total": total, "text": text}
        await self._ask("task.progress", report)

    async def _ask(self, method: str, request: object) -> Any:
        return await cast("Client", self).admin(method, request)
