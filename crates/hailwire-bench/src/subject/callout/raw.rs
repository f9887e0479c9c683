//! Bytes back and forth over a Unix socket: what the kernel alone takes for an event and its answer.
//!
//! [`serve`] and [`load`] make blocking calls on plain sockets, one at a time: nothing that waits for the same bytes can be faster.
//! [`serve_evented`] and [`load_evented`] move the same bytes on the event loop that hosts and agents run on: what lies between
//! the two is the event loop's, and what ours takes beyond these is the protocol's.

use std::{
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    time::{Duration, Instant},
};

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

fn answer(mut stream: UnixStream) {
    let (mut asked, answer) = (vec![0; SIZES.0], vec![1; SIZES.1]);
    while stream.read_exact(&mut asked).is_ok() {
        if stream.write_all(&answer).is_err() {
            return;
        }
    }
}

pub(in crate::subject) fn load(ready: &Ready, work: &Work) -> Result<Measured, BenchError> {
    let whole = seconds(work)?;
    let broken = || BenchError::io("the socket");
    let mut stream = UnixStream::connect(&ready.address).map_err(broken())?;
    let (asked, mut answer) = (vec![0; SIZES.0], vec![0; SIZES.1]);
    let mut times = Times::default();
    let begun = Instant::now();
    loop {
        let sent = Instant::now();
        stream.write_all(&asked).map_err(broken())?;
        stream.read_exact(&mut answer).map_err(broken())?;
        times.record(sent.elapsed());
        if begun.elapsed() >= whole {
            break;
        }
    }
    Ok(figures(&times, begun))
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
    Ok(figures(&times, begun))
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

fn figures(times: &Times, begun: Instant) -> Measured {
    let took = begun.elapsed().as_secs_f64();
    rate(times.measured(), times.count(), took, 0)
}
