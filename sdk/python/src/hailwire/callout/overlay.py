"""An inspection agent on the overlay: a proxy on another machine asks it through the raw streams of an ordinary agent.

```python
hail = hailwire.connect()
hail.agent("waf")(callout.on_streams(agent))
hail.run()
```

The proxy's machine then names it as `hail "waf@laptop"` in its settings (docs/reference/callout.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from ..errors import HailError
from ..requests import Request
from .agent import Agent


class RequestStream:
    """The two directions of a raw stream, as `Agent.serve_stream` wants them."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.answers: asyncio.Queue[bytes] = asyncio.Queue(1)
        """What is to be sent, a chunk at a time."""

    async def read(self, limit: int, /) -> bytes:
        """The next bytes; none at the end."""
        del limit
        try:
            while True:
                chunk = await anext(self._request, None)
                if chunk is None:
                    return b""
                if chunk:
                    return chunk
        except HailError as error:
            raise ConnectionResetError(str(error)) from error

    async def write(self, data: bytes, /) -> None:
        """Sends bytes; returns once those before are on their way."""
        await self.answers.put(data)

    async def close(self) -> None:
        """The handler's end closes the stream."""


def on_streams(agent: Agent) -> Callable[[Request], AsyncIterator[bytes]]:
    """A handler that answers each raw stream as one connection of a proxy."""

    async def handler(request: Request) -> AsyncIterator[bytes]:
        if request.kind != "stream":
            what = "an inspection agent is asked over raw streams"
            raise HailError("unimplemented", what, hint="see docs/guide/inspection-agents.md")
        stream = RequestStream(request)
        serving = asyncio.ensure_future(agent.serve_stream(stream))
        taking: asyncio.Task[bytes] | None = None
        try:
            while True:
                taking = asyncio.ensure_future(stream.answers.get())
                await asyncio.wait({serving, taking}, return_when=asyncio.FIRST_COMPLETED)
                if taking.done():
                    yield taking.result()
                    continue
                while not stream.answers.empty():
                    yield stream.answers.get_nowait()
                return
        finally:
            for task in (serving, taking):
                if task is not None:
                    task.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    return handler
