"""gRPC in asyncio (grpcio's grpc.aio): one channel over a Unix socket, a unary call for each echo, bodies as they are,
without protocol buffers.
"""

from contextlib import asynccontextmanager

import grpc

import subject

SERVICE = "hailwire.bench.Echo"


async def answer(body, _context):
    return body


@asynccontextmanager
async def serve(_listen):
    with subject.socket_path() as path:
        server = grpc.aio.server()
        methods = {"Echo": grpc.unary_unary_rpc_method_handler(answer)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        try:
            yield f"unix:{path}"
        finally:
            await server.stop(None)


@asynccontextmanager
async def connect(address):
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary(f"/{SERVICE}/Echo")

        async def echo(body):
            return await call(body, timeout=subject.DEADLINE)

        yield echo


if __name__ == "__main__":
    subject.main(serve, connect, "grpcio")
