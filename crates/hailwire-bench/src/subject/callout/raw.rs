//! Bytes back and forth over a Unix socket: what the kernel alone takes for an event and its answer, or for bodies.
//!
//! [`serve`] and [`load`] make blocking calls on plain sockets, one at a time: nothing that waits for the same bytes can be faster.
//! [`serve_evented`] and [`load_evented`] move the same bytes on the event loop that hosts and agents run on: what lies between
//! the two is the event loop's, and what ours takes beyond these is the protocol's.

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
    measure::Times,
    subject::Ready,
    work::{Measured, Work},
};

/// Bytes of the frame of a small request in MessagePack, and of the answer that lets it pass, between two of ours.
pub(super) const SIZES: (usize, usize) = (308, 13);

/// Bytes of a piece of a body, and how many may be under way of one body, as between two of ours.
const PIECE: usize = 64 << 10;
const WINDOW: usize = 512 << 10;

/// What a connection with blocking calls is for, in its first byte.
const SMALL: [u8; 1] = [0];
const PIECES: [u8; 1] = [1];

/// A listening socket in a folder of its own.
pub(in crate::subject) struct Served {
    pub(in crate::subject) ready: Ready,
    _folder: TempDir,
}

pub(in crate::subject) fn serve() -> Result<Served, BenchError> {
    let (served, listener) = listen()?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(stream));
        }
    });
    Ok(served)
}

pub(in crate::subject) fn serve_evented() -> Result<Served, BenchError> {
    let (served, listener) = listen()?;
    let broken = || BenchError::io("a socket");
    listener.set_nonblocking(true).map_err(broken())?;
    let listener = tokio::net::UnixListener::from_std(listener).map_err(broken())?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer_evented(stream));
        }
    });
    Ok(served)
}

fn listen() -> Result<(Served, UnixListener), BenchError> {
    let folder = tempfile::tempdir().map_err(BenchError::io("a folder"))?;
    let path = folder.path().join("raw.sock");
    let listener = UnixListener::bind(&path).map_err(BenchError::io("a socket"))?;
    let served = Served {
        ready: Ready {
            address: path.display().to_string(),
            ..Ready::default()
        },
        _folder: folder,
    };
    Ok((served, listener))
}

async fn answer_evented(mut stream: tokio::net::UnixStream) {
    let (mut asked, answer) = (vec![0; SIZES.0], vec![1; SIZES.1]);
    while stream.read_exact(&mut asked).await.is_ok() {
        if stream.write_all(&answer).await.is_err() {
            return;
        }
    }
}

/// Answers a small request, or the pieces of bodies when the first bytes say so.
fn answer(mut stream: UnixStream) {
    let mut kind = [0; 1];
    if stream.read_exact(&mut kind).is_err() {
        return;
    }
    let _ = match kind {
        SMALL => answer_small(&mut stream),
        _ => answer_pieces(&mut stream),
    };
}

fn answer_small(stream: &mut UnixStream) -> io::Result<()> {
    let (mut asked, answer) = (vec![0; SIZES.0], vec![1; SIZES.1]);
    loop {
        stream.read_exact(&mut asked)?;
        stream.write_all(&answer)?;
    }
}

/// Reads as much as there is, four pieces at most, and answers all that came whole with one call.
fn answer_pieces(stream: &mut UnixStream) -> io::Result<()> {
    let answers = [1; SIZES.1 * 8];
    let mut buffer = vec![0; 4 * PIECE];
    let mut came = 0;
    loop {
        let read = stream.read(&mut buffer)?;
        if read == 0 {
            return Ok(());
        }
        came += read;
        let whole = came / PIECE;
        came %= PIECE;
        stream.write_all(answers.get(..whole * SIZES.1).unwrap_or_default())?;
    }
}

