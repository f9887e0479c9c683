//! Bytes back and forth over a Unix socket: what the kernel alone takes for an event and its answer, or for bodies.
//!
//! [`serve`] and [`load`] make blocking calls on plain sockets, one at a time: the lower bound for any program that waits for the same bytes.
//! [`serve_evented`] and [`load_evented`] move the same bytes on the event loop that hosts and agents run on: the difference between
//! the two is the cost of the event loop, and what ours takes beyond these is the cost of the protocol.

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    time::{Duration, Instant},
};

use rustix::net::sockopt::set_socket_send_buffer_size;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::rate;
use crate::{
    BenchError,
    measure::TimeHistogram,
    subject::ReadyAddress,
    work::{MeasuredWork, WorkRequest},
};

/// Bytes of the frame of a small request in MessagePack, and of the answer that allows it, between our host and our agent.
pub(super) const SIZES: (usize, usize) = (308, 13);

/// Bytes of a chunk of a body, and of one body's chunks in flight, as between our host and our agent.
const CHUNK_BYTES: usize = 64 << 10;
const WINDOW: usize = 512 << 10;

/// The first byte of a connection with blocking calls: what it is for.
const OP_SMALL: [u8; 1] = [0];
const OP_CHUNKS: [u8; 1] = [1];

/// A listening socket in a folder of its own.
pub(in crate::subject) struct ServedSocket {
    pub(in crate::subject) ready: ReadyAddress,
    _folder: TempDir,
}

pub(in crate::subject) fn serve() -> Result<ServedSocket, BenchError> {
    let (served, listener) = listen()?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(stream));
        }
    });
    Ok(served)
}

pub(in crate::subject) fn serve_evented() -> Result<ServedSocket, BenchError> {
    let (served, listener) = listen()?;
    let broken = || BenchError::io("opening a socket");
    listener.set_nonblocking(true).map_err(broken())?;
    let listener = tokio::net::UnixListener::from_std(listener).map_err(broken())?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer_evented(stream));
        }
    });
    Ok(served)
}

fn listen() -> Result<(ServedSocket, UnixListener), BenchError> {
    let folder = tempfile::tempdir().map_err(BenchError::io("creating a folder"))?;
    let path = folder.path().join("raw.sock");
    let listener = UnixListener::bind(&path).map_err(BenchError::io("opening a socket"))?;
    let served = ServedSocket {
        ready: ReadyAddress {
            address: path.display().to_string(),
            ..ReadyAddress::default()
        },
        _folder: folder,
    };
    Ok((served, listener))
}

async fn answer_evented(mut stream: tokio::net::UnixStream) {
    let (mut requests, answer) = (vec![0; SIZES.0], vec![1; SIZES.1]);
    while stream.read_exact(&mut requests).await.is_ok() {
        if stream.write_all(&answer).await.is_err() {
            return;
        }
    }
}

/// Answers small requests, or the chunks of bodies, as the first byte says.
fn answer(mut stream: UnixStream) {
    let mut kind = [0; 1];
    if stream.read_exact(&mut kind).is_err() {
        return;
    }
    let _ = match kind {
        OP_SMALL => answer_small(&mut stream),
        _ => answer_chunks(&mut stream),
    };
}

fn answer_small(stream: &mut UnixStream) -> io::Result<()> {
    let (mut requests, answer) = (vec![0; SIZES.0], vec![1; SIZES.1]);
    loop {
        stream.read_exact(&mut requests)?;
        stream.write_all(&answer)?;
    }
}

/// Reads what is available, four chunks at most, and answers all complete ones with one call.
fn answer_chunks(stream: &mut UnixStream) -> io::Result<()> {
    let answers = [1; SIZES.1 * 8];
    let mut buffer = vec![0; 4 * CHUNK_BYTES];
    let mut came = 0;
    loop {
        let read = stream.read(&mut buffer)?;
        if read == 0 {
            return Ok(());
        }
        came += read;
        let whole = came / CHUNK_BYTES;
        came %= CHUNK_BYTES;
        stream.write_all(answers.get(..whole * SIZES.1).unwrap_or_default())?;
    }
}

