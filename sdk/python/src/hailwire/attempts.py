"""One call that may be made more than once: when it is made again, and whose answer counts.

A *retry* follows an attempt that failed in a way that another may not; a *hedge* is made beside one that takes long.
All calls of a client share a budget, so that a failure does not multiply the load that caused it: 10 further attempts
at first, and one more for every five calls, up to 100.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from .bodies import CHUNK_TYPES
from .errors import HailError

if TYPE_CHECKING:
    from .bodies import Body
    from .call_stream import CallHeader, CallStream
    from .client import Client

MAX_FURTHER_ATTEMPTS = 10
_FIRST_PAUSE, _LONGEST_PAUSE = 0.025, 1.0
_LONGEST_RETRY_AFTER = 60.0


class RetryBudget:
    """How many further attempts may be made, in hundredths of one."""

    __slots__ = ("_hundredths",)

    def __init__(self) -> None:
        self._hundredths = 1000

    def add_call(self) -> None:
        """A call that allows further attempts is made for the first time."""
        self._hundredths = min(self._hundredths + 20, 10_000)

    def take(self) -> bool:
        """Takes a further attempt; False where there is none left."""
        if self._hundredths < 100:
            return False
        self._hundredths -= 100
        return True


def pause_before(failures: int, draw: float) -> float:
    """Seconds to wait after so many failures, shortened by up to a half, as a draw from 0 to 1 says."""
    return min(_FIRST_PAUSE * 2.0 ** (failures - 1), _LONGEST_PAUSE) * (1 - draw / 2)


async def attempt_until_begun(
    client: Client,
    start: Callable[[float | None], Awaitable[CallStream]],
    header: CallHeader,
    body: Body,
    at: float | None,
    retries: int,
    hedge_after: float | None,
) -> CallStream:
    """The first attempt whose answer begins. Raises HailError, the last failure where none did."""
    if header.fields is None or not header.fields["idempotency_key"]:
        raise HailError(
            "invalid_argument", "only a call with an idempotency key may be made again", hint="pass idempotency_key=…"
        )
    if header.fields["durable"]:
        raise HailError("invalid_argument", "a durable message is not made again: its node does that")
    if body is not None and not isinstance(body, CHUNK_TYPES):
        raise HailError("invalid_argument", "only a call whose body is there whole may be made again")
    most = min(max(retries, 1 if hedge_after is not None else 0), MAX_FURTHER_ATTEMPTS)
    client.retry_budget.add_call()
    loop = asyncio.get_running_loop()
    running: set[asyncio.Future[CallStream]] = set()
    started = failures = 0
    next_at: float | None = loop.time()
    last: HailError | None = None
    try:
        while True:
            now = loop.time()
            if next_at is not None and now >= next_at:
                next_at = None
                late = at is not None and now >= at and started > 0
                if started == 0 or (not late and client.retry_budget.take()):
                    running.add(asyncio.ensure_future(start(at)))
                    started += 1
                    if hedge_after is not None and started <= most:
                        next_at = now + hedge_after
            if not running and next_at is None:
                assert last is not None
                raise last
            timeout = None if next_at is None else max(next_at - now, 0)
            done, running = (
                await asyncio.wait(running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                if running
                else (await asyncio.sleep(timeout or 0, (set[asyncio.Future["CallStream"]](), running)))
            )
            for attempt in done:
                try:
                    return attempt.result()
                except HailError as error:
                    last = error
                failures += 1
                if not last.retryable or last.retry_after > _LONGEST_RETRY_AFTER:
                    raise last
                due = loop.time() + max(pause_before(failures, random.random()), last.retry_after)
                if not running:
                    next_at = None
                if started <= most and (at is None or due < at):
                    next_at = due if next_at is None else min(due, next_at)
    finally:
        for attempt in running:
            attempt.cancel()
            attempt.add_done_callback(_give_up)


def _give_up(attempt: asyncio.Future[CallStream]) -> None:
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().give_up()
