"""HTTP/1.1 by aiohttp on both sides, over a Unix socket: connections are kept, as many as calls are in flight."""

from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

import subject


async def answer(request):
    return web.Response(body=await request.read())


@asynccontextmanager
async def serve(_listen):
    with subject.socket_path() as path:
        application = web.Application()
        application.router.add_post("/echo", answer)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        try:
            await web.UnixSite(runner, path).start()
            yield path
        finally:
            await runner.cleanup()


@asynccontextmanager
async def connect(address):
    deadline = aiohttp.ClientTimeout(total=subject.DEADLINE)
    connector = aiohttp.UnixConnector(address, limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=deadline) as session:

        async def echo(body):
            async with session.post("http://localhost/echo", data=body) as response:
                return await response.read()

        yield echo


if __name__ == "__main__":
    subject.main(serve, connect, "aiohttp")
