"""Many programs that share values and tell each other what happens: a whiteboard with a news feed.

python examples/python/whiteboard.py watch &
python examples/python/whiteboard.py write color green
"""

import asyncio
import sys

import hailwire


async def watch(count: int) -> None:
    async with hailwire.connect() as hail, hail.subscribe("whiteboard.>") as news:
        print("watching", flush=True)
        async for message in news.messages():
            key = message.topic.removeprefix("whiteboard.")
            value = await hail.state_get(key, patience=1)
            print(f"{key} is {value.text if value else 'gone'} now", flush=True)
            count -= 1
            if count == 0:
                return


async def write(key: str, value: str) -> None:
    async with hailwire.connect() as hail:
        await hail.state_put(key, value)
        await hail.publish(f"whiteboard.{key}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["watch", *count]:
            asyncio.run(watch(int(count[0]) if count else 0))
        case ["write", key, value]:
            asyncio.run(write(key, value))
        case _:
            sys.exit("usage: whiteboard.py watch [COUNT] | write KEY VALUE")
