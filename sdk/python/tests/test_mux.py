"""The multiplexer without I/O: credit, priorities, numbers of streams, and a peer that breaks the rules."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest

from hailwire.protocol import mux
from hailwire.protocol.limits import MUX_INITIAL_WINDOW, MUX_MAX_STREAMS, MUX_RECEIVE_POOL, MUX_STREAM_WINDOW


class Side(mux.Multiplexer):
    """One end of a pair, whose streams keep what came until it is read."""

    def accept(self, number: int, priority: int) -> Kept:
        return Kept(self, priority)


class Kept(mux.MuxStream):
    __slots__ = ("chunks", "ended", "stopped", "unread")

    def __init__(self, side: mux.Multiplexer, priority: int = 1) -> None:
        super().__init__(side, priority)
        self.chunks: list[bytes] = []
        self.unread = 0
        self.ended: Any = None
        self.stopped: int | None = None

    def handle_data(self, data: bytes, fin: bool) -> None:
        self.chunks.append(data)
        self.unread += len(data)
        if fin:
            self.ended = "fin"

    def handle_reset(self, code: int) -> None:
        self.ended = code

    def handle_stop(self, code: int) -> None:
        self.stopped = code

    @property
    def got(self) -> bytes:
        return b"".join(self.chunks)

    def read(self) -> None:
        """Reads all that came."""
        size, self.unread = self.unread, 0
        self.consumed(size)


def pair() -> tuple[Side, Side]:
    client, server = Side(client=True), Side(client=False)
    exchange(client, server)
    return client, server


def exchange(*sides: Side) -> None:
    """Carries bytes until both sides have said all they can."""
    one, other = sides
    moved = True
    while moved:
        moved = False
        for sender, receiver in ((one, other), (other, one)):
            data = sender.take_output()
            sender.set_writable(True)
            if data:
                moved = True
                receiver.receive(data)


def frame(kind: int, stream: int, payload: bytes = b"", flags: int = 0x10) -> bytes:
    return bytes((kind, flags)) + len(payload).to_bytes(2, "big") + stream.to_bytes(8, "big") + payload


def test_a_writer_sends_what_it_has_credit_for_and_goes_on_as_its_reader_reads() -> None:
    client, server = pair()
    stream = Kept(client)
    body = random.Random(7).randbytes(300_000)
    stream.write(body, fin=True)
    exchange(client, server)
    accepted = server.streams[1]
    assert isinstance(accepted, Kept)
    assert len(accepted.got) == MUX_INITIAL_WINDOW and stream.queued == len(body) - MUX_INITIAL_WINDOW
    while accepted.ended is None:
        accepted.read()
        exchange(client, server)
    assert accepted.got == body and accepted.ended == "fin"
    accepted.finish()
    exchange(client, server)
    assert not client.streams and not server.streams


def test_streams_that_wait_for_credit_hold_up_no_other() -> None:
    client, server = pair()
    streams = [Kept(client) for _ in range(40)]
    for stream in streams:
        stream.write(bytes(50_000), fin=True)
    assert client.blocked
    exchange(client, server)
    while any(stream.queued for stream in streams):
        for one in list(server.streams.values()):
            assert isinstance(one, Kept)
            one.read()
        exchange(client, server)
    assert all(isinstance(one, Kept) and one.ended == "fin" for one in server.streams.values())


def test_windows_grow_to_their_bound_and_share_the_pool() -> None:
    client, server = pair()
    streams = [Kept(client) for _ in range(8)]
    for stream in streams:
        stream.write(bytes(6 << 20))
    most = 0
    for _ in range(60):
        exchange(client, server)
        unread = sum(one.unread for one in server.streams.values() if isinstance(one, Kept))
        most = max(most, unread)
        for one in list(server.streams.values()):
            assert isinstance(one, Kept) and one.unread <= MUX_STREAM_WINDOW
            one.read()
    assert most <= 8 * MUX_INITIAL_WINDOW + MUX_RECEIVE_POOL
    assert most > MUX_RECEIVE_POOL // 2, "they do grow"


def test_no_more_streams_are_opened_than_were_granted_and_the_rest_follows() -> None:
    client, server = pair()
    streams = [Kept(client) for _ in range(10_000)]
    for number, stream in enumerate(streams):
        stream.write(str(number).encode(), fin=True)
    exchange(client, server)
    assert len(server.streams) == MUX_MAX_STREAMS
    answered = 0
    while answered < len(streams):
        for one in list(server.streams.values()):
            assert isinstance(one, Kept)
            one.write(one.got, fin=True)
            answered += 1
        exchange(client, server)
    assert [stream.got for stream in streams] == [str(number).encode() for number in range(10_000)]


def test_first_frames_have_the_numbers_in_order_whatever_their_priority() -> None:
    client, server = pair()
    client.set_writable(False)
    streams = [Kept(client, priority=number % 4) for number in range(40)]
    for stream in streams:
        stream.write(b"x" * 100, fin=True)
    client.set_writable(True)
    exchange(client, server)
    assert len(server.streams) == 40
    first = [stream.priority for stream in sorted(streams, key=lambda stream: stream.id)][:5]
    assert 3 in first


def test_what_waits_is_shared_among_the_priorities_as_the_page_says() -> None:
    client, server = pair()
    streams = {priority: Kept(client, priority) for priority in range(4)}
    for stream in streams.values():
        stream.write(b"x")
    exchange(client, server)
    for one in server.streams.values():
        one._granted = 1 << 40
    for stream in streams.values():
        stream._send_credit = 1 << 40
    client.set_writable(False)
    for stream in streams.values():
        stream.write(bytes(4 << 20))
    sent: dict[int, int] = defaultdict(int)
    for _ in range(16):
        client.set_writable(True)
        data = client.take_output()
        at = 0
        while at < len(data):
            _, flags, length, _ = mux._unpack_header(data, at)
            sent[flags >> 4] += length
            at += 12 + length
    total = sum(sent.values())
    for priority, share in ((3, 64), (2, 24), (1, 9), (0, 3)):
        assert abs(sent[priority] / total - share / 100) < 0.03, sent


def test_a_stop_is_answered_with_a_reset_and_what_waited_is_dropped() -> None:
    client, server = pair()
    stream = Kept(client)
    stream.write(bytes(100_000))
    exchange(client, server)
    server.streams[1].stop(7)
    exchange(client, server)
    assert stream.stopped == 7 and stream.send_done and stream.queued == 0
    stream.write(b"more")
    exchange(client, server)
    assert client.error is None and server.error is None


def test_a_stream_that_was_given_up_before_its_first_frame_leaves_no_trace() -> None:
    client, server = pair()
    client.set_writable(False)
    given_up = Kept(client)
    given_up.write(b"never", fin=True)
    given_up.reset(1)
    given_up.stop(1)
    kept = Kept(client)
    kept.write(b"sent", fin=True)
    client.set_writable(True)
    exchange(client, server)
    assert kept.id == 1 and [one.got for one in server.streams.values() if isinstance(one, Kept)] == [b"sent"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (frame(mux.DATA, 1, bytes(16_384)) + frame(mux.DATA, 1, b"x"), "more than its window"),
        (frame(mux.DATA, 3), "never opened"),
        (frame(mux.DATA, 0), "never opened"),
        (frame(mux.WINDOW, 2, bytes(4)), "never opened"),
        (b"".join(frame(mux.DATA, 2 * at + 1) for at in range(MUX_MAX_STREAMS + 1)), "than were granted"),
        (frame(mux.CLOSE, 0, bytes(1029)), "cannot have"),
        (frame(mux.DATAGRAM, 0, bytes(1101)), "cannot have"),
        (frame(mux.RESET, 1, bytes(4)) + frame(mux.DATA, 1, b"x"), "after its end"),
    ],
)
def test_a_peer_that_breaks_a_rule_loses_the_connection(data: bytes, words: str) -> None:
    _, server = pair()
    with pytest.raises(mux.MuxError, match=words):
        server.receive(data)
    assert server.error is not None
    assert server.take_output()[0] == mux.CLOSE


def test_pings_that_are_not_taken_away_are_forgotten() -> None:
    _, server = pair()
    server.receive(frame(mux.PING, 0, bytes(8)) * 1000)
    assert len(server.take_output()) == 16 * 20


def test_bytes_that_come_one_by_one_cost_no_more_than_their_number() -> None:
    client, server = pair()
    stream = Kept(client)
    stream.write(random.Random(1).randbytes(16_000), fin=True)
    for byte in client.take_output():
        server.receive(bytes((byte,)))
    accepted = server.streams[1]
    assert isinstance(accepted, Kept) and len(accepted.got) == 16_000


def test_random_bytes_are_refused_or_understood_and_never_raise_anything_else() -> None:
    for seed in range(2_000):
        random_bytes = random.Random(seed)
        _, server = pair()
        try:
            for _ in range(20):
                kind = random_bytes.choice((1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0x7F))
                payload = random_bytes.randbytes(random_bytes.choice((0, 4, 8, 100)))
                server.receive(frame(kind, random_bytes.randrange(6), payload, random_bytes.randrange(256)))
                for one in list(server.streams.values()):
                    assert isinstance(one, Kept)
                    act, arguments = random_bytes.choice(
                        ((one.finish, ()), (one.stop, (1,)), (one.reset, (2,)), (one.read, ()))
                    )
                    act(*arguments)
        except mux.MuxError:
            pass