pub(in crate::subject) fn load(ready: &Ready, work: &Work) -> Result<Measured, BenchError> {
    let broken = || BenchError::io("the socket");
    let mut stream = UnixStream::connect(&ready.address).map_err(broken())?;
    match *work {
        Work::Rate {
            in_flight,
            seconds,
            bytes,
            ..
        } if bytes > 0 => {
            stream.write_all(&PIECES).map_err(broken())?;
            set_socket_send_buffer_size(&stream, 1 << 20).map_err(|e| broken()(e.into()))?;
            let whole = Duration::from_secs_f64(seconds);
            pieces(&mut stream, bytes, in_flight as usize, whole).map_err(broken())
        }
        _ => {
            let whole = seconds(work)?;
            stream.write_all(&SMALL).map_err(broken())?;
            small(&mut stream, whole).map_err(broken())
        }
    }
}

fn small(stream: &mut UnixStream, whole: Duration) -> io::Result<Measured> {
    let (asked, mut answer) = (vec![0; SIZES.0], vec![0; SIZES.1]);
    let mut times = Times::default();
    let begun = Instant::now();
    loop {
        let sent = Instant::now();
        stream.write_all(&asked)?;
        stream.read_exact(&mut answer)?;
        times.record(sent.elapsed());
        if begun.elapsed() >= whole {
            return Ok(figures(&times, begun, 0));
        }
    }
}

/// Bodies one after the other, with as many pieces under way as ours have: a window of each body that is.
/// What of a body may leave leaves with one call. Only whole bodies are counted.
fn pieces(
    stream: &mut UnixStream,
    bytes: usize,
    in_flight: usize,
    whole: Duration,
) -> io::Result<Measured> {
    let body = vec![b'a'; bytes.next_multiple_of(PIECE)];
    let each = body.len() / PIECE;
    let most = in_flight * each.min(WINDOW / PIECE);
    let mut answers = vec![0; SIZES.1 * most];
    let mut times = Times::default();
    let (mut at, mut under_way, mut came, mut answered) = (0, 0, 0, 0);
    let mut begins = VecDeque::new();
    let begun = Instant::now();
    while begun.elapsed() < whole {
        while under_way < most {
            let now = (most - under_way).min(each - at);
            if at == 0 {
                begins.push_back(Instant::now());
            }
            let from = at * PIECE;
            stream.write_all(body.get(from..from + now * PIECE).unwrap_or_default())?;
            under_way += now;
            at = (at + now) % each;
        }
        came += stream.read(&mut answers)?;
        let pieces = came / SIZES.1;
        came %= SIZES.1;
        under_way -= pieces;
        answered += pieces;
        while answered >= each {
            answered -= each;
            times.record(begins.pop_front().unwrap_or(begun).elapsed());
        }
    }
    Ok(figures(&times, begun, bytes))
}

/// To be run in a task, as whoever asks in a proxy is one.
pub(in crate::subject) async fn load_evented(
    ready: Ready,
    work: Work,
) -> Result<Measured, BenchError> {
    let whole = seconds(&work)?;
    let broken = || BenchError::io("the socket");
    let stream = tokio::net::UnixStream::connect(&ready.address).await;
    let mut stream = stream.map_err(broken())?;
    let (asked, mut answer) = (vec![0; SIZES.0], vec![0; SIZES.1]);
    let mut times = Times::default();
    let begun = Instant::now();
    loop {
        let sent = Instant::now();
        stream.write_all(&asked).await.map_err(broken())?;
        stream.read_exact(&mut answer).await.map_err(broken())?;
        times.record(sent.elapsed());
        if begun.elapsed() >= whole {
            break;
        }
    }
    Ok(figures(&times, begun, 0))
}

/// How long, where the work is one at a time.
fn seconds(work: &Work) -> Result<Duration, BenchError> {
    match work {
        Work::Rate {
            in_flight: 1,
            seconds,
            ..
        } => Ok(Duration::from_secs_f64(*seconds)),
        _ => Err(BenchError::Unsupported("this subject does one at a time")),
    }
}

fn figures(times: &Times, begun: Instant, bytes: usize) -> Measured {
    let took = begun.elapsed().as_secs_f64();
    rate(times.measured(), times.count(), took, bytes)
}
