//! Two sides, many streams, chance deciding everything, and nobody retries without being told to:
//! a forgotten event, a lost byte or a leaked credit shows as a stream that never ends.

use super::*;
use crate::limits::MUX_MAX_STREAMS;
use crate::status::Code;

/// Each direction of a stream says first how long it will be and what it holds.
const PROLOGUE: usize = 5;

fn body(seed: u8, len: usize) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.extend_from_slice(&[seed]);
    bytes.extend_from_slice(&(len as u32).to_be_bytes());
    bytes.extend((PROLOGUE..len).map(|i| byte_at(seed, i)));
    bytes.freeze()
}

fn byte_at(seed: u8, i: usize) -> u8 {
    (i as u8).wrapping_mul(31) ^ ((i >> 8) as u8) ^ seed
}

/// One half of a stream and what is to become of it.
struct RandomHalf {
    key: StreamKey,
    waits: bool,
    /// Bytes after which it is given up instead of finished.
    give_up_at: Option<usize>,
    done: usize,
}

struct RandomWriter {
    half: RandomHalf,
    left: Bytes,
}

struct RandomReader {
    half: RandomHalf,
    seen: Vec<u8>,
}

struct RandomSide {
    mux: Mux,
    wire: BytesMut,
    writers: Vec<RandomWriter>,
    readers: Vec<RandomReader>,
    to_open: usize,
    open_waits: bool,
    accept_waits: bool,
    whole: usize,
}

impl RandomSide {
    fn new(role: MuxRole, to_open: usize) -> Self {
        Self {
            mux: Mux::new(role),
            wire: BytesMut::new(),
            writers: Vec::new(),
            readers: Vec::new(),
            to_open,
            open_waits: false,
            accept_waits: false,
            whole: 0,
        }
    }

    fn begin(&mut self, key: StreamKey, rng: &mut SplitMix) {
        let len = PROLOGUE
            + if rng.below(4) == 0 {
                rng.below(100_000)
            } else {
                rng.below(3000)
            };
        let mut half = |chance| RandomHalf {
            key,
            waits: false,
            give_up_at: (rng.below(chance) == 0).then(|| rng.below(len + 1)),
            done: 0,
        };
        let (write, read) = (half(6), half(6));
        let left = body(rng.next() as u8, len);
        self.writers.push(RandomWriter { half: write, left });
        self.readers.push(RandomReader {
            half: read,
            seen: Vec::new(),
        });
    }

    fn act(&mut self, rng: &mut SplitMix) {
        while let Some(event) = self.mux.poll_event() {
            match event {
                MuxEvent::OpenAllowed => self.open_waits = false,
                MuxEvent::Incoming => self.accept_waits = false,
                MuxEvent::Readable(key) => {
                    self.readers
                        .iter_mut()
                        .filter(|r| r.half.key == key)
                        .for_each(|r| {
                            r.half.waits = false;
                        });
                }
                MuxEvent::Writable(key) => {
                    self.writers
                        .iter_mut()
                        .filter(|w| w.half.key == key)
                        .for_each(|w| {
                            w.half.waits = false;
                        });
                }
                _ => {}
            }
        }
        match rng.below(8) {
            0 if self.to_open > 0 && !self.open_waits => {
                match self.mux.open(Priority::ALL[rng.below(4)]) {
                    Poll::Ready(key) => {
                        self.to_open -= 1;
                        self.begin(key.unwrap(), rng);
                    }
                    Poll::Pending => self.open_waits = true,
                }
            }
            1 if !self.accept_waits => match self.mux.accept() {
                Poll::Ready(key) => self.begin(key.unwrap(), rng),
                Poll::Pending => self.accept_waits = true,
            },
            2..=4 if !self.writers.is_empty() => self.write(rng),
            _ if !self.readers.is_empty() => self.read(rng),
            _ => {}
        }
    }

