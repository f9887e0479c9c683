"""A worker of a group: counts the words of a document. Start as many as you like, here and on other machines.

python examples/python/worker.py & python examples/python/worker.py &
python examples/python/orchestrator.py README.md docs/*.md
"""

import re
from collections import Counter

import hailwire

hail = hailwire.connect()


@hail.agent("count-words", description="the words of a text and how often each occurs", max_concurrency=2)
async def count_words(text: str) -> dict[str, int]:
    return dict(Counter(re.findall(r"[a-z]+", text.lower())))


if __name__ == "__main__":
    hail.run()
