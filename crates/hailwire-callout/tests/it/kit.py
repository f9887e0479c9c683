"""Agents as the kits in other languages have them, for tests: small, and faithful in what matters on the wire.

    kit.py v1 PATH          the older framing as the kit for Python has it: a message is read with one read
    kit.py v1-silent PATH   as the kit for TypeScript has it: what it cannot read it does not answer
    kit.py documented PATH  the documented wire, as the Go kit's v2 has it: one event after the other
    kit.py dial PATH TOKEN  the same, but it dials its proxy and registers

Lines on stdout say what happened, the first that it is ready. A request for /block is blocked, /slow is answered after
300 ms, /stuck never; a body with "attack" in it is blocked when it is whole.
"""

import asyncio
import base64
import json
import struct
import sys


def say(*words):
    print(*words, flush=True)


async def decide(uri):
    if uri == "/slow":
        await asyncio.sleep(0.3)
    if uri == "/stuck":
        await asyncio.sleep(3600)
    return {"block": {"status": 403, "body": "no"}} if uri == "/block" else "allow"


def judge(body):
    return {"block": {"status": 406}} if b"attack" in body else "allow"


class V1:
    """What one connection remembers."""

    def __init__(self):
        self.heads = {}
        self.bodies = {}

    async def handle(self, event):
        kind, of = event["event_type"], event["payload"]
        id = of.get("correlation_id") or of.get("metadata", {}).get("correlation_id", "")
        if kind == "configure":
            if of["config"].get("refuse"):
                return {"success": False, "error": "as told"}
            return {"success": True}
        if kind == "request_complete":
            known = self.heads.pop(id, None)
            self.bodies.pop(id, None)
            if known:
                say("complete", id, of["status"], of["request_size"])
            return {"success": True}
        if kind == "guardrail_inspect":
            found = "ignore" in of["content"]
            return {"detected": found, "confidence": 1.0 if found else 0.0, "detections": []}
        if kind == "request_headers":
            self.heads[id] = of
            self.bodies[id] = b""
            return self.answer(await decide(of["uri"]), [{"set": {"name": "x-kit", "value": of["method"]}}])
        if kind in ("request_body_chunk", "response_body_chunk"):
            if id in self.bodies:
                self.bodies[id] += base64.b64decode(of["data"])
            if of["is_last"] and id in self.heads:
                return self.answer(judge(self.bodies[id]))
            return self.answer("allow", needs_more=True)
        if kind == "response_headers":
            return self.answer(judge(str(of["status"]).encode()))
        return self.answer("allow")

    @staticmethod
    def answer(decision, headers=(), needs_more=False):
        return {
            "version": 2,
            "decision": decision,
            "request_headers": list(headers),
            "response_headers": [],
            "routing_metadata": {},
            "audit": {},
            "needs_more": needs_more,
            "request_body_mutation": None,
            "response_body_mutation": None,
            "websocket_decision": None,
        }


async def v1(reader, writer, silent):
    say("connection")
    kit = V1()
    try:
        while True:
            prefix = await reader.read(4)
            if len(prefix) < 4:
                break
            (length,) = struct.unpack(">I", prefix)
            data = await (reader.readexactly(length) if silent else reader.read(length))
            if len(data) < length:
                raise ValueError("incomplete message")
            try:
                event = json.loads(data)
                answer = json.dumps(await kit.handle(event)).encode()
            except ValueError:
                if silent:
                    continue
                raise
            writer.write(struct.pack(">I", len(answer)) + answer)
            await writer.drain()
    except (ValueError, UnicodeDecodeError, ConnectionError) as error:
        say("error", type(error).__name__)
    finally:
        writer.close()


ABLE = {
    "handles_request_headers": True,
    "handles_request_body": True,
    "handles_response_headers": True,
    "handles_response_body": False,
    "supports_streaming": True,
    "supports_cancellation": True,
    "max_concurrent_requests": 8,
}


async def read_frame(reader):
    try:
        (length,) = struct.unpack(">I", await reader.readexactly(4))
        frame = await reader.readexactly(length)
        return frame[0], json.loads(frame[1:] or b"{}")
    except (asyncio.IncompleteReadError, ValueError):
        return None


async def write_frame(writer, code, payload):
    data = json.dumps(payload).encode()
    writer.write(struct.pack(">IB", 1 + len(data), code) + data)
    await writer.drain()


class Documented:
    """What a whole agent remembers, whatever the connection."""

    def __init__(self):
        self.heads = {}
        self.bodies = {}

    async def serve(self, reader, writer):
        say("connection")
        frame = await read_frame(reader)
        if frame is None or frame[0] != 0x01:
            writer.close()
            return
        good = frame[1].get("protocol_version") == 2
        answer = {"protocol_version": 2, "agent_name": "kit", "accepted": good, "capabilities": ABLE if good else None}
        if not good:
            answer["error"] = "unsupported protocol version"
        await write_frame(writer, 0x02, answer)
        await self.loop(reader, writer)

    async def loop(self, reader, writer):
        while (frame := await read_frame(reader)) is not None:
            code, of = frame
            id = of.get("request_id", 0)
            if code == 0x10:
                self.heads[id] = of
                self.bodies[id] = b""
                say("head", of["metadata"]["correlation_id"], id, of["has_body"])
                decision = await decide(of["uri"])
                ops = [{"operation": "set", "name": "x-kit", "value": of["headers"]["host"][0]}]
                await write_frame(writer, 0x20, {"request_id": id, "decision": decision, "request_headers": ops})
            elif code == 0x11:
                data = base64.b64decode(of["data"])
                self.bodies[id] = self.bodies.get(id, b"") + data
                if data == b"change":
                    changed = base64.b64encode(b"changed").decode()
                    await write_frame(writer, 0x21, {"request_id": id, "chunk_index": of["chunk_index"], "data": changed})
                elif of["is_last"] and id in self.heads:
                    await write_frame(writer, 0x20, {"request_id": id, "decision": judge(self.bodies[id])})
                else:
                    await write_frame(writer, 0x20, {"request_id": id, "decision": {"needs_more": True}})
            elif code == 0x12:
                await write_frame(writer, 0x20, {"request_id": id, "decision": "allow"})
            elif code == 0x30:
                known = self.heads.pop(id, None)
                self.bodies.pop(id, None)
                say("cancel", id, known is not None)
            elif code == 0xF0:
                await write_frame(writer, 0xF1, {"timestamp": of["timestamp"]})
            else:
                await write_frame(writer, 0x20, {"request_id": 0, "decision": "allow"})
        writer.close()


async def main():
    mode, path = sys.argv[1], sys.argv[2]
    if mode == "dial":
        reader, writer = await asyncio.open_unix_connection(path)
        registration = {"protocol_version": 2, "agent_id": "kit", "capabilities": ABLE, "auth_token": sys.argv[3]}
        await write_frame(writer, 0x03, registration)
        code, answer = await read_frame(reader)
        say("registered", code, answer["accepted"], answer.get("assigned_id") or answer.get("error"))
        await Documented().loop(reader, writer)
        return
    documented = Documented()

    async def serve(reader, writer):
        if mode == "documented":
            await documented.serve(reader, writer)
        else:
            await v1(reader, writer, mode == "v1-silent")

    server = await asyncio.start_unix_server(serve, path=path)
    say("ready")
    async with server:
        await server.serve_forever()


asyncio.run(main())
