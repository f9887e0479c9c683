"""Keys of nodes: 32 bytes, as text 52 characters of z-base-32 (spec/vectors/addresses.json)."""

from __future__ import annotations

from typing import Final

_DIGITS: Final = "ybndrfg8ejkmcpqxot1uwisza345h769"
_LENGTH: Final = 52
# 256 bits in 52 digits of five leave four at the end, which are zero.
_SPARE: Final = 4


def is_key(text: str) -> bool:
    """Whether this is a key in text."""
    return (
        len(text) == _LENGTH
        and all(digit in _DIGITS for digit in text)
        and _DIGITS.index(text[-1]) % (1 << _SPARE) == 0
    )


def key_text(key: bytes) -> str:
    """A key as text."""
    number = int.from_bytes(key, "big") << _SPARE
    return "".join(_DIGITS[number >> 5 * at & 31] for at in range(_LENGTH - 1, -1, -1))


def key_bytes(text: str) -> bytes:
    """The 32 bytes of a key in text. Raises ValueError where it is none."""
    if not is_key(text):
        raise ValueError(f"`{text}` is no node's key")
    number = 0
    for digit in text:
        number = number << 5 | _DIGITS.index(digit)
    return (number >> _SPARE).to_bytes(32, "big")