pub(in crate::subject) fn load(
    ready: &ReadyAddress,
    work: &WorkRequest,
) -> Result<MeasuredWork, BenchError> {
    let broken = || BenchError::io("using the socket");
    let mut stream = UnixStream::connect(&ready.address).map_err(broken())?;
    match *work {
        WorkRequest::Rate {
            in_flight,
            seconds,
            bytes,
            ..
        } if bytes > 0 => {
            stream.write_all(&OP_CHUNKS).map_err(broken())?;
            set_socket_send_buffer_size(&stream, 1 << 20).map_err(|e| broken()(e.into()))?;
            let whole = Duration::from_secs_f64(seconds);
            chunks(&mut stream, bytes, in_flight as usize, whole).map_err(broken())
        }
        _ => {
            let whole = seconds(work)?;
            stream.write_all(&OP_SMALL).map_err(broken())?;
            small(&mut stream, whole).map_err(broken())
        }
    }
}

fn small(stream: &mut UnixStream, whole: Duration) -> io::Result<MeasuredWork> {
    let (requests, mut answer) = (vec![0; SIZES.0], vec![0; SIZES.1]);
    let mut times = TimeHistogram::default();
    let begun = Instant::now();
    loop {
        let sent = Instant::now();
        stream.write_all(&requests)?;
        stream.read_exact(&mut answer)?;
        times.record(sent.elapsed());
        if begun.elapsed() >= whole {
            return Ok(figures(&times, begun, 0));
        }
    }
}

/// Sends bodies one after the other, with as many chunks in flight as ours have: one window for each body.
/// All chunks that the window allows are written with one call. Only complete bodies are counted.
fn chunks(
    stream: &mut UnixStream,
    bytes: usize,
    in_flight: usize,
    whole: Duration,
) -> io::Result<MeasuredWork> {
    let body = vec![b'a'; bytes.next_multiple_of(CHUNK_BYTES)];
    let each = body.len() / CHUNK_BYTES;
    let most = in_flight * each.min(WINDOW / CHUNK_BYTES);
    let mut answers = vec![0; SIZES.1 * most];
    let mut times = TimeHistogram::default();
    let (mut at, mut under_way, mut came, mut answered) = (0, 0, 0, 0);
    let mut begins = VecDeque::new();
    let begun = Instant::now();
    while begun.elapsed() < whole {
        while under_way < most {
            let now = (most - under_way).min(each - at);
            if at == 0 {
                begins.push_back(Instant::now());
            }
            let from = at * CHUNK_BYTES;
            stream.write_all(body.get(from..from + now * CHUNK_BYTES).unwrap_or_default())?;
            under_way += now;
            at = (at + now) % each;
        }
        came += stream.read(&mut answers)?;
        let chunks = came / SIZES.1;
        came %= SIZES.1;
        under_way -= chunks;
        answered += chunks;
        while answered >= each {
            answered -= each;
            times.record(begins.pop_front().unwrap_or(begun).elapsed());
        }
    }
    Ok(figures(&times, begun, bytes))
}

/// To be run in a task, as requests in a proxy are.
pub(in crate::subject) async fn load_evented(
    ready: ReadyAddress,
    work: WorkRequest,
) -> Result<MeasuredWork, BenchError> {
    let whole = seconds(&work)?;
    let broken = || BenchError::io("using the socket");
    let stream = tokio::net::UnixStream::connect(&ready.address).await;
    let mut stream = stream.map_err(broken())?;
    let (requests, mut answer) = (vec![0; SIZES.0], vec![0; SIZES.1]);
    let mut times = TimeHistogram::default();
    let begun = Instant::now();
    loop {
        let sent = Instant::now();
        stream.write_all(&requests).await.map_err(broken())?;
        stream.read_exact(&mut answer).await.map_err(broken())?;
        times.record(sent.elapsed());
        if begun.elapsed() >= whole {
            break;
        }
    }
    Ok(figures(&times, begun, 0))
}

/// The seconds of work that is one request at a time.
fn seconds(work: &WorkRequest) -> Result<Duration, BenchError> {
    match work {
        WorkRequest::Rate {
            in_flight: 1,
            seconds,
            ..
        } => Ok(Duration::from_secs_f64(*seconds)),
        _ => Err(BenchError::Unsupported(
            "this subject only does one request at a time",
        )),
    }
}

fn figures(times: &TimeHistogram, begun: Instant, bytes: usize) -> MeasuredWork {
    let took = begun.elapsed().as_secs_f64();
    rate(times.measured(), times.count(), took, bytes)
}
