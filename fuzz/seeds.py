"""Writes the kept inputs of each fuzz target, fuzz/corpus-kept/TARGET: golden vectors, what a stranger begins with, a body of
each kind. A target that has to find the words of a protocol by itself gets nowhere in a minute.

Other inputs that are worth keeping, such as findings, lie beside them under other names: nothing is removed.
"""

import json
import pathlib
import re

here = pathlib.Path(__file__).parent
vectors = here.parent / "spec" / "vectors" / "callout"


def write(target: str, name: str, first: int, data: bytes) -> None:
    whole(target, name, bytes([first]) + data)


def whole(target: str, name: str, data: bytes) -> None:
    # What is larger is a bound that tests reach without a fuzzer.
    if len(data) > 4096:
        return
    folder = here / "corpus-kept" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def of_the_wire(file: str):
    """The vectors of a file beside those of callouts, each with a name for a file."""
    for kind, listed in json.loads((vectors.parent / f"{file}.json").read_text()).items():
        for n, vector in enumerate(listed if isinstance(listed, list) else []):
            name = re.sub("[^a-z0-9]+", "-", vector.get("name", str(n)).lower()).strip("-")
            yield f"{kind}-{name}"[:60], vector


# The first byte says in pieces of how many bytes the rest is read.
for file, target in (("frames", "frame"), ("capsules", "capsule")):
    for name, vector in of_the_wire(file):
        write(target, name, 3, bytes.fromhex(vector["bytes"]))
for file in ("headers", "status", "topics", "messages"):
    for name, vector in of_the_wire(file):
        if "bytes" in vector:
            whole("header", name, bytes.fromhex(vector["bytes"]))
for name, vector in of_the_wire("addresses"):
    whole("address", name, vector["text"].encode())
for name, vector in of_the_wire("tickets"):
    whole("ticket", name, vector["text"].encode())
for name, vector in of_the_wire("records"):
    if "bytes" in vector:
        data = bytes.fromhex(vector["bytes"])
        whole("record", name, data)
        # Behind key and signature, as the target signs it again.
        whole("record", f"{name}-content", data[96:])
# Bit 0 of the first byte: with no preface before the rest. The others: in pieces of how many bytes.
said = []
for name, vector in of_the_wire("mux"):
    data = bytes.fromhex(vector["hex"])
    without = name.startswith("prefaces") or name.startswith("refused_prefaces") or name.startswith("conversation")
    write("mux", name, 2 * 7 + without, data)
    if name.startswith("frames"):
        said.append(data)
write("mux", "all-frames", 2 * 7, b"".join(said))

# The first byte says as which event it is read, and in which encoding.
for path in sorted(vectors.glob("*.json")):
    for n, vector in enumerate(json.loads(path.read_text()).get("vectors", [])):
        kind = vector.get("code", 0x10) % 8
        if "json" in vector:
            write("callout", f"{path.stem}-{n}-json", kind, vector["json"].encode())
        if "msgpack" in vector:
            write("callout", f"{path.stem}-{n}-msgpack", kind | 8, bytes.fromhex(vector["msgpack"]))

frames = json.loads((vectors / "spop.json").read_text())["frames"]
said = [bytes.fromhex(frame["bytes"]) for frame in frames if frame["from"] == "haproxy"]
# An odd first byte: without the greeting that the target puts before. The rest: in pieces of how many bytes.
write("spop", "session", 255, b"".join(said))
for n, frame in enumerate(said):
    write("spop", f"frame-{n}", 2 * 7, frame)


def counted(data: bytes) -> bytes:
    return len(data).to_bytes(2, "big") + data


# Flags as in src/datagrams.rs; behind them what they ask for, then frames and the packet's number.
PING = counted(b"\x01") + b"\0"
whole("datagrams", "ping", b"\x00" + PING)
whole("datagrams", "hello", b"\x04" + counted(b"") + counted(b"") + b"\0")
whole("datagrams", "hello-altered", b"\x04" + counted(b"\0\x05\x01") + counted(b"") + b"\0")
for length in (1, 16, 24, 32, 60, 200):
    whole("datagrams", f"token-{length}", b"\x01" + counted(bytes(length)) + PING)
whole("datagrams", "retried", b"\x06" + counted(b"") + counted(b"") + b"\0")
whole("datagrams", "long-id", b"\x08\x14" + PING + b"\x08\x15" + PING + b"\x08\x00" + PING)
whole("datagrams", "same-id", b"\x04" + counted(b"") * 2 + b"\0\x10" + PING + b"\x10" + counted(b"\x1c\0\0\0") + b"\x02")
whole("datagrams", "coalesced", b"\x24" + counted(b"") * 2 + b"\0\x70" + PING)
whole("datagrams", "short", b"\x20" + PING)
whole("datagrams", "raw", b"\x80" + counted(b"\x40" + bytes(40)) + b"\x80" + counted(b"\xe0\0\0\0\x01\x08" + bytes(30)))
whole("datagrams", "many", (b"\x00" + PING) * 20)
frames = [b"\x02\0\0\0\0", b"\x03\0\0\0\0\0\0\0", b"\x06\0\x04\x01\0\0\0", b"\x06\x7f\xff\x01a", b"\x18\0\0\x08" + bytes(24), b"\x1a" + bytes(8), b"\x07\x04abcd", b"\x1e", b"\x31\x01a"]
for n, frame in enumerate(frames):
    whole("datagrams", f"frame-{n}", b"\x00" + counted(frame) + b"\0")

