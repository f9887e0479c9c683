//! A peer of few lines that writes its bytes itself, right or wrong as `HAIL_BROKEN` says: for the tests of what the driver notices.

#![forbid(unsafe_code)]

use std::{
    collections::HashMap,
    env,
    io::{self, Read as _, Write as _},
    os::unix::net::UnixStream,
    path::PathBuf,
};

use bytes::{Bytes, BytesMut};
use hailwire_wire::{
    Code, Priority, Status,
    frame::{self, FrameDecoder, FrameEvent, FrameKind},
    header,
    mux::{DecodedItem, MuxDecoder, MuxFrame, MuxRole, PREFACE, preface},
};

fn data_frame(stream: u64, bytes: &[u8], fin: bool) -> MuxFrame {
    let priority = match stream {
        1 => Priority::Critical,
        _ => Priority::Medium,
    };
    MuxFrame::Data {
        stream,
        priority,
        fin,
        body: Bytes::copy_from_slice(bytes),
    }
}

fn main() -> io::Result<()> {
    let broken = env::var("HAIL_BROKEN").unwrap_or_default();
    if broken == "it ends at once" {
        return Ok(());
    }
    let data = env::var_os("HAIL_DATA").map(PathBuf::from);
    let socket = data.unwrap_or_default().join("run/hail.sock");
    let mut peer = RawPeer {
        socket: UnixStream::connect(socket)?,
        out: BytesMut::new(),
        broken,
        bodies: HashMap::new(),
    };
    peer.attach()?;
    peer.serve()
}

struct RawPeer {
    socket: UnixStream,
    /// What waits to be sent.
    out: BytesMut,
    broken: String,
    /// What came of the body of each call.
    bodies: HashMap<u64, (FrameDecoder, Vec<u8>)>,
}

impl RawPeer {
    fn is(&self, broken: &str) -> bool {
        self.broken == broken
    }

    fn write(&mut self, frame: &MuxFrame) {
        frame.encode(&mut self.out);
    }

    /// Sends what was written in one piece: with the end of an answer the driver may have all that it waits for, and look no further.
    fn flush(&mut self) -> io::Result<()> {
        let out = self.out.split();
        self.socket.write_all(&out)
    }

    fn data(&mut self, stream: u64, bytes: &[u8], fin: bool) {
        self.write(&data_frame(stream, bytes, fin));
    }

    fn frame(&mut self, stream: u64, kind: FrameKind, payload: &[u8]) {
        let mut out = BytesMut::new();
        frame::put(&mut out, kind, payload);
        self.data(stream, &out, false);
    }

    fn attach(&mut self) -> io::Result<()> {
        let role = match self.is("it says to be the server") {
            true => MuxRole::Server,
            false => MuxRole::Client,
        };
        self.socket.write_all(&preface(role))?;
        let first = if self.is("it skips a stream") { 3 } else { 1 };
        self.frame(first, FrameKind::HELLO, b"\x81\xa8versions\x91\x01");
        let register: &[u8] = match self.broken.as_str() {
            "it writes a default" => b"\x82\xa4name\xa4peer\xa7version\xa0",
            "it writes a long form" => b"\x81\xa4name\xd9\x04peer",
            _ => b"\x81\xa4name\xa4peer",
        };
        self.frame(first + 2, FrameKind::REGISTER, register);
        self.flush()
    }

    fn serve(&mut self) -> io::Result<()> {
        let (mut decoder, mut stream, mut fin) = (MuxDecoder::default(), 0, false);
        let mut skipped = [0; PREFACE];
        self.socket.read_exact(&mut skipped)?;
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let len = self.socket.read(&mut buffer)?;
            if len == 0 {
                return Ok(());
            }
            let mut chunk = Bytes::copy_from_slice(&buffer[..len]);
            while let Some(item) = decoder.next_item(&mut chunk).map_err(io::Error::other)? {
                match item {
                    DecodedItem::Data(header) => (stream, fin) = (header.stream, header.fin()),
                    DecodedItem::Part(part) => self.read_part(stream, part)?,
                    DecodedItem::DataEnd if fin => self.answer(stream),
                    DecodedItem::Frame(MuxFrame::Ping(payload)) => {
                        self.write(&MuxFrame::Pong(payload));
                    }
                    _ => {}
                }
            }
            self.flush()?;
        }
    }

    fn read_part(&mut self, stream: u64, part: Bytes) -> io::Result<()> {
        let (frames, body) = self.bodies.entry(stream).or_default();
        frames.push(part);
        while let Some(event) = frames.next_event().map_err(io::Error::other)? {
            if let FrameEvent::Data(bytes) = event {
                body.extend_from_slice(&bytes);
            }
        }
        Ok(())
    }

    /// Answers each call as `echo` does.
    fn answer(&mut self, stream: u64) {
        let (_, mut body) = self.bodies.remove(&stream).unwrap_or_default();
        let long = Status::ok();
        match self.broken.as_str() {
            "it sends beyond its credit" => body = vec![0; 20_000],
            "it changes a byte" => body.iter_mut().for_each(|byte| *byte ^= 1),
            "it grants too much" => self.window(stream, 3 << 20),
            "it grants too many streams" => self.write(&MuxFrame::Streams(2)),
            "it writes to a stream that is not there" => self.data(stream + 2, b"", false),
            "it says HEAD last" => self.frame(stream, FrameKind::DATA, b"body"),
            "it resets" => {
                return self.write(&MuxFrame::Reset {
                    stream,
                    priority: Priority::Medium,
                    code: Code::Aborted,
                });
            }
            _ => {}
        }
        if self.is("it says HEAD last") {
            self.frame(stream, FrameKind::HEAD, b"\x80");
        }
        self.data(stream, &frame::prefix(FrameKind::DATA, body.len()), false);
        for part in body.chunks(16_384) {
            self.data(stream, part, false);
        }
        match self.broken.as_str() {
            "it leaves END out" => {}
            "it writes a status that is too long" => self.long_status(stream, long),
            _ => self.frame(stream, FrameKind::END, b""),
        }
        match self.broken.as_str() {
            "it says more after END" => self.frame(stream, FrameKind::DATA, b"more"),
            "it ends inside a frame" => self.data(stream, b"\x11\x00", false),
            _ => {}
        }
        self.data(stream, b"", true);
        if self.is("it writes after FIN") {
            self.data(stream, b"more", false);
        }
    }

    fn window(&mut self, stream: u64, credit: u32) {
        // Where the stream has ended it would count for nothing, so another one gets it.
        let stream = stream - stream % 2 + 1;
        self.write(&MuxFrame::Window {
            stream,
            priority: Priority::Critical,
            credit,
        });
    }

    fn long_status(&mut self, stream: u64, mut status: Status) {
        status.message = "x".repeat(2_000);
        let payload = header::encode(&status);
        self.frame(stream, FrameKind::END, &payload);
    }
}
