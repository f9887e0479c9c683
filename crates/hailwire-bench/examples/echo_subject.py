"""A subject for `hail bench` in Python's standard library: lengths and bytes over TCP, no TLS.

    hail bench run smoke \\
        --subject "python=python3 echo_subject.py serve {listen},python3 echo_subject.py load {address}"

docs/reference/bench-subjects.md describes the interface. This one does `latency` and `rate` on one
connection, one message at a time, and says of all other work that it does not do it.
"""

import json
import socket
import struct
import sys
import threading
import time


def say(line):
    print(json.dumps(line), flush=True)


def serve(host):
    """Echoes messages until standard input ends."""
    listener = socket.create_server((host, 0))
    say({"ready": {"address": "%s:%d" % listener.getsockname()[:2]}})

    def accept():
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    sys.stdin.read()


def answer(connection):
    with connection, connection.makefile("rwb") as stream:
        while head := stream.read(4):
            (length,) = struct.unpack("!I", head)
            stream.write(head + stream.read(length))
            stream.flush()


class Far:
    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.stream = socket.create_connection((host, int(port))).makefile("rwb")

    def echo(self, body):
        self.stream.write(struct.pack("!I", len(body)) + body)
        self.stream.flush()
        head = self.stream.read(4)
        if len(head) != 4 or self.stream.read(struct.unpack("!I", head)[0]) != body:
            raise RuntimeError("an echo differs from its message")


def latency(far, per_second, seconds, bytes, connections):
    """Messages are due at a rate; each is timed from when it was due, not from when it was sent."""
    body, times, begun = b"x" * bytes, [], time.monotonic()
    for number in range(max(1, int(per_second * seconds))):
        due = begun + number / per_second
        while (now := time.monotonic()) < due:
            time.sleep(due - now)
        far.echo(body)
        times.append((time.monotonic() - due) * 1e6)
    times.sort()
    at = lambda share: times[min(len(times) - 1, int(share * len(times)))]
    return {
        "figures": {
            "p50_us": at(0.5),
            "p95_us": at(0.95),
            "p99_us": at(0.99),
            "max_us": times[-1],
            "count": len(times),
        },
        "distribution": [[share, at(share)] for share in (0.0, 0.5, 0.9, 0.99, 1.0)],
    }


def rate(far, in_flight, seconds, bytes, agents, connections):
    body, count, begun = b"x" * bytes, 0, time.monotonic()
    while time.monotonic() - begun < seconds:
        far.echo(body)
        count += 1
    took = time.monotonic() - begun
    return {
        "figures": {
            "count": count,
            "seconds": took,
            "messages_per_s": count / took,
            "megabits_per_s": count * bytes * 8 / 1e6 / took,
        }
    }


def load(address):
    """Does the work of each line of standard input."""
    far = Far(address)
    known = {"latency": latency, "rate": rate}
    say({"ready": {}})
    for line in sys.stdin:
        ((name, asked),) = json.loads(line).items()
        if name not in known:
            say({"failed": "this subject does no %s" % name})
            continue
        try:
            say(known[name](far, **asked))
        except Exception as error:
            say({"failed": str(error)})


if __name__ == "__main__":
    {"serve": serve, "load": load}[sys.argv[1]](sys.argv[2])
