"""Work that takes its time: handed out as a task, which survives restarts of either machine, followed, and answered.

python examples/python/long_task.py
"""

import asyncio

import hailwire

hail = hailwire.connect()


@hail.agent("primes", description="how many primes there are below a number")
async def primes(request: hailwire.Request) -> int:
    most = int(await request.text())
    sieve = bytearray([1]) * most
    sieve[:2] = b"\0\0"
    for number in range(2, int(most**0.5) + 1):
        if sieve[number]:
            sieve[number * number :: number] = bytes(len(range(number * number, most, number)))
            if request.message_id:
                await hail.report_progress(request, number, int(most**0.5), f"crossed out multiples of {number}")
    return sum(sieve)


async def main() -> None:
    async with hail:
        receipt = await hail.submit("primes", "100000", idempotency_key="primes-below-100000")
        async for detail in hail.follow_task(receipt["id"]):
            progress = detail["progress"]
            print(detail["state"], f"{progress['done']} of {progress['total']}" if progress else "")
        print("there are", hailwire.content(detail["answer"]).decode())


if __name__ == "__main__":
    asyncio.run(main())
