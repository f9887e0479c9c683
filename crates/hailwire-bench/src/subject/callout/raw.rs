//! Bytes back and forth over a Unix socket: what the kernel alone takes for an event and its answer.
//!
//! Blocking calls on plain sockets, one at a time: nothing that waits for the same bytes can be faster.

use std::{
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    time::{Duration, Instant},
};

use tempfile::TempDir;

use super::rate;
use crate::{
    BenchError,
    measure::Times,
    subject::Ready,
    work::{Measured, Work},
};

/// Bytes of the frame of a small request in MessagePack, and of the answer that lets it pass.
pub(super) const SIZES: (usize, usize) = (395, 170);

/// A listening socket in a folder of its own.
pub(in crate::subject) struct Served {
    pub(in crate::subject) ready: Ready,
    _folder: TempDir,
}

pub(in crate::subject) fn serve() -> Result<Served, BenchError> {
    let folder = tempfile::tempdir().map_err(BenchError::io("a folder"))?;
    let path = folder.path().join("raw.sock");
    let listener = UnixListener::bind(&path).map_err(BenchError::io("a socket"))?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(stream));
        }
    });
    Ok(Served {
        ready: Ready {
            address: path.display().to_string(),
            ..Ready::default()
        },
        _folder: folder,
    })
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
    let Work::Rate {
        in_flight: 1,
        seconds,
        ..
    } = work
    else {
        return Err(BenchError::Unsupported("this subject does one at a time"));
    };
    let broken = || BenchError::io("the socket");
    let mut stream = UnixStream::connect(&ready.address).map_err(broken())?;
    let (asked, mut answer) = (vec![0; SIZES.0], vec![0; SIZES.1]);
    let mut times = Times::default();
    let (begun, whole) = (Instant::now(), Duration::from_secs_f64(*seconds));
    loop {
        let sent = Instant::now();
        stream.write_all(&asked).map_err(broken())?;
        stream.read_exact(&mut answer).map_err(broken())?;
        times.record(sent.elapsed());
        if begun.elapsed() >= whole {
            break;
        }
    }
    let took = begun.elapsed().as_secs_f64();
    Ok(rate(times.measured(), times.count(), took, 0))
}
