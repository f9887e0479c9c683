"""The smallest agent: text in capitals.

python examples/python/shout.py
hail call shout "hello"
"""

import hailwire

hail = hailwire.connect()


@hail.agent("shout", description="returns a text in capitals")
async def shout(text: str) -> str:
    return text.upper()


if __name__ == "__main__":
    hail.run()
