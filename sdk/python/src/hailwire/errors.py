"""What goes wrong, as an exception: a code, what happened, what to try next."""

from __future__ import annotations

from .protocol.status import RETRYABLE, Code, Status


class HailError(Exception):
    """A call, a registration or an attachment that failed.

    `code` is one of the names of spec/session.md, such as `"not_found"` or `"deadline_exceeded"`; the numbers are
    gRPC's. Raise it in a handler to end the call with it: `raise HailError("not_found", "there is no such file")`.
    """

    def __init__(
        self, code: str | Code, message: str = "", *, hint: str = "", details: str = "", retry_after: float = 0.0
    ) -> None:
        number = code if isinstance(code, Code) else _BY_TEXT[code]
        self.status = Status(number, message, hint, details, round(retry_after * 1000))
        self.partial = b""
        """What had come of an answer that was awaited whole, when it failed."""
        super().__init__(str(self.status))

    @classmethod
    def of(cls, status: Status) -> HailError:
        """The error of a status."""
        return cls(
            status.code,
            status.message,
            hint=status.hint,
            details=status.details,
            retry_after=status.retry_after_ms / 1000,
        )

    @property
    def code(self) -> str:
        """Why, as a name: `"unavailable"`."""
        return self.status.code.text

    @property
    def number(self) -> int:
        """Why, as gRPC's number: 14."""
        return int(self.status.code)

    @property
    def message(self) -> str:
        """What happened, in lower case and without a full stop."""
        return self.status.message

    @property
    def hint(self) -> str:
        """What to try next; empty where nobody knows."""
        return self.status.hint

    @property
    def details(self) -> str:
        """Free text, such as the end of a program's stderr; empty where there is none."""
        return self.status.details

    @property
    def retry_after(self) -> float:
        """Seconds after which another try may help; 0 where nobody knows."""
        return self.status.retry_after_ms / 1000

    @property
    def retryable(self) -> bool:
        """Whether the same call, made again, may succeed: `unavailable`, `resource_exhausted`, `aborted`."""
        return self.status.code in RETRYABLE

    def __str__(self) -> str:
        text = str(self.status)
        return f"{text} (hint: {self.hint})" if self.hint else text

    def __reduce__(self) -> tuple[object, tuple[Status]]:
        return (HailError.of, (self.status,))


_BY_TEXT = {code.text: code for code in Code}
