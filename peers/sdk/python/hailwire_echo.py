"""Hailwire by its SDK for Python: both programs attach to the node whose data folder HAIL_DATA names."""

from contextlib import asynccontextmanager

import hailwire

import subject


@asynccontextmanager
async def serve(_listen):
    client = hailwire.connect()

    @client.agent("echo")
    async def answer(body: bytes) -> bytes:
        return body

    # Declared agents are registered when it is attached.
    async with client:
        # Both find the node by HAIL_DATA.
        yield ""


@asynccontextmanager
async def connect(_address):
    async with hailwire.connect() as hail:

        async def echo(body):
            return (await hail.call("echo", body, timeout=subject.DEADLINE)).body

        yield echo


if __name__ == "__main__":
    subject.main(serve, connect, f"hailwire {hailwire.__version__}")
