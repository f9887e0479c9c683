"""Writes a text as Morse code in sound to stdout, for `transcribe.py`: 16-bit samples, 8,000 a second."""

import array
import math
import sys

from transcribe import DOT, LETTERS, RATE, WINDOW

SIGNS = {letter: sign for sign, letter in LETTERS.items()}


def tone(windows: int) -> bytes:
    """So many windows of 700 Hz."""
    return array.array(
        "h", (int(12_000 * math.sin(2 * math.pi * 700 * at / RATE)) for at in range(windows * WINDOW))
    ).tobytes()


def silence(windows: int) -> bytes:
    """So many windows of nothing."""
    return bytes(2 * windows * WINDOW)


def main(text: str) -> None:
    out = sys.stdout.buffer
    for word in text.lower().split():
        for letter in word:
            for sign in SIGNS.get(letter, ""):
                out.write(tone(DOT if sign == "." else 3 * DOT) + silence(DOT))
            out.write(silence(2 * DOT))
        out.write(silence(4 * DOT))
        out.flush()


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]))
