"""What a stranger sends an agent costs it nothing that lasts, and never lets a request pass."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import struct
from pathlib import Path

import pytest
from test_callout_support import RawHost, chunk, head, run

from hailwire import callout
from hailwire.callout.codec import DecodeError, Encoding, decode, encode_json, pack, unpack
from hailwire.callout.events import decode_event
from hailwire.callout.salvage import event_id


def allowing(**more: int) -> callout.Agent:
    agent = callout.Agent("a", limits=callout.AgentLimits(**more))

    @agent.request_headers
    async def pass_on(request: callout.RequestHeaders) -> callout.Decision:
        return callout.allow()

    return agent


def test_a_frame_of_a_length_that_cannot_be_ends_the_connection() -> None:
    async def work() -> None:
        for length in (0, (16 << 20) + 1, 0xFFFFFFFF):
            host = RawHost(allowing())
            await host.greet()
            await host.write(length.to_bytes(4, "big"))
            assert await host.receive() is None
            with pytest.raises(callout.ProtocolError):
                await host.served

    run(work())


def test_the_largest_frame_is_read() -> None:
    async def work() -> None:
        host = RawHost(allowing())
        await host.greet()
        padding = (16 << 20) - 1 - len('{"x":""}')
        await host.send(0x41, b'{"x":"' + b"x" * padding + b'"}')
        frame = await host.receive()
        assert frame is not None and frame[0] == 0x42 and len(frame[1]) == (16 << 20) - 1
        await host.close()

    run(work())


@pytest.mark.parametrize("kind", [0x00, 0x03, 0x18, 0x50, 0x52, 0x99, 0xFF])
def test_a_type_that_was_not_agreed_on_ends_the_connection(kind: int) -> None:
    async def work() -> None:
        host = RawHost(allowing())
        await host.greet()
        await host.send(kind, b"{}")
        assert await host.receive() is None
        with pytest.raises(callout.ProtocolError):
            await host.served

    run(work())


def test_garbage_in_place_of_a_handshake_is_refused() -> None:
    async def work() -> None:
        for kind, payload, is_answered in [
            (0x01, b"\xff\xff", True),
            (0x01, b"[]", True),
            (0x01, b'{"supported_versions":[2]}', True),
            (0x01, b'{"supported_versions":[99],"proxy_id":"p","proxy_version":"1"}', True),
            (0x01, b'{"supported_versions":"2","proxy_id":"p","proxy_version":"1"}', True),
            (0x01, b"[" * 100_000, True),
            (0x10, b"{}", False),
            (0x47, b"ET / HTTP/1.1", False),
        ]:
            host = RawHost(allowing())
            await host.send(kind, payload)
            frame = await host.receive()
            if is_answered:
                assert frame is not None and frame[0] == 0x02 and b'"success":false' in frame[1]
                assert await host.receive() is None
            else:
                assert frame is None
            with pytest.raises(callout.HandshakeError):
                await host.served

    run(work())


def test_a_slow_handshake_ends_the_connection() -> None:
    async def work() -> None:
        agent = callout.Agent("a", handshake_timeout=0.05)
        host = RawHost(agent)
        await host.write(b"\x00\x00\x00\xff\x01{")
        assert await host.receive() is None
        with pytest.raises((TimeoutError, asyncio.TimeoutError)):
            await host.served

    run(work())


def test_an_event_that_cannot_be_read_is_blocked_and_its_handler_not_called() -> None:
    async def work() -> None:
        host = RawHost(allowing())
        await host.greet()
        for payload in [
            b'{"metadata":{"correlation_id":"c1"}}',
            b'{"correlation_id":"c1","metadata":7}',
            b'{"correlation_id":"c1","method":"GET","uri":"\xff"}',
            b'{"metadata":{"correlation_id":"c1","client_port":-1},"method":"GE',
            b'{"metadata":{"correlation_id":"c1"},"x":' + b"[" * 200 + b"]" * 200 + b"}",
            b'{"metadata":{"correlation_id":"c1"},"x":"\\ud800"}',
        ]:
            await host.send(0x10, payload)
            answer = await host.answer()
            assert answer["decision"]["block"]["status"] == 500, payload
            assert answer["audit"]["custom"]["correlation_id"] == "c1", payload
        await host.close()

    run(work())


def test_an_event_of_nobody_ends_the_connection() -> None:
    async def work() -> None:
        for payload in [b"", b"{", b"[]", b'{"metadata":{"correlation_id":""}}', b"\x00" * 64]:
            host = RawHost(allowing())
            await host.greet()
            await host.send(0x10, payload)
            assert await host.receive() is None
            with pytest.raises(callout.ProtocolError):
                await host.served

    run(work())


def test_a_numbered_event_that_cannot_be_read_is_blocked_by_its_number() -> None:
    async def work() -> None:
        host = RawHost(allowing())
        welcome = await host.greet(x_hailwire={"raw_bodies": True, "window": 1 << 30})
        assert welcome["x_hailwire"] == {"raw_bodies": True, "window": 512 << 10}
        number = (7).to_bytes(8, "big")
        for kind, payload in [
            (0x50, number),
            (0x50, number + b"\x20{}"),
            (0x50, number + b"\x10{}"),
            (0x52, number + b"\x08" + bytes(22)),
            (0x52, number + bytes(21) + b"\x00\x09short"),
            (0x52, number + bytes(21) + b"\x00\x01\xff"),
        ]:
            await host.send(kind, payload)
            frame = await host.receive()
            assert frame is not None and frame[0] == 0x51 and frame[1][:8] == number, payload
            assert b'"status":500' in frame[1]
        await host.send(0x50, b"\x00" * 7)
        assert await host.receive() is None
        with pytest.raises(callout.ProtocolError):
            await host.served

    run(work())


def test_no_more_requests_run_at_once_than_the_agent_takes_and_no_more_are_read_than_may_wait() -> None:
    async def work() -> None:
        started: list[str] = []
        go_on = asyncio.Event()
        agent = callout.Agent("a", limits=callout.AgentLimits(max_concurrency=4))

        @agent.request_headers
        async def wait(request: callout.RequestHeaders) -> callout.Decision:
            started.append(request.correlation_id)
            await go_on.wait()
            return callout.allow()

        host = RawHost(agent)
        await host.greet()
        total = 10_000
        for index in range(total):
            await host.ask_head(f"c{index}")
        for _ in range(200):
            await asyncio.sleep(0)
        assert started == ["c0", "c1", "c2", "c3"]
        # What waits is bounded: the rest has not been read.
        (connected,) = agent.hosts
        assert 4 < connected.in_flight < 3_000
        go_on.set()
        answered = {(await host.answer())["audit"]["custom"]["correlation_id"] for _ in range(total)}
        assert len(answered) == total and len(started) == total
        await host.close()

    run(work())


def test_what_waits_is_bounded_in_bytes() -> None:
    async def work() -> None:
        agent = callout.Agent("a")

        @agent.request_body
        async def stuck(piece: callout.BodyChunk) -> callout.Decision:
            await asyncio.Event().wait()
            return callout.allow()

        host = RawHost(agent)
        await host.greet(x_hailwire={"raw_bodies": True, "window": 65536})
        piece = bytes(8 << 20)
        for number in range(16):
            fixed = struct.pack(">QBIQQH", number, 0, number, 0, 0, 1)
            await host.send(0x52, fixed + b"c" + piece)
        for _ in range(2000):
            await asyncio.sleep(0)
        (connected,) = agent.hosts
        assert connected.in_flight <= 5
        host.served.cancel()
        await asyncio.gather(host.served, return_exceptions=True)

    run(work())


def test_a_host_that_does_not_read_is_read_no_further() -> None:
    async def work() -> None:
        agent = callout.Agent("a")
        calls = 0

        @agent.request_headers
        def large(request: callout.RequestHeaders) -> callout.Decision:
            nonlocal calls
            calls += 1
            return callout.block(403, "x" * 100_000)

        class Stuffed:
            """A stream that takes nothing."""

            def __init__(self) -> None:
                self.incoming = asyncio.StreamReader()

            async def read(self, limit: int, /) -> bytes:
                return await self.incoming.read(min(limit, 4096))

            async def write(self, data: bytes, /) -> None:
                await asyncio.Event().wait()

            async def close(self) -> None:
                pass

        stream = Stuffed()
        served = asyncio.create_task(agent.serve_stream(stream))

        def feed(kind: int, payload: bytes) -> None:
            stream.incoming.feed_data((1 + len(payload)).to_bytes(4, "big") + bytes((kind,)) + payload)

        feed(0x01, b'{"supported_versions":[2],"proxy_id":"p","proxy_version":"1"}')
        for index in range(1000):
            feed(0x10, encode_json(head(f"c{index}")))
        for _ in range(3000):
            await asyncio.sleep(0)
        assert 10 <= calls <= 40
        served.cancel()
        await asyncio.gather(served, return_exceptions=True)

    run(work())


def test_connections_beyond_the_bound_wait_and_the_file_is_the_users_alone(tmp_path: Path) -> None:
    async def work() -> None:
        path = str(tmp_path / "a.sock")
        agent = callout.Agent("a", max_connections=2, handshake_timeout=5)
        ready = asyncio.Event()
        serving = asyncio.create_task(agent.serve(path, ready=ready.set))
        await ready.wait()
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        hello = b'{"supported_versions":[2],"proxy_id":"p","proxy_version":"1"}'
        framed = (1 + len(hello)).to_bytes(4, "big") + b"\x01" + hello

        async def greeted() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(framed)
            return reader, writer

        first, second, third = [await greeted() for _ in range(3)]
        await first[0].readexactly(5)
        await second[0].readexactly(5)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting := asyncio.create_task(third[0].readexactly(5))), 0.1)
        first[1].close()
        await waiting
        with pytest.raises(OSError):
            await agent.serve(path)
        for _, writer in (second, third):
            writer.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    run(work())
    assert not (tmp_path / "a.sock").exists()


def test_a_socket_that_nobody_listens_on_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    async def work() -> None:
        dead = tmp_path / "dead.sock"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(dead))
        ready = asyncio.Event()
        serving = asyncio.create_task(callout.Agent("a").serve(dead, ready=ready.set))
        await ready.wait()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        file = tmp_path / "file"
        file.write_text("kept")
        with pytest.raises(FileExistsError):
            await callout.Agent("a").serve(file)
        assert file.read_text() == "kept"

    run(work())


def test_a_cancel_that_cannot_be_read_and_frames_of_the_other_direction_are_passed_over() -> None:
    async def work() -> None:
        host = RawHost(allowing())
        await host.greet()
        for kind, payload in [(0x40, b"no"), (0x40, b"[]"), (0x20, b"{}"), (0x42, b"{}"), (0x01, b"{}")]:
            await host.send(kind, payload)
        await host.ask_head("c1")
        assert (await host.answer())["decision"] == "allow"
        await host.close()

    run(work())


def test_data_that_is_no_base64_is_no_data() -> None:
    async def work() -> None:
        agent = callout.Agent("a")

        @agent.request_body
        def never(piece: callout.BodyChunk) -> callout.Decision:
            raise AssertionError("it was called")

        host = RawHost(agent)
        await host.greet()
        for data in ["!", "YQ", "YQ==YQ==", "YR==", "Y Q=", "YQ==\n", "_-8="]:
            await host.send(0x11, chunk("c1", data))
            assert (await host.answer())["decision"]["block"]["status"] == 500, data
        await host.close()

    run(work())


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xffx",
        b"\xc6\x7f\xff\xff\xff",
        b"\xa1\xff",
        b"\x81\xa1a",
        b"\x01\x01",
        b"\x91" * 129 + b"\xc0",
        b"\x81\xa1a" * 129 + b"\xc0",
        b"\xdc\x00",
        b"\xc9\xff\xff\xff\xff\x00",
    ],
)
def test_messagepack_that_lies_is_refused(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        unpack(payload)


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xef\xbb\xbf{}", b"{} x", b"NaN", b"-Infinity", b"01", b'"\x01"', b"[" * 129 + b"]" * 129, b'{"a":1,}'],
)
def test_json_that_is_none_is_refused(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(payload, Encoding.JSON)


def test_values_lie_128_deep_in_each_other_and_no_deeper() -> None:
    assert unpack(b"\x91" * 128 + b"\xc0") is not None
    assert decode(b"[" * 128 + b"]" * 128, Encoding.JSON) is not None
    # Brackets within texts are none.
    assert decode(b'["' + b"[" * 500 + b'"]', Encoding.JSON) == ["[" * 500]


def test_no_bytes_raise_anything_but_a_decode_error() -> None:
    seeds = [pack(head("c1")), pack({"correlation_id": "c1", "x": [1.5, -7, None, b"raw", 1 << 40]})]
    for seed in seeds:
        for index in range(len(seed)):
            for byte in (0x00, 0x7F, 0x81, 0x91, 0xA5, 0xC1, 0xC6, 0xD9, 0xDF, 0xFF):
                mangled = seed[:index] + bytes((byte,)) + seed[index + 1 :]
                event_id(mangled, Encoding.MESSAGE_PACK)
                for kind in callout.EventKind:
                    try:
                        decode_event(kind, mangled, Encoding.MESSAGE_PACK)
                    except DecodeError:
                        pass
