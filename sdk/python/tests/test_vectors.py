"""The golden vectors of `spec/vectors` are read and written as they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hailwire.protocol import frames, headers, mux, records
from hailwire.protocol.keys import is_key, key_bytes, key_text
from hailwire.protocol.msgpack import MalformedError, pack, unpack
from hailwire.protocol.status import Code

VECTORS = Path(__file__).resolve().parents[3] / "spec" / "vectors"


def load(name: str) -> Any:
    return json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))


def with_defaults(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    return headers.decode(kind, headers.encode(kind, fields))


def topic_fields(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    """In the file a body is its text, and a key its text in z-base-32."""
    fields = dict(fields)
    if kind == "topic_record":
        if "body" in fields:
            fields["body"] = fields["body"].encode()
        if "node" in fields:
            fields["node"] = key_bytes(fields["node"])
    return fields


HEADERS = [(name, one) for name in ("headers", "status", "topics") for one in load(name)["vectors"]]
READABLE = [(name, one) for name in ("headers", "status", "topics") for one in load(name)["readable"]]
REFUSED = [(name, one) for name in ("headers", "status", "topics") for one in load(name)["refused"]]


def named(pair: tuple[str, Any]) -> str:
    return f"{pair[1]['type']}: {pair[1]['name']}"


@pytest.mark.parametrize("vector", [one for one in HEADERS if one[1]["type"] in headers.FIELDS], ids=named)
def test_a_header_is_written_and_read_byte_for_byte(vector: tuple[str, Any]) -> None:
    kind, fields, data = vector[1]["type"], vector[1]["fields"], bytes.fromhex(vector[1]["bytes"])
    fields = topic_fields(kind, fields)
    assert headers.encode(kind, fields).hex() == data.hex()
    assert headers.decode(kind, data) == with_defaults(kind, fields)


@pytest.mark.parametrize("vector", [one for one in READABLE if one[1]["type"] in headers.FIELDS], ids=named)
def test_a_header_that_no_writer_writes_is_read(vector: tuple[str, Any]) -> None:
    kind, fields = vector[1]["type"], topic_fields(vector[1]["type"], vector[1]["fields"])
    assert headers.decode(kind, bytes.fromhex(vector[1]["bytes"])) == with_defaults(kind, fields)


@pytest.mark.parametrize("vector", [one for one in REFUSED if one[1]["type"] in headers.FIELDS], ids=named)
def test_a_header_is_refused(vector: tuple[str, Any]) -> None:
    with pytest.raises(MalformedError) as refused:
        headers.decode(vector[1]["type"], bytes.fromhex(vector[1]["bytes"]))
    assert isinstance(refused.value, headers.BoundError) == (vector[1]["error"] == "bound")


def test_every_kind_of_header_of_the_files_is_known() -> None:
    kinds = {one["type"] for _, one in HEADERS}
    assert kinds - headers.FIELDS.keys() == {"topic_interest", "topic_replay"}, "those two are between nodes alone"


def test_a_plain_call_is_written_like_any_other() -> None:
    for deadline in (None, 0, 5, 200, 70_000, 1 << 40):
        for to, method, caller, media in (("a", "", "", ""), ("agent@node", "m" * 40, "b", "text/plain")):
            fields = {"to": to, "method": method, "from": caller, "type": media}
            if deadline is not None:
                fields["deadline_ms"] = deadline  # type: ignore[assignment]
            assert headers.encode_plain_call(to, method, caller, media, deadline) == headers.encode("call", fields)


def test_a_remembered_header_is_read_as_it_would_be_alone() -> None:
    within_text = b"\x81\xa2to\xb0\xabdeadline_ms\x05abc"
    for _ in range(2):
        with pytest.raises(MalformedError):
            headers.decode_call(within_text)
    plain: dict[str, Any] = {"method": "m", "from": "b", "type": "t"}
    disguised: dict[str, Any] = {"to": "a", "traceparent": "x", "headers": [["k", "+deadline_ms"]], "deadline_ms": 7}
    for left in (1, 127, 128, 255, 256, 65_535, 65_536, 1 << 32, (1 << 64) - 1):
        for more in plain, disguised:
            for _ in range(2):
                data = headers.encode("call", {"to": "agent", **more, "deadline_ms": left})
                assert headers.decode_call(data) == headers.decode("call", data)
    for vector in HEADERS + READABLE:
        if vector[1]["type"] == "call":
            data = bytes.fromhex(vector[1]["bytes"])
            assert headers.decode_call(data) == headers.decode_call(data) == headers.decode("call", data)


def test_keys_are_those_of_the_file() -> None:
    file = load("addresses")
    for one in file["keys"]:
        assert is_key(one["text"])
        assert key_text(bytes.fromhex(one["bytes"])) == one["text"]
        assert key_bytes(one["text"]).hex() == one["bytes"]
    for one in file["refused"]:
        if one["kind"] == "node_id":
            assert not is_key(one["text"]), one["name"]
        if one["kind"] == "agent":
            assert not headers.is_name(one["text"]), one["name"]


def test_the_codes_are_those_of_the_file() -> None:
    assert [{"number": int(code), "name": code.text} for code in Code] == load("status")["codes"]


def test_frames_are_written_and_read() -> None:
    file = load("frames")
    assert file["kinds"] == frames.KINDS
    for one in file["frames"]:
        assert frames.frame(frames.KINDS[one["kind"]], bytes.fromhex(one["payload"])).hex() == one["bytes"]


def read_frames(data: bytes, size: int) -> list[dict[str, Any]]:
    reader = frames.FrameReader()
    events: list[dict[str, Any]] = []
    for at in range(0, len(data), size):
        for kind, payload in reader.feed(data[at : at + size]):
            if kind == frames.DATA and events and events[-1]["kind"] == kind:
                events[-1]["payload"] += payload.hex()
            else:
                events.append({"kind": kind, "payload": payload.hex()})
    reader.finish()
    return events


@pytest.mark.parametrize("size", [1, 3, 7, 1 << 20])
def test_streams_of_frames_are_read_wherever_they_are_cut(size: int) -> None:
    file = load("frames")
    for one in file["streams"]:
        assert read_frames(bytes.fromhex(one["bytes"]), size) == one["events"], one["name"]
    for one in file["refused"]:
        error = {"truncated": frames.TruncatedError, "header_too_large": frames.HeaderTooLargeError}[one["error"]]
        with pytest.raises(error):
            read_frames(bytes.fromhex(one["bytes"]), size)


@pytest.mark.parametrize("size", [1, 5, 1 << 20])
def test_bodies_of_records_are_read_wherever_they_are_cut(size: int) -> None:
    file = load("topics")

    def read(data: bytes) -> list[dict[str, Any]]:
        reader, found = records.RecordReader(), []
        for at in range(0, len(data), size):
            found += reader.feed(data[at : at + size])
        reader.finish()
        return found

    bodies = [one for one in file["bodies"] if one["type"] == "topic_record"]
    for one in bodies:
        expected = [with_defaults("topic_record", topic_fields("topic_record", fields)) for fields in one["records"]]
        assert read(bytes.fromhex(one["bytes"])) == expected
    for one in file["refused_bodies"]:
        with pytest.raises(MalformedError):
            read(bytes.fromhex(one["bytes"]))


class Noting(mux.Multiplexer):
    """A side that notes what streams were told."""

    def accept(self, number: int, priority: int) -> mux.MuxStream:
        return NotingStream(self, priority)


class NotingStream(mux.MuxStream):
    __slots__ = ("told",)

    def __init__(self, side: mux.Multiplexer, priority: int) -> None:
        super().__init__(side, priority)
        self.told: list[Any] = []

    def handle_data(self, data: bytes, fin: bool) -> None:
        self.told.append((data, fin))


def test_prefaces_are_as_the_vectors_say() -> None:
    file = load("mux")
    for one in file["prefaces"]:
        assert mux.preface(one["role"] == "client").hex() == one["hex"]
        assert mux.check_preface(bytes.fromhex(one["hex"]), one["role"] != "client")
    for one in file["refused_prefaces"]:
        with pytest.raises(mux.MuxError) as refused:
            mux.check_preface(bytes.fromhex(one["hex"]), False)
        assert str(refused.value) == one["error"]


def greeted() -> Noting:
    """A server that has had its client's preface."""
    side = Noting(client=False)
    side.receive(mux.preface(client=True))
    side.take_output()
    return side


