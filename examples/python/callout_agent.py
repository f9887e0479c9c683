#!/usr/bin/env python3
"""An agent of Agent Protocol v2 over a Unix socket, with nothing but the standard library (Python 3.9 and newer).

    python3 callout_agent.py /tmp/agent.sock

Write a class with a method for each event that you want, `request_headers`, `request_body_chunk`, `response_headers`,
`response_body_chunk`, `request_complete` or `websocket_frame`, and give it to `serve`. A method takes the event as
a dict and returns `allow()`, `block(status)` or any other answer of the protocol. Methods of different requests run
side by side; those of one request one after the other. A cancel ends what runs for its request.

On the wire: u32 length (type and payload), u8 type, JSON. The handshake is the first frame in each direction.
"""
import asyncio, base64, json, os, struct, sys

HELLO, WELCOME, ANSWER, CANCEL, PING, PONG = 0x01, 0x02, 0x20, 0x40, 0x41, 0x42
EVENTS = {  # type on the wire: (method, number in the capabilities)
    0x10: ("request_headers", 1), 0x11: ("request_body_chunk", 2),
    0x12: ("response_headers", 3), 0x13: ("response_body_chunk", 4),
    0x14: ("request_complete", 5), 0x15: ("websocket_frame", 6),
    0x16: ("guardrail_inspect", 7), 0x17: ("configure", 8),
}
MOST = 16 << 20  # bytes of a frame
AT_ONCE = 100    # requests that are worked on at once


def allow(**more):
    """Lets it pass; `more` may be header operations, routing_metadata, audit, needs_more."""
    return {"decision": "allow", **more}


def block(status, body=None, **more):
    """The host answers with this status."""
    return {"decision": {"block": {"status": status, "body": body, "headers": None}}, **more}


def data(event):
    """The bytes of a piece of a body."""
    return base64.b64decode(event["data"])


class Connection:
    """One host: reads frames, runs the agent's methods, writes their answers."""

    def __init__(self, agent, reader, writer):
        self.agent, self.reader, self.writer = agent, reader, writer
        self.requests = {}  # correlation id: the task of its last event
        self.places = asyncio.Semaphore(AT_ONCE)

    async def run(self):
        try:
            kind, _ = await self.read()
            if kind == HELLO:
                self.write(WELCOME, self.welcome())
                while True:
                    kind, payload = await self.read()
                    await self.frame(kind, payload)
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            pass  # the host has left, or is none
        finally:
            for task in self.requests.values():
                task.cancel()
            self.writer.close()

    async def read(self):
        (length,) = struct.unpack(">I", await self.reader.readexactly(4))
        if not 1 <= length <= MOST:
            raise ValueError("a frame of %d bytes" % length)
        frame = await self.reader.readexactly(length)
        return frame[0], frame[1:]

    def write(self, kind, value):
        payload = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.writer.write(struct.pack(">IB", 1 + len(payload), kind) + payload)

    def welcome(self):
        wanted = [number for name, number in EVENTS.values() if hasattr(self.agent, name)]
        body = hasattr(self.agent, "request_body_chunk") or hasattr(self.agent, "response_body_chunk")
        name = getattr(self.agent, "name", type(self.agent).__name__)
        return {"protocol_version": 2, "success": True, "error": None, "encoding": "json", "capabilities": {
            "agent_id": name, "name": name, "version": "1", "supported_events": wanted,
            "features": {"streaming_body": body, "websocket": 6 in wanted, "guardrails": 7 in wanted,
                         "config_push": 8 in wanted, "metrics_export": False, "concurrent_requests": AT_ONCE,
                         "cancellation": True, "flow_control": False, "health_reporting": False},
            "limits": {"max_body_size": 10 << 20, "max_concurrency": AT_ONCE, "preferred_chunk_size": 65536}}}

    async def frame(self, kind, payload):
        if kind == PING:
            self.write(PONG, payload)
        elif kind == CANCEL:
            task = self.requests.pop(json.loads(payload)["correlation_id"], None)
            if task:
                task.cancel()
        elif kind in EVENTS:
            event = json.loads(payload)
            id = event.get("correlation_id") or event["metadata"]["correlation_id"]
            before = self.requests.get(id)
            if before is None:
                await self.places.acquire()  # reads no further while there is no room
            task = asyncio.ensure_future(self.answer(id, EVENTS[kind][0], event, before))
            self.requests[id] = task
            task.add_done_callback(lambda task: self.done(id, task, before is None))
            await self.writer.drain()

    async def answer(self, id, name, event, before):
        if before:
            await asyncio.wait([before])
        method = getattr(self.agent, name, None)
        try:
            answer = await method(event) if method else allow()
        except Exception as error:  # whoever cannot decide does not let it pass
            print("%s: %r" % (name, error), file=sys.stderr)
            answer = block(500)
        audit = answer.setdefault("audit", {})
        audit.setdefault("custom", {})["correlation_id"] = id  # an answer says to what
        self.write(ANSWER, {"version": 2, **answer})

    def done(self, id, task, first):
        if self.requests.get(id) is task:
            del self.requests[id]
        if first:
            self.places.release()


async def serve(agent, path):
    """Serves an agent until it is cancelled."""
    if os.path.exists(path):
        os.unlink(path)
    mask = os.umask(0o177)  # only this user may connect
    try:
        server = await asyncio.start_unix_server(
            lambda reader, writer: Connection(agent, reader, writer).run(), path, limit=MOST)
    finally:
        os.umask(mask)
    print("ready", flush=True)
    async with server:
        await server.serve_forever()


class NoSecrets:
    """Blocks /admin, names the agent to the upstream, and stops bodies that carry a secret."""

    name = "no-secrets"

    async def request_headers(self, event):
        if event["uri"].startswith("/admin"):
            return block(403, "not here\n", audit={"tags": ["admin"], "reason_codes": ["ADMIN_PATH"]})
        return allow(request_headers=[{"set": {"name": "x-checked-by", "value": self.name}}])

    async def request_body_chunk(self, event):
        if b"BEGIN PRIVATE KEY" in data(event):
            return block(422)
        return allow(needs_more=not event["is_last"])


if __name__ == "__main__":
    try:
        asyncio.run(serve(NoSecrets(), sys.argv[1]))
    except KeyboardInterrupt:
        pass
