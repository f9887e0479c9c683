//! Writing either encoding, value by value.

use bytes::{BufMut as _, BytesMut};
use serde::Serialize as _;

use super::{json, pack};

/// One of the encodings.
///
/// A map is begun with the number of its keys, each of which is written before its value; an array with the number of
/// its values, before each of which comes [`item`](Self::item).
pub(super) trait ValueSink {
    fn map(&mut self, length: usize);
    fn end_map(&mut self);
    fn key(&mut self, key: &str);
    fn seq(&mut self, length: usize);
    fn item(&mut self);
    fn end_seq(&mut self);
    fn text(&mut self, text: &str);
    fn uint(&mut self, number: u64);
    fn f32(&mut self, number: f32);
    fn bool(&mut self, value: bool);
    fn null(&mut self);
    fn base64(&mut self, data: &[u8]);
    fn value(&mut self, value: &serde_json::Value);

    fn optional(&mut self, text: Option<&str>) {
        match text {
            Some(text) => self.text(text),
            None => self.null(),
        }
    }

    fn texts(&mut self, texts: &[String]) {
        self.seq(texts.len());
        for text in texts {
            self.item();
            self.text(text);
        }
        self.end_seq();
    }

    fn pairs(&mut self, pairs: &std::collections::BTreeMap<String, String>) {
        self.map(pairs.len());
        for (key, value) in pairs {
            self.key(key);
            self.text(value);
        }
        self.end_map();
    }
}

/// Writes MessagePack.
pub(super) struct PackSink<'o>(pub(super) &'o mut BytesMut);

impl ValueSink for PackSink<'_> {
    fn map(&mut self, length: usize) {
        pack::put_map_length(length, self.0);
    }

    fn end_map(&mut self) {}

    fn key(&mut self, key: &str) {
        pack::put_text(key, self.0);
    }

    fn seq(&mut self, length: usize) {
        pack::put_seq_length(length, self.0);
    }

    fn item(&mut self) {}

    fn end_seq(&mut self) {}

    fn text(&mut self, text: &str) {
        pack::put_text(text, self.0);
    }

    fn uint(&mut self, number: u64) {
        pack::put_uint(number, self.0);
    }

    fn f32(&mut self, number: f32) {
        self.0.put_u8(0xca);
        self.0.put_f32(number);
    }

    fn bool(&mut self, value: bool) {
        pack::put_bool(value, self.0);
    }

    fn null(&mut self) {
        self.0.put_u8(0xc0);
    }

    fn base64(&mut self, data: &[u8]) {
        let length = base64_simd::STANDARD.encoded_length(data.len());
        self.0.reserve(5 + length);
        pack::put_text_length(length, self.0);
        json::put_bare_base64(data, self.0);
    }

    fn value(&mut self, value: &serde_json::Value) {
        let written = value.serialize(&mut rmp_serde::Serializer::new(self.0.writer()));
        debug_assert!(written.is_ok(), "memory takes everything: {written:?}");
    }
}

/// Writes JSON.
pub(super) struct JsonSink<'o> {
    out: &'o mut BytesMut,
    comma: bool,
}

impl<'o> JsonSink<'o> {
    pub(super) const fn new(out: &'o mut BytesMut) -> Self {
        Self { out, comma: false }
    }

    fn json(&mut self, value: &impl serde::Serialize) {
        let written = serde_json::to_writer(self.out.writer(), value);
        debug_assert!(written.is_ok(), "memory takes everything: {written:?}");
    }
}

impl ValueSink for JsonSink<'_> {
    fn map(&mut self, _: usize) {
        self.out.put_u8(b'{');
        self.comma = false;
    }

    fn end_map(&mut self) {
        self.out.put_u8(b'}');
        self.comma = true;
    }

    fn key(&mut self, key: &str) {
        self.item();
        json::put_text(key.as_bytes(), self.out);
        self.out.put_u8(b':');
    }

    fn seq(&mut self, _: usize) {
        self.out.put_u8(b'[');
        self.comma = false;
    }

    fn item(&mut self) {
        if self.comma {
            self.out.put_u8(b',');
        }
        self.comma = true;
    }

    fn end_seq(&mut self) {
        self.out.put_u8(b']');
        self.comma = true;
    }

    fn text(&mut self, text: &str) {
        json::put_text(text.as_bytes(), self.out);
    }

    fn uint(&mut self, number: u64) {
        json::put_uint(number, self.out);
    }

    fn f32(&mut self, number: f32) {
        self.json(&number);
    }

    fn bool(&mut self, value: bool) {
        json::put_bool(value, self.out);
    }

    fn null(&mut self) {
        self.out.put_slice(b"null");
    }

    fn base64(&mut self, data: &[u8]) {
        json::put_base64(data, self.out);
    }

    fn value(&mut self, value: &serde_json::Value) {
        self.json(value);
    }
}
