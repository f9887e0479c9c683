"""A streaming pipeline of three agents: Morse code in sound becomes signs, letters and captions while it is still being
played.

python examples/python/transcribe.py            # serves `hear`, `spell` and `caption` python
examples/python/play_morse.py "sos we are sinking" | hail call caption -

`caption` calls `spell`, which calls `hear`: chunks of sound (16 bits, 8,000 a second) go up the chain as they come, and
letters come back down. None of the three holds more than a chunk, so a slow reader of captions slows the player.
"""

import array
from collections.abc import AsyncIterator

import hailwire

RATE = 8_000
WINDOW = RATE // 100
"""Samples that are judged at once: 10 ms."""
DOT = 6
"""Windows of a dot; a dash has three times as many, as has the pause between letters, and that between words seven."""
LETTERS = dict(
    zip(
        (
            ".- -... -.-. -.. . ..-. --. .... .. .--- -.- .-.. -- "
            "-. --- .--. --.- .-. ... - ..- ...- .-- -..- -.-- --.."
        ).split(),
        "abcdefghijklmnopqrstuvwxyz",
        strict=True,
    )
)

hail = hailwire.connect()


@hail.agent("hear", description="16-bit sound at 8,000 samples a second in, Morse signs out")
async def hear(request: hailwire.Request) -> AsyncIterator[str]:
    held = b""
    sounding, length = False, 0
    async for chunk in request:
        held += chunk
        while len(held) >= 2 * WINDOW:
            window, held = array.array("h", held[: 2 * WINDOW]), held[2 * WINDOW :]
            loud = max(map(abs, window)) > 4_000
            if loud == sounding:
                length += 1
                continue
            if sign := sign_of(sounding, length):
                yield sign
            sounding, length = loud, 1
    if sounding:
        yield sign_of(sounding, length)
    yield " "


def sign_of(sounding: bool, length: int) -> str:
    """What a sound or a silence of so many windows means."""
    if sounding:
        return "-" if length > 2 * DOT else "."
    return "/" if length > 5 * DOT else " " if length > 2 * DOT else ""


@hail.agent("spell", description="sound in, letters out")
async def spell(request: hailwire.Request) -> AsyncIterator[str]:
    sign = ""
    async for chunk in hail.call("hear", request):
        for mark in chunk.decode():
            if mark in ".-":
                sign += mark
                continue
            if sign:
                yield LETTERS.get(sign, "?")
                sign = ""
            if mark == "/":
                yield " "


@hail.agent("caption", description="sound in, a line for each word out")
async def caption(request: hailwire.Request) -> AsyncIterator[str]:
    word = ""
    async for chunk in hail.call("spell", request):
        for letter in chunk.decode():
            if letter == " ":
                yield word + "\n"
                word = ""
            else:
                word += letter
    if word:
        yield word + "\n"


if __name__ == "__main__":
    hail.run()