def test_each_refused_frame_ends_the_connection_with_its_words() -> None:
    for one in load("mux")["refused"]:
        side = greeted()
        with pytest.raises(mux.MuxError) as refused:
            side.receive(bytes.fromhex(one["hex"]))
        assert str(refused.value) == one["error"]
        assert side.take_output().endswith(one["error"].encode()), "the peer is told why"


def test_unknown_frames_are_skipped() -> None:
    for one in load("mux")["skipped"]:
        side = greeted()
        side.receive(bytes.fromhex(one["hex"]) + bytes.fromhex("060000080000000000000000" + "00" * 8))
        assert side.take_output()[0] == mux.PONG


@pytest.mark.parametrize("size", [1, 5, 1 << 20])
def test_the_conversation_of_the_page_is_held(size: int) -> None:
    opening, answer, end = (bytes.fromhex(one["hex"]) for one in load("mux")["conversation"])
    client, server = Noting(client=True), Noting(client=False)
    stream = NotingStream(client, 2)
    stream.write(b"ping", fin=True)
    assert client.take_output() == opening

    for at in range(0, len(opening), size):
        server.receive(opening[at : at + size])
    accepted = server.streams[1]
    assert isinstance(accepted, NotingStream) and accepted.priority == 2
    assert accepted.told == [(b"ping", True)]
    accepted.write(b"pong", fin=True)
    assert server.take_output() == answer

    for at in range(0, len(answer), size):
        client.receive(answer[at : at + size])
    assert stream.told == [(b"pong", True)] and not client.streams and not server.streams
    client.close(Code.OK, "done")
    assert client.take_output() == end
    server.receive(end)
    assert server.closed == (Code.OK, "done")


def test_what_was_packed_is_unpacked() -> None:
    value = {
        "a": [
            None,
            True,
            False,
            0,
            127,
            128,
            1 << 16,
            1 << 32,
            (1 << 64) - 1,
            "x" * 40,
            "é" * 300,
            b"y" * 300,
            ["z"] * 17,
        ]
    }
    assert unpack(pack(value)) == value
    with pytest.raises(ValueError, match="cannot hold"):
        pack(-1)
