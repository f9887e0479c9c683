"""Opens what HPKE has sealed (RFC 9180, base mode, DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20Poly1305), from the documents alone.

For the golden vectors of held.json, read by check.py: it takes no care to keep a secret from whoever measures time.
"""

import hashlib
import hmac
import struct

P = 2**255 - 19
KEM = b"KEM" + (0x0020).to_bytes(2, "big")
SUITE = b"HPKE" + b"".join(number.to_bytes(2, "big") for number in (0x0020, 0x0001, 0x0003))
MODE_BASE = b"\0"


class NotSealed(Exception):
    """The tag is not that of these bytes."""


def x25519(scalar: bytes, point: bytes) -> bytes:
    """RFC 7748, section 5."""
    k = int.from_bytes(scalar, "little") & ~7 & ~(1 << 255) | 1 << 254
    x1 = int.from_bytes(point, "little") % 2**255
    x2, z2, x3, z3 = 1, 0, x1, 1
    for bit in (k >> at & 1 for at in range(254, -1, -1)):
        if bit:
            x2, x3, z2, z3 = x3, x2, z3, z2
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        aa, bb, da, cb = a * a, b * b, d * a, c * b
        x3, z3 = (da + cb) ** 2 % P, x1 * (da - cb) ** 2 % P
        e = aa - bb
        x2, z2 = aa * bb % P, e * (aa + 121665 * e) % P
        if bit:
            x2, x3, z2, z3 = x3, x2, z3, z2
    return (x2 * pow(z2, P - 2, P) % P).to_bytes(32, "little")


def other_form(key: bytes) -> bytes:
    """The X25519 key of a node's Ed25519 key (RFC 7748, section 4.1)."""
    y = int.from_bytes(key, "little") % 2**255
    return ((1 + y) * pow(1 - y, P - 2, P) % P).to_bytes(32, "little")


def secret_of_seed(seed: bytes) -> bytes:
    """The X25519 secret of the node with this seed."""
    return hashlib.sha512(seed).digest()[:32]


def extract(suite: bytes, salt: bytes, label: bytes, material: bytes) -> bytes:
    return hmac.digest(salt, b"HPKE-v1" + suite + label + material, "sha256")


def expand(suite: bytes, key: bytes, label: bytes, info: bytes, length: int) -> bytes:
    labelled = length.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info
    out, block = b"", b""
    while len(out) < length:
        block = hmac.digest(key, block + labelled + bytes([len(out) // 32 + 1]), "sha256")
        out += block
    return out[:length]


def key_and_nonce(enc: bytes, secret: bytes, own: bytes, info: bytes) -> tuple:
    shared = extract(KEM, b"", b"eae_prk", x25519(secret, enc))
    shared = expand(KEM, shared, b"shared_secret", enc + own, 32)
    context = extract(SUITE, b"", b"psk_id_hash", b"") + extract(SUITE, b"", b"info_hash", info)
    schedule = extract(SUITE, shared, b"secret", b"")
    key = expand(SUITE, schedule, b"key", MODE_BASE + context, 32)
    return key, expand(SUITE, schedule, b"base_nonce", MODE_BASE + context, 12)


def chacha_block(key: bytes, counter: int, nonce: bytes) -> bytes:
    """RFC 8439, section 2.3."""
    start = list(struct.unpack("<4I8II3I", b"expand 32-byte k" + key + struct.pack("<I", counter) + nonce))
    s = start[:]
    quarters = [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)]
    quarters += [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]
    for _ in range(10):
        for a, b, c, d in quarters:
            for x, y, z, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                s[x] = s[x] + s[y] & 0xFFFFFFFF
                mixed = s[z] ^ s[x]
                s[z] = (mixed << turn | mixed >> 32 - turn) & 0xFFFFFFFF
    return struct.pack("<16I", *(a + b & 0xFFFFFFFF for a, b in zip(s, start)))


def poly1305(key: bytes, data: bytes) -> bytes:
    """RFC 8439, section 2.5."""
    r = int.from_bytes(key[:16], "little") & 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF
    total = 0
    for at in range(0, len(data), 16):
        total = (total + int.from_bytes(data[at : at + 16] + b"\1", "little")) * r % (2**130 - 5)
    return ((total + int.from_bytes(key[16:], "little")) % 2**128).to_bytes(16, "little")


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 16)


def open_sealed(secret: bytes, own: bytes, info: bytes, aad: bytes, enc: bytes, sealed: bytes) -> bytes:
    """The plaintext for the X25519 `secret` with the public key `own`. Raises NotSealed."""
    key, nonce = key_and_nonce(enc, secret, own, info)
    cipher, tag = sealed[:-16], sealed[-16:]
    lengths = struct.pack("<QQ", len(aad), len(cipher))
    once = chacha_block(key, 0, nonce)[:32]
    if len(sealed) < 16 or poly1305(once, padded(aad) + padded(cipher) + lengths) != tag:
        raise NotSealed
    blocks = (chacha_block(key, 1 + at // 64, nonce) for at in range(0, len(cipher), 64))
    return bytes(a ^ b for a, b in zip(cipher, b"".join(blocks)))
