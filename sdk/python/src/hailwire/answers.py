"""A whole answer."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from .convert import value_of
from .errors import HailError

T = TypeVar("T")
Pairs = list[tuple[str, str]]
"""Fields of the application's own: name and value."""


class Answer:
    """A whole answer."""

    __slots__ = ("body", "headers", "type")

    def __init__(self, body: bytes, type: str = "", headers: Pairs | None = None) -> None:
        self.body = body
        """Its bytes."""
        self.type = type
        """The media type that the agent stated; empty for bytes."""
        self.headers: Pairs = [] if headers is None else headers
        """The application's own fields, in their order."""

    @property
    def text(self) -> str:
        """The body as text. Raises UnicodeDecodeError where it is no UTF-8."""
        return self.body.decode()

    def json(self) -> Any:
        """The body as JSON. Raises ValueError where it is none."""
        return json.loads(self.body)

    def to(self, kind: type[T]) -> T:
        """The body as a value of a type: bytes, str, or what JSON makes of a dataclass, a dict, a list or a number.

        Raises HailError, `internal`, where it is no such value.
        """
        try:
            return value_of(kind, self.body)
        except (TypeError, ValueError) as error:
            raise HailError("internal", f"the answer is no {getattr(kind, '__name__', kind)}: {error}") from error

    def header(self, name: str) -> str | None:
        """The first of the fields with this name."""
        return next((value for key, value in self.headers if key == name), None)

    def __bytes__(self) -> bytes:
        return self.body

    def __len__(self) -> int:
        return len(self.body)

    def __repr__(self) -> str:
        shown = self.body if len(self.body) <= 64 else self.body[:64] + b"..."
        return f"Answer({shown!r}, type={self.type!r})"
