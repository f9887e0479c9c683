"""How a call ended: a code of gRPC's, and words about it (spec/session.md, "Status and codes")."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Code(IntEnum):
    """Why something ended. The numbers are those of gRPC's codes."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16

    @classmethod
    def of(cls, number: int) -> Code:
        """The code of this number; UNKNOWN for a number of the future."""
        return cls(number) if 0 <= number <= 16 else cls.UNKNOWN

    @property
    def text(self) -> str:
        """The code as the protocol's pages write it, such as `not_found`."""
        return self.name.lower()


RETRYABLE = frozenset((Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED, Code.ABORTED))
"""Codes after which the same call, made again, may succeed."""

MAX_MESSAGE = 1024
MAX_DETAILS = 8192


@dataclass(frozen=True, slots=True)
class Status:
    """How a call, or an attachment, ended."""

    code: Code
    message: str = ""
    hint: str = ""
    details: str = ""
    retry_after_ms: int = 0

    def __str__(self) -> str:
        return f"{self.code.text}: {self.message}" if self.message else self.code.text


OK = Status(Code.OK)
OUT_OF_TIME = Status(Code.DEADLINE_EXCEEDED, "the time for the call has run out")


def cut(text: str, most: int) -> str:
    """The longest beginning of a text that has no more than so many bytes of UTF-8."""
    data = text.encode("utf-8", "replace")
    return text if len(data) <= most else data[:most].decode("utf-8", "ignore")
