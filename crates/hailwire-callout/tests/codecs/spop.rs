//! What holds of everything that whoever connects as HAProxy can send.

#[path = "../../../../fuzz/src/spop.rs"]
#[expect(unreachable_pub, reason = "the fuzz target calls it too")]
mod promises;

use bytes::{BufMut as _, BytesMut};

use crate::{Any, SEED, kept};

/// The promises are those of the fuzz target.
#[test]
fn any_bytes_of_spop_are_frames_or_an_end() {
    let mut any = Any::new(SEED);
    for round in 0..20_000_u32 {
        let mut out = BytesMut::new();
        out.put_u8(round as u8);
        if round % 3 == 0 {
            any.frame(1, &mut out, Any::greeting);
        }
        for _ in 0..any.below(4) {
            match any.below(8) {
                0 => any.frame(2, &mut out, Any::farewell),
                1 => any.frame(77, &mut out, Any::farewell),
                _ => any.frame(3, &mut out, Any::messages),
            }
        }
        promises::spop(&any.spoilt(out.to_vec()));
    }
}

#[test]
fn what_is_kept_for_the_fuzz_target_spop_is_frames_or_an_end() {
    for input in kept::inputs("spop", 5_000) {
        promises::spop(&input);
    }
}

impl Any {
    fn frame(&mut self, kind: u8, out: &mut BytesMut, payload: fn(&mut Self, &mut BytesMut)) {
        let mut frame = BytesMut::new();
        frame.put_slice(&[kind, 0, 0, 0, 1]);
        self.varint(&mut frame);
        self.varint(&mut frame);
        payload(self, &mut frame);
        out.put_u32(frame.len() as u32);
        out.put_slice(&frame);
    }

    fn greeting(&mut self, out: &mut BytesMut) {
        out.put_slice(b"\x12supported-versions\x08\x032.0\x0emax-frame-size\x03\xfc\xf0\x06");
        out.put_slice(b"\x0ccapabilities\x08\x0apipelining");
        self.named(out, b"engine-id");
    }

    fn farewell(&mut self, out: &mut BytesMut) {
        self.named(out, b"status-code");
        self.named(out, b"message");
    }

    fn messages(&mut self, out: &mut BytesMut) {
        for _ in 0..self.below(3) {
            let (name, names): (&[u8], &[&[u8]]) = match self.below(3) {
                0 => (b"hail-response", &[b"id", b"status", b"headers"]),
                _ => (
                    b"hail-request",
                    &[b"id", b"method", b"uri", b"headers", b"body", b"src"],
                ),
            };
            text(out, name);
            out.put_u8(names.len() as u8);
            for name in names {
                self.named(out, name);
            }
        }
    }

    /// A name with a value; most are such as HAProxy sends.
    fn named(&mut self, out: &mut BytesMut, name: &[u8]) {
        text(out, name);
        match (name, self.below(16)) {
            (_, 0) => {
                out.put_u8(self.below(16) as u8 | 0x10);
                self.varint(out);
            }
            (b"headers", _) => {
                out.put_u8(9);
                let fields = self.fields();
                let mut list = BytesMut::new();
                for (name, value) in fields {
                    text(&mut list, name.as_bytes());
                    text(&mut list, value.as_bytes());
                }
                list.put_slice(&[0, 0]);
                text(out, &list);
            }
            (b"status" | b"status-code", _) => {
                out.put_u8(3);
                self.varint(out);
            }
            (b"src", _) => out.put_slice(&[6, 192, 0, 2, 1]),
            _ => {
                out.put_u8(8);
                let said = self.text();
                text(out, said.as_bytes());
            }
        }
    }

    fn varint(&mut self, out: &mut BytesMut) {
        let number = self.below(5000);
        varint(out, number);
    }
}

fn text(out: &mut BytesMut, text: &[u8]) {
    varint(out, text.len() as u64);
    out.put_slice(text);
}

/// A number: below 240 one byte, else four bits there and seven in each byte that follows.
fn varint(out: &mut BytesMut, number: u64) {
    if number < 240 {
        return out.put_u8(number as u8);
    }
    out.put_u8(number as u8 | 0xf0);
    let mut rest = (number - 240) >> 4;
    while rest >= 128 {
        out.put_u8(rest as u8 | 0x80);
        rest = (rest - 128) >> 7;
    }
    out.put_u8(rest as u8);
}
