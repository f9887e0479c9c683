"""One timer for many deadlines: a wheel of slots of four milliseconds.

Adding and removing take the same time however many there are, and the event loop has one timer at a time. A deadline
fires at the end of its slot, up to four milliseconds late and never early.
"""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from typing import Protocol

_SLOTS_PER_SECOND = 250.0


class Expiring(Protocol):
    """Something with a deadline."""

    def handle_expired(self) -> None:
        """The deadline has passed. It must not raise."""


class TimerWheel:
    """Deadlines by slot. Each entry is in one slot, which whoever added it keeps in order to remove it."""

    __slots__ = ("_due", "_handle", "_loop", "_next", "_slots")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._slots: dict[int, dict[Expiring, None]] = {}
        self._due: list[int] = []
        self._handle: asyncio.TimerHandle | None = None
        self._next = 0

    def add(self, at: float, entry: Expiring) -> int:
        """Has an entry expire at this time of the loop's clock; the slot that it is in."""
        slot = int(at * _SLOTS_PER_SECOND) + 1
        entries = self._slots.get(slot)
        if entries is None:
            entries = self._slots[slot] = {}
            heappush(self._due, slot)
            if self._handle is None or slot < self._next:
                self._arm()
        entries[entry] = None
        return slot

    def remove(self, slot: int, entry: Expiring) -> None:
        """Forgets an entry; nothing happens if it has expired."""
        entries = self._slots.get(slot)
        if entries is not None:
            entries.pop(entry, None)

    def close(self) -> None:
        """Nothing expires any more."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._slots.clear()
        self._due.clear()

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._due:
            self._next = self._due[0]
            self._handle = self._loop.call_at(self._next / _SLOTS_PER_SECOND, self._fire)

    def _fire(self) -> None:
        self._handle = None
        now = self._loop.time() * _SLOTS_PER_SECOND
        while self._due and self._due[0] <= now + 0.25:
            for entry in list(self._slots.pop(heappop(self._due), ())):
                entry.handle_expired()
        # What has been added meanwhile may have armed it.
        self._arm()