# How as in src/tcp.rs; behind it bytes.
HELLO = bytes.fromhex("16030100050100000100")
UPGRADE = b"GET /hailwire HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: hailwire\r\n\r\n"
MASK = bytes(4)
whole("tcp_listener", "bare", b"\x00" + HELLO)
whole("tcp_listener", "http", b"\x80GET / HTTP/1.1\r\n\r\n")
whole("tcp_listener", "h2-settings", b"\x03" + bytes.fromhex("000006040000000000000300000064"))
whole("tcp_listener", "h2-ping", b"\x03" + bytes.fromhex("0000080600000000000102030405060708"))
whole("tcp_listener", "h2-post", b"\x03" + bytes.fromhex("00000801040000000183848741017f0000"))
whole("tcp_listener", "h2-goaway", b"\x03" + bytes.fromhex("0000080700000000000000000000000000"))
whole("tcp_listener", "reverse", b"\x07" + bytes(16))
whole("tcp_listener", "upgrade", b"\x04" + UPGRADE)
whole("tcp_listener", "ws-mux", b"\x05\x82\x8a" + MASK + b"hailwire\0\1")
whole("tcp_listener", "ws-ping", b"\x05\x89\x85" + MASK + b"hello\x88\x80" + MASK)
whole("tcp_listener", "ws-long", b"\x06\x82\xff" + b"\x7f" + b"\xff" * 7 + MASK)

# The type and the size of pieces as in src/waf.rs; behind them a body.
FORM = b"a=%27%20or%201%3D1--&b=x+y&c=%u0027"
JSON = b'{"a":"\\u0027 or 1=1","b":["<script>",{"$ne":1}]}'
XML = b"<?xml version='1.0'?><!DOCTYPE a [<!ENTITY x \"y\">]><a b='&#x27;'>x<b/>y<![CDATA[z]]>&x;<!-- c --></a>"
PARTS = b"--b\r\nContent-Disposition: form-data; name=a\r\n\r\nx' or 1=1\r\n--b\r\nContent-Disposition: form-data; name=f; filename=\"a.php\"\r\nContent-Type: application/json\r\n\r\n" + JSON + b"\r\n--b--\r\n"
for kind in range(8):
    for n, body in enumerate((FORM, JSON, XML, PARTS, JSON.decode().encode("utf-16"), b"\xef\xbb\xbf" + XML, b"<a><b>1</b> \xf5\x302</a>")):
        whole("waf", f"{kind}-{n}", bytes([kind, 6 * (n % 2)]) + body)

# STUN (RFC 8489): the addresses are those of the sample answers in RFC 5769, 2.2 and 2.3.
cookie = bytes.fromhex("2112a442b7e7a701bc34d686fa87dfae")


def stun(name: str, kind: int, *attributes: tuple[int, bytes]) -> None:
    body = b"".join(n.to_bytes(2, "big") + len(v).to_bytes(2, "big") + v + bytes(-len(v) % 4) for n, v in attributes)
    whole("stun", name, kind.to_bytes(2, "big") + len(body).to_bytes(2, "big") + cookie + body)


seen = (0x0020, bytes.fromhex("0001a147e112a643"))
seen_ipv6 = (0x0020, bytes.fromhex("0002a1470113a9faa5d3f179bc25f4b5bed2b9d9"))
stun("request", 1)
stun("request-from-the-other-port", 1, (0x0003, bytes.fromhex("00000002")))
stun("request-to-another-port", 1, (0x0027, bytes.fromhex("c0010000")))
stun("request-padded", 1, (0x0026, bytes(1200)))
stun("request-with-what-must-be-understood", 1, (0x0006, b"user"))
stun("request-with-what-may-be-skipped", 1, (0x8022, b"software"))
stun("answer", 0x0101, seen, (0x802C, bytes.fromhex("00010d97c6336407")))
stun("answer-ipv6", 0x0101, seen_ipv6)
stun("answer-of-no-family", 0x0101, (0x0020, bytes.fromhex("0003a147e112a643")))
stun("attribute-that-claims-more", 1, (0x0026, bytes(8)))
(here / "corpus-kept" / "stun" / "attribute-that-claims-more").write_bytes(
    bytes.fromhex("0001000c") + cookie + bytes.fromhex("0026ffff") + bytes(8)
)