    fn write(&mut self, rng: &mut SplitMix) {
        let at = rng.below(self.writers.len());
        let RandomWriter { half, left } = &mut self.writers[at];
        let key = half.key;
        if half.give_up_at.is_some_and(|limit| half.done >= limit) {
            self.mux.reset(key, Code::Aborted);
        } else if left.is_empty() {
            self.mux.finish(key);
        } else {
            if half.waits {
                return;
            }
            let len = (1 + rng.below(50_000)).min(left.len());
            let mut chunk = left.slice(..len);
            match self.mux.write(key, &mut chunk) {
                Poll::Ready(Err(error)) => {
                    assert_eq!(error, MuxWriteError::Stopped(Code::OutOfRange));
                }
                progress => {
                    half.waits = progress.is_pending();
                    half.done += len - chunk.len();
                    left.advance(len - chunk.len());
                    return;
                }
            }
        }
        self.mux.drop_send(key);
        self.writers.swap_remove(at);
    }

    fn read(&mut self, rng: &mut SplitMix) {
        let at = rng.below(self.readers.len());
        let RandomReader { half, seen } = &mut self.readers[at];
        let key = half.key;
        if half.give_up_at.is_some_and(|limit| half.done >= limit) {
            self.mux.stop(key, Code::OutOfRange);
        } else {
            if half.waits {
                return;
            }
            match self.mux.read(key, 1 + rng.below(40_000)) {
                Poll::Pending => {
                    half.waits = true;
                    return;
                }
                Poll::Ready(Ok(Some(chunk))) => {
                    half.done += chunk.len();
                    seen.extend_from_slice(&chunk);
                    return;
                }
                Poll::Ready(Ok(None)) => {
                    let len = u32::from_be_bytes(seen[1..PROLOGUE].try_into().unwrap()) as usize;
                    assert_eq!(*seen, body(seen[0], len), "a finished stream arrives whole");
                    self.whole += 1;
                }
                Poll::Ready(Err(error)) => {
                    let known = [Code::Aborted, Code::OutOfRange].map(MuxReadError::Reset);
                    assert!(known.contains(&error), "{error}");
                }
            }
        }
        self.mux.drop_recv(key);
        self.readers.swap_remove(at);
    }

    /// Puts output on the wire while it has room, as a socket would.
    fn emit(&mut self) {
        if self.wire.len() < 100_000 {
            let mut out = MuxOutput::new();
            self.mux.poll_output(&mut out);
            let len = out.remaining();
            self.wire.extend_from_slice(&out.copy_to_bytes(len));
        }
    }

    /// Takes some bytes off the wire of the other side.
    fn receive(&mut self, wire: &mut BytesMut, rng: &mut SplitMix) {
        let len = rng.below(70_000).min(wire.len());
        self.mux.handle_input(wire.split_to(len).freeze()).unwrap();
    }

    fn is_done(&self) -> bool {
        self.to_open == 0
            && self.writers.is_empty()
            && self.readers.is_empty()
            && self.wire.is_empty()
            && !self.mux.has_output()
            && self.mux.live_streams() == 0
    }
}

#[test]
fn whatever_happens_every_stream_ends_as_its_writer_or_reader_meant() {
    for seed in 0..10 {
        let mut rng = SplitMix(seed);
        let (mut a, mut b) = (
            RandomSide::new(MuxRole::Client, 60),
            RandomSide::new(MuxRole::Server, 60),
        );
        let mut steps = 0;
        while !(a.is_done() && b.is_done()) {
            steps += 1;
            assert!(steps < 3_000_000, "seed {seed}: a stream waits for ever");
            match rng.below(6) {
                0 => a.emit(),
                1 => b.emit(),
                2 => b.receive(&mut a.wire, &mut rng),
                3 => a.receive(&mut b.wire, &mut rng),
                4 => a.act(&mut rng),
                _ => b.act(&mut rng),
            }
        }
        assert!(
            a.whole + b.whole > 100,
            "seed {seed}: {} and {}",
            a.whole,
            b.whole
        );
        for (mux, other) in [(&a.mux, &b.mux), (&b.mux, &a.mux)] {
            assert_eq!((mux.unread(), mux.budget.used()), (0, 0), "seed {seed}");
            // No permission to open was lost or made up.
            assert_eq!(mux.open_credit, other.remote_credit, "seed {seed}");
            assert_eq!(
                mux.open_credit + other.returned,
                MUX_MAX_STREAMS,
                "seed {seed}"
            );
        }
    }
}
