"""Deadlines in virtual time: each fires once and never early, and there are few slots however far they are."""

from __future__ import annotations

import asyncio
import random

import pytest

from hailwire.timers import TimerWheel


class Clock(asyncio.SelectorEventLoop):
    """A loop whose time passes as its timers want."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def time(self) -> float:
        return self.now


class Entry:
    def __init__(self, clock: Clock, at: float) -> None:
        self.clock, self.at = clock, at
        self.timer_key = 0
        self.fired: list[float] = []

    def handle_expired(self) -> None:
        self.fired.append(self.clock.now)


def advance(clock: Clock, wheel: TimerWheel, until: float) -> None:
    """Lets the wheel's timer fire whenever it is due."""
    while wheel._handle is not None and wheel._handle.when() <= until:
        handle = wheel._handle
        clock.now = max(clock.now, handle.when())
        handle.cancel()
        wheel._fire()
    clock.now = until


@pytest.mark.parametrize("seed", range(200))
def test_each_deadline_fires_once_within_a_slot_and_never_early(seed: int) -> None:
    draw = random.Random(seed)
    clock = Clock()
    wheel = TimerWheel(clock)
    entries: list[Entry] = []
    gone: set[int] = set()
    try:
        for step in range(60):
            for _ in range(draw.randrange(4)):
                left = draw.choice((0.0, 0.001, 0.5, 1.1, 10.0, 300.0, 5_000.0, 100_000.0)) * draw.uniform(0.5, 1.5)
                entry = Entry(clock, clock.now + left)
                wheel.add(entry.at, left, entry)
                entries.append(entry)
            if entries and draw.random() < 0.3:
                number = draw.randrange(len(entries))
                if not entries[number].fired:
                    wheel.remove(entries[number])
                    gone.add(number)
            advance(clock, wheel, clock.now + draw.choice((0.001, 0.1, 2.0, 50.0, 4_000.0)) * draw.random())
            assert step >= 0
        advance(clock, wheel, clock.now + 1_000_000)
        for number, entry in enumerate(entries):
            if number in gone:
                assert not entry.fired
            else:
                assert len(entry.fired) == 1
                assert entry.fired[0] - entry.at + 0.0011 >= 0, "never early, but for the clock's resolution"
                assert entry.fired[0] - entry.at <= 0.0051, "within a slot"
        assert wheel.slots() == 0
    finally:
        clock.close()


def test_calls_with_far_deadlines_leave_few_slots() -> None:
    clock = Clock()
    wheel = TimerWheel(clock)
    try:
        for number in range(200_000):
            clock.now += 0.004
            entry = Entry(clock, clock.now + 3_600)
            wheel.add(entry.at, 3_600, entry)
            wheel.remove(entry)
            assert number % 1000 or wheel.slots() <= 600
    finally:
        wheel.close()
        clock.close()


def test_one_that_expires_may_end_another() -> None:
    clock = Clock()
    wheel = TimerWheel(clock)
    try:

        class Ending(Entry):
            def handle_expired(self) -> None:
                super().handle_expired()
                wheel.remove(other)

        other = Entry(clock, 1000.5)
        first = Ending(clock, 1000.5)
        wheel.add(first.at, 0.5, first)
        wheel.add(other.at, 0.5, other)
        advance(clock, wheel, 1002.0)
        assert first.fired and not other.fired
    finally:
        clock.close()
