"""NATS by nats-py: request and reply through a nats-server of its own, one connection on each side. NATS has no Unix
sockets.
"""

from contextlib import asynccontextmanager

import nats

import subject


async def answer(message):
    await message.respond(message.data)


@asynccontextmanager
async def serve(listen):
    async with subject.nats_server(listen) as url:
        connection = await nats.connect(url)
        await connection.subscribe("echo", cb=answer)
        await connection.flush()
        try:
            yield url
        finally:
            await connection.close()


@asynccontextmanager
async def connect(address):
    connection = await nats.connect(address)

    async def echo(body):
        return (await connection.request("echo", body, timeout=subject.DEADLINE)).data

    try:
        yield echo
    finally:
        await connection.close()


if __name__ == "__main__":
    subject.main(serve, connect, "nats-py")
