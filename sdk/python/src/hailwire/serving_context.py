"""Which call the running handler serves: calls that it makes have no more time than is left of that one, and say who
makes them.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple


class Serving(NamedTuple):
    """A call being served."""

    agent: str
    deadline: float | None
    """By the event loop's clock."""


serving: ContextVar[Serving | None] = ContextVar("hailwire_serving", default=None)
