"""An agent and its host: decisions, order, cancels, notices, registration and drain."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_callout_support import RawHost, chunk, head, run

from hailwire import callout
from hailwire.callout.codec import Encoding, pack, unpack


def test_the_agent_decides_in_either_encoding() -> None:
    async def work(offered: list[str], chosen: str) -> None:
        agent = callout.Agent("no-admin", version="1.2")

        @agent.request_headers
        async def check(request: callout.RequestHeaders) -> callout.Decision:
            if request.uri.startswith("/admin"):
                return callout.block(403, "no", headers={"x-why": "admin"})
            return callout.allow(request_headers=[callout.set_header("x-by", request.headers.get("HOST") or "")])

        host = RawHost(agent)
        welcome = await host.greet(supported_encodings=offered)
        assert welcome["success"] is True and welcome["encoding"] == chosen
        assert welcome["capabilities"]["agent_id"] == "no-admin"
        assert welcome["capabilities"]["supported_events"] == [1]
        assert "x_hailwire" not in welcome
        encode = pack if chosen == "msgpack" else lambda value: json.dumps(value).encode()
        decode: Callable[[bytes], Any] = unpack if chosen == "msgpack" else json.loads
        await host.send(0x10, encode(head("c1", "/admin")))
        frame = await host.receive()
        assert frame is not None
        assert decode(frame[1])["decision"] == {"block": {"status": 403, "body": "no", "headers": {"x-why": "admin"}}}
        await host.send(0x10, encode(head("c2")))
        frame = await host.receive()
        assert frame is not None
        assert decode(frame[1]) == {
            "version": 2,
            "decision": "allow",
            "request_headers": [{"set": {"name": "x-by", "value": "example.com"}}],
            "audit": {"custom": {"correlation_id": "c2"}},
        }
        # Nobody asked for it, and nobody has to decide it.
        await host.send(0x17, encode({"correlation_id": "c3", "config": None}))
        frame = await host.receive()
        assert frame is not None and decode(frame[1])["decision"] == "allow"
        await host.close()

    run(work(["cbor", "msgpack", "json"], "msgpack"))
    run(work(["json", "msgpack"], "json"))
    run(work([], "json"))


def test_every_event_reaches_its_handler() -> None:
    async def work() -> None:
        agent = callout.Agent("all")
        seen: list[callout.Event] = []

        def note(event: Any) -> callout.Decision:
            seen.append(event)
            return callout.allow()

        for register in (
            agent.request_headers,
            agent.request_body,
            agent.response_headers,
            agent.response_body,
            agent.request_complete,
            agent.websocket_frame,
            agent.guardrail,
            agent.configure,
        ):
            register(note)
        host = RawHost(agent)
        welcome = await host.greet()
        assert welcome["capabilities"]["supported_events"] == [1, 2, 3, 4, 5, 6, 7, 8]
        features = welcome["capabilities"]["features"]
        assert all(features.values())
        complete = {
            "correlation_id": "c",
            "status": 200,
            "duration_ms": 1,
            "request_body_size": 2,
            "response_body_size": 3,
            "upstream_attempts": 1,
        }
        frame = {
            "correlation_id": "c",
            "opcode": "text",
            "data": "aGk=",
            "client_to_server": True,
            "frame_index": 0,
            "fin": True,
            "client_ip": "192.0.2.1",
        }
        text = {"correlation_id": "c", "inspection_type": "pii_detection", "content": "hello"}
        events: list[tuple[int, dict[str, Any]]] = [
            (0x10, head("c")),
            (0x11, chunk("c", "aGk=")),
            (0x12, {"correlation_id": "c", "status": 200, "headers": {}}),
            (0x13, chunk("c")),
            (0x14, complete),
            (0x15, frame),
            (0x16, text),
            (0x17, {"correlation_id": "c", "config": {"a": [1]}}),
        ]
        for kind, payload in events:
            await host.send(kind, payload)
            assert (await host.answer())["decision"] == "allow"
        assert [type(event).__name__ for event in seen] == [
            "RequestHeaders",
            "BodyChunk",
            "ResponseHeaders",
            "BodyChunk",
            "RequestComplete",
            "WebSocketFrame",
            "Guardrail",
            "Configure",
        ]
        await host.close()

    run(work())


def test_chunks_of_one_body_come_in_order_and_other_requests_pass_them() -> None:
    async def work() -> None:
        agent = callout.Agent("a")
        order: list[int] = []
        go_on = asyncio.Event()

        @agent.request_body
        async def look(piece: callout.BodyChunk) -> callout.Decision:
            if piece.index == 0:
                await go_on.wait()
            order.append(piece.index)
            return callout.allow(needs_more=not piece.is_last)

        @agent.request_headers
        def pass_on(request: callout.RequestHeaders) -> callout.Decision:
            return callout.allow()

        host = RawHost(agent)
        await host.greet()
        for index in range(3):
            await host.send(0x11, chunk("slow", "YQ==", is_last=index == 2, index=index))
        await host.ask_head("quick")
        assert (await host.answer())["audit"]["custom"]["correlation_id"] == "quick"
        assert order == []
        go_on.set()
        answers = [await host.answer() for _ in range(3)]
        assert order == [0, 1, 2]
        assert [answer.get("needs_more", False) for answer in answers] == [True, True, False]
        await host.close()

    run(work())


def test_a_cancel_ends_the_handler_and_nothing_is_answered() -> None:
    async def work() -> None:
        agent = callout.Agent("a")
        ended: list[str] = []
        told: list[tuple[str, str]] = []
        started = asyncio.Event()

        @agent.request_headers
        async def slow(request: callout.RequestHeaders) -> callout.Decision:
            if request.correlation_id != "slow":
                return callout.allow()
            try:
                started.set()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append(request.correlation_id)
                raise
            return callout.block()

        @agent.cancelled
        def note(correlation_id: str, reason: str) -> None:
            told.append((correlation_id, reason))

        host = RawHost(agent)
        await host.greet()
        await host.ask_head("slow")
        await host.send(0x11, chunk("slow"))
        await started.wait()
        await host.send(0x40, {"correlation_id": "slow", "reason": 1, "timestamp_ms": 0})
        await host.ask_head("other")
        assert (await host.answer())["audit"]["custom"]["correlation_id"] == "other"
        assert ended == ["slow"] and told == [("slow", "timeout")]
        (connected,) = agent.hosts
        assert connected.in_flight == 0
        # One that has not begun is never run.
        await host.ask_head("slow")
        await host.send(0x40, {"correlation_id": "slow", "reason": 0})
        await host.ask_head("third")
        assert (await host.answer())["audit"]["custom"]["correlation_id"] == "third"
        await host.close()

    run(work())


def test_the_end_of_a_connection_ends_its_handlers() -> None:
    async def work() -> None:
        agent = callout.Agent("a")
        ended = asyncio.Event()
        started = asyncio.Event()

        @agent.request_headers
        async def slow(request: callout.RequestHeaders) -> callout.Decision:
            try:
                started.set()
                await asyncio.Event().wait()
            finally:
                ended.set()
            return callout.allow()

        host = RawHost(agent)
        await host.greet()
        await host.ask_head("c1")
        await started.wait()
        await host.close()
        assert ended.is_set() and agent.hosts == []

    run(work())


def test_whoever_cannot_decide_blocks() -> None:
    async def work() -> None:
        agent = callout.Agent("a")

        @agent.request_headers
        async def fails(request: callout.RequestHeaders) -> callout.Decision:
            match request.uri:
                case "/raises":
                    raise KeyError("x")
                case "/nothing":
                    return None  # type: ignore[return-value]
                case "/gives-up":
                    raise asyncio.CancelledError
                case "/surrogate":
                    return callout.block(403, "\ud800")
                case "/not-a-number":
                    return callout.allow(audit=callout.Audit(custom={"x": float("nan")}))
                case "/no-form":
                    return callout.allow(audit=callout.Audit(custom={"x": object()}))
            return callout.block(403, "x" * (16 << 20))

        host = RawHost(agent)
        await host.greet()
        for uri in ("raises", "nothing", "gives-up", "surrogate", "not-a-number", "no-form", "too-large"):
            await host.ask_head(uri, f"/{uri}")
            answer = await host.answer()
            assert answer["decision"]["block"]["status"] == 500, uri
            assert answer["audit"]["custom"]["correlation_id"] == uri
        await host.close()

    run(work())


def test_nothing_of_the_agents_hides_the_id() -> None:
    async def work() -> None:
        agent = callout.Agent("a")

        @agent.request_headers
        def lies(request: callout.RequestHeaders) -> callout.Decision:
            return callout.allow(audit=callout.Audit(custom={"correlation_id": "other", "n": 1}))

        host = RawHost(agent)
        await host.greet()
        await host.ask_head("c1")
        assert (await host.answer())["audit"]["custom"] == {"correlation_id": "c1", "n": 1}
        await host.close()

    run(work())


def test_values_of_a_header_that_comes_twice_are_put_together() -> None:
    async def work() -> None:
        agent = callout.Agent("a")
        seen: list[callout.Headers] = []

        @agent.request_headers
        def note(request: callout.RequestHeaders) -> callout.Decision:
            seen.append(request.headers)
            return callout.allow()

        host = RawHost(agent)
        await host.greet()
        event = json.dumps(head("c1")).replace(
            '{"host": ["example.com"]}', '{"X-A":["1"],"x-b":["2"],"X-A":["3"],"x-a":["4"]}'
        )
        await host.send(0x10, event.encode())
        await host.answer()
        assert seen[0].to_dict() == {"X-A": ["1", "3", "4"], "x-b": ["2"]}
        assert seen[0].get_all("x-A") == ["1", "3", "4"] and seen[0].get("X-B") == "2"
        assert list(seen[0].items()) == [("X-A", "1"), ("X-A", "3"), ("X-A", "4"), ("x-b", "2")]
        await host.close()

    run(work())


def test_between_two_of_ours_chunks_travel_as_they_are() -> None:
    async def work() -> None:
        agent = callout.Agent("a")

        @agent.response_body
        def shout(piece: callout.BodyChunk) -> callout.Decision:
            if piece.data == b"pass":
                return callout.allow()
            return callout.replace(piece, piece.data.upper(), needs_more=not piece.is_last)

        host = RawHost(agent)
        welcome = await host.greet(
            x_hailwire={"raw_bodies": True, "window": 65536}, supported_encodings=["msgpack", "json"]
        )
        assert welcome["x_hailwire"] == {"raw_bodies": True, "window": 65536}
        number = (1 << 40).to_bytes(8, "big")
        fixed = number + b"\x01" + (3).to_bytes(4, "big") + bytes(16) + b"\x00\x02c1"
        await host.send(0x52, fixed + b"abc")
        frame = await host.receive()
        assert frame is not None and frame[0] == 0x53
        said = frame[1][17:-3]
        assert frame[1][:17] == number + b"\x01" + (3).to_bytes(4, "big") + len(said).to_bytes(4, "big")
        assert unpack(said) == {
            "version": 2,
            "decision": "allow",
            "audit": {"custom": {"correlation_id": ""}},
            "needs_more": True,
        }
        assert frame[1][-3:] == b"ABC"
        await host.send(0x52, fixed + b"pass")
        assert await host.receive() == (0x51, number)
        await host.close()

    run(work())


def test_an_agent_registers_with_its_host_and_is_refused_by_another() -> None:
    async def work() -> None:
        agent = callout.Agent("a")

        @agent.request_headers
        def pass_on(request: callout.RequestHeaders) -> callout.Decision:
            return callout.allow()

        host = RawHost(agent, registers=True, token="secret")
        frame = await host.receive()
        assert frame is not None and frame[0] == 0x01
        said = json.loads(frame[1])
        assert said["agent_id"] == "a" and said["auth_token"] == "secret"
        assert said["x_hailwire"] == {
            "raw_bodies": True,
            "window": 512 << 10,
            "encodings": ["msgpack", "json"],
        }
        answer = {"success": True, "error": None, "proxy_id": "h", "proxy_version": "1", "connection_id": "1"}
        await host.send(0x02, {**answer, "x_hailwire": {"raw_bodies": False, "encodings": ["msgpack"]}})
        await host.send(0x10, pack(head("c1")))
        answered = await host.receive()
        assert answered is not None and answered[0] == 0x20
        assert unpack(answered[1])["decision"] == "allow"  # type: ignore[index]
        await host.close()

        host = RawHost(agent, registers=True)
        await host.receive()
        await host.send(0x02, {**answer, "success": False, "error": "not you"})
        with pytest.raises(callout.RefusedError, match="not you"):
            await host.served

        json_only = callout.Agent("a", encodings=(Encoding.JSON,))
        host = RawHost(json_only, registers=True)
        await host.receive()
        await host.send(0x02, {**answer, "x_hailwire": {"encodings": ["msgpack"]}})
        with pytest.raises(callout.HandshakeError):
            await host.served

    run(work())


def test_an_agent_connects_again_after_its_host_was_away(tmp_path: Path) -> None:
    async def work() -> None:
        path = tmp_path / "host.sock"
        agent = callout.Agent("a")
        connecting = asyncio.create_task(agent.connect(path))
        registered: asyncio.Queue[bytes] = asyncio.Queue()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            length = int.from_bytes(await reader.readexactly(4), "big")
            await registered.put(await reader.readexactly(length))
            writer.close()

        await asyncio.sleep(0)
        server = await asyncio.start_unix_server(accept, path)
        for _ in range(2):
            assert (await registered.get())[0] == 0x01
        connecting.cancel()
        await asyncio.gather(connecting, return_exceptions=True)
        server.close()

    run(work())


def test_a_host_is_told_what_the_agent_wants_and_no_more_than_may_wait() -> None:
    async def work() -> None:
        agent = callout.Agent("a")
        met: list[callout.Host] = []
        agent.connected(met.append)
        host = RawHost(agent)
        await host.greet(config={"mode": "strict"})
        (connected,) = met
        assert (connected.id, connected.version, connected.config) == ("h", "1", {"mode": "strict"})
        agent.notify(callout.Health(callout.HealthState.DEGRADED, in_flight=3))
        assert await host.receive() == (0x30, b'{"state":2,"in_flight":3}')
        assert connected.notify(callout.Flow("pause", "c1"))
        assert await host.receive() == (0x33, b'{"action":1,"correlation_id":"c1"}')
        accepted = [connected.notify(callout.Flow("resume")) for _ in range(100)]
        assert accepted.count(True) == 64
        await host.close()
        assert connected.is_closed and not connected.notify(callout.Flow("resume"))

    run(work())


def test_a_drain_waits_until_all_is_answered() -> None:
    async def work() -> None:
        agent = callout.Agent("a")
        started, go_on = asyncio.Event(), asyncio.Event()

        @agent.request_headers
        async def wait(request: callout.RequestHeaders) -> callout.Decision:
            started.set()
            await go_on.wait()
            return callout.allow()

        host = RawHost(agent)
        await host.greet()
        await host.ask_head("c1")
        await started.wait()
        assert await agent.drain(0.01) is False
        frame = await host.receive()
        assert frame == (0x30, b'{"state":3,"in_flight":1,"drain_eta_ms":10}')
        draining = asyncio.create_task(agent.drain(10))
        await asyncio.sleep(0)
        go_on.set()
        assert await draining is True
        await host.close()

    run(work())


def test_frames_are_read_however_they_are_cut() -> None:
    async def work() -> None:
        agent = callout.Agent("a")

        @agent.request_headers
        def pass_on(request: callout.RequestHeaders) -> callout.Decision:
            return callout.allow()

        host = RawHost(agent)
        await host.greet()
        for correlation_id in ("c1", "c2"):
            payload = json.dumps(head(correlation_id)).encode()
            for byte in (1 + len(payload)).to_bytes(4, "big") + b"\x10" + payload:
                await host.write(bytes((byte,)))
                await asyncio.sleep(0)
            assert (await host.answer())["audit"]["custom"]["correlation_id"] == correlation_id
        await host.close()

    run(work())


def test_findings_travel_as_text() -> None:
    found = callout.Findings(
        True,
        0.9,
        [callout.Finding("ssn", "a number", "high", span=callout.TextSpan(3, 9))],
        "my *",
    ).answer()
    assert json.loads(found.routing_metadata["guardrail_response"]) == {
        "detected": True,
        "confidence": 0.9,
        "detections": [
            {
                "category": "ssn",
                "description": "a number",
                "severity": "high",
                "span": {"start": 3, "end": 9},
            }
        ],
        "redacted_content": "my *",
    }


def test_a_name_that_no_host_could_write_is_refused() -> None:
    for name in ("", "a b", "ä", "x" * 65):
        with pytest.raises(ValueError, match="name"):
            callout.Agent(name)
    agent = callout.Agent("a")
    agent.configure(lambda event: callout.allow())
    with pytest.raises(ValueError, match="already"):
        agent.configure(lambda event: callout.allow())
