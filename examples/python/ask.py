"""The smallest caller: asks an agent, here or on another machine, and prints its answer as it comes.

python examples/python/ask.py shout@laptop "hello"
"""

import asyncio
import sys

import hailwire


async def main(to: str, text: str) -> None:
    async with hailwire.connect() as hail:
        async for chunk in hail.call(to, text, timeout=30):
            print(chunk.decode(), end="", flush=True)
        print()


if __name__ == "__main__":
    try:
        asyncio.run(main(*sys.argv[1:]))
    except hailwire.HailError as error:
        sys.exit(f"{error.code}: {error.message}" + (f"\nhint: {error.hint}" if error.hint else ""))
