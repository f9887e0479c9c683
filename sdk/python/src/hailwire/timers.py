"""One timer for many deadlines: slots within slots (Varghese and Lauck, Hierarchical Timing Wheels, 1987).

Adding and removing take the same time however many there are, the event loop has one timer at a time, and there are
some hundred slots at most, whatever the deadlines are. A deadline that is near lies in a slot of 4 ms, one that is
further away in one of about 1 s, 4 min or 19 h, out of which it comes before its time and is put into a finer one. It
fires at the end of its finest slot: up to 4 ms late and never early.
"""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from typing import Protocol

_WIDTHS = (0.004, 0.004 * 256, 0.004 * 256**2, 0.004 * 256**3)
"""Seconds of a slot on each level."""


class Expiring(Protocol):
    """Something with a deadline."""

    timer_key: int
    """The slot that it is in, kept by the wheel; 0 for none."""

    def handle_expired(self) -> None:
        """The deadline has passed. It must not raise."""


class TimerWheel:
    """Deadlines by slot. Each entry is in one slot at most."""

    __slots__ = ("_due", "_handle", "_loop", "_next", "_slots")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # The entries of each slot, with their deadlines; the key has the level in its last two bits.
        self._slots: dict[int, dict[Expiring, float]] = {}
        self._due: list[tuple[float, int]] = []
        self._handle: asyncio.TimerHandle | None = None
        self._next = 0.0

    def add(self, at: float, left: float, entry: Expiring) -> None:
        """Has an entry expire at this time of the loop's clock, which is so many seconds away."""
        level = 0 if left < _WIDTHS[1] else 1 if left < _WIDTHS[2] else 2 if left < _WIDTHS[3] else 3
        key = (int(at / _WIDTHS[level]) + (level == 0)) << 2 | level
        entries = self._slots.get(key)
        if entries is None:
            entries = self._slots[key] = {}
            due = (key >> 2) * _WIDTHS[level]
            heappush(self._due, (due, key))
            if self._handle is None or due < self._next:
                self._arm()
        entries[entry] = at
        entry.timer_key = key

    def remove(self, entry: Expiring) -> None:
        """Forgets an entry; nothing happens if it is not there."""
        entries = self._slots.get(entry.timer_key)
        if entries is not None:
            entries.pop(entry, None)
        entry.timer_key = 0

    def slots(self) -> int:
        """How many slots there are."""
        return len(self._slots)

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
            self._next = self._due[0][0]
            self._handle = self._loop.call_at(self._next, self._fire)

    def _fire(self) -> None:
        self._handle = None
        # A loop's timer may be early by its clock's resolution.
        now = self._loop.time() + 0.001
        while self._due and self._due[0][0] <= now:
            key = heappop(self._due)[1]
            for entry, at in self._slots.pop(key, {}).items():
                if entry.timer_key != key:
                    # One that expired before it has ended this one.
                    continue
                entry.timer_key = 0
                if key & 3:
                    self.add(at, min(at - now, (_WIDTHS[key & 3]) * 0.999), entry)
                else:
                    entry.handle_expired()
        # What has been added meanwhile may have armed it.
        self._arm()
