"""Writes the golden vectors of callouts as first inputs of the targets `callout` and `spop`.

A target that has to find the words of the protocol by itself gets nowhere in a minute.
"""

import json
import pathlib

here = pathlib.Path(__file__).parent
vectors = here.parent / "spec" / "vectors" / "callout"


def write(target: str, name: str, first: int, data: bytes) -> None:
    folder = here / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(bytes([first]) + data)


for path in sorted(vectors.glob("*.json")):
    for n, vector in enumerate(json.loads(path.read_text()).get("vectors", [])):
        # The first byte says as which event it is read, and in which encoding.
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
