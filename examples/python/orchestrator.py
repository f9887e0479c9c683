"""An orchestrator: hands documents to a group of workers, whatever language they are written in, and adds up what they
answer.

python examples/python/orchestrator.py FILE...

Each document goes to the member that has least to do, and to another one where that has died. At most 40 are under way.
"""

import asyncio
import sys
from collections import Counter
from pathlib import Path

import hailwire

AT_ONCE = 40


async def count(hail: hailwire.Client, text: str, place: asyncio.Semaphore) -> Counter[str]:
    async with place:
        answer = await hail.call("count-words", text, timeout=60, idempotency_key=f"count-{hash(text)}", retries=5)
        return Counter(answer.json())


async def main(names: list[str]) -> None:
    place = asyncio.Semaphore(AT_ONCE)
    texts = await asyncio.to_thread(lambda: [Path(name).read_text() for name in names])
    async with hailwire.connect() as hail:
        members = sum(row["members"] for row in await hail.list_agents() if row["name"] == "count-words")
        print(f"{len(names)} documents for {members} workers")
        counts = await asyncio.gather(*(count(hail, text, place) for text in texts))
    for word, times in sum(counts, Counter[str]()).most_common(3):
        print(f"{times:6} {word}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
