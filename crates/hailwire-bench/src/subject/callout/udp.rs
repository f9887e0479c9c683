//! Datagrams back and forth: the round trip of the network alone for an event and its answer.
//!
//! Blocking calls on plain sockets, one at a time, of the sizes of `raw`. Where both ends are behind NAT, a third process with
//! a public address (`--through`) tells each the external address of the other; then both send, which opens their routers (hole punching).
//!
//! | datagram | bytes | answered with |
//! |---|---|---|
//! | to the third process: `a` or `b`, the name of the sender | 1 | the address of the other one as text, once it is known |
//! | an event | 395 | 170 bytes |
//! | anything else opens a router, or is an address as text | | nothing |

use std::{
    collections::HashMap,
    io::ErrorKind,
    net::{SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use super::{rate, raw::SIZES};
use crate::{
    BenchError,
    measure::TimeHistogram,
    subject::{ReadyAddress, SubjectSetup, any_like},
    work::{MeasuredWork, WorkRequest},
};

/// How often a waiting process sends again.
const RESEND_INTERVAL: Duration = Duration::from_millis(100);

/// How long the two may take to exchange datagrams.
const MEET_TIMEOUT: Duration = Duration::from_secs(10);

/// The names of the two ends at the third process.
const LOADING: &[u8] = b"a";
const SERVING: &[u8] = b"b";

pub(in crate::subject) fn serve(options: &SubjectSetup) -> Result<ReadyAddress, BenchError> {
    let socket =
        UdpSocket::bind((options.listen, 0)).map_err(BenchError::io("opening a socket"))?;
    let address = socket
        .local_addr()
        .map_err(BenchError::io("reading the socket's address"))?
        .to_string();
    let timed = socket.set_read_timeout(Some(RESEND_INTERVAL));
    timed.map_err(BenchError::io("opening a socket"))?;
    let through = options.through;
    // It ends with the process.
    std::thread::spawn(move || answer(&socket, through));
    Ok(ReadyAddress {
        address,
        ..ReadyAddress::default()
    })
}

/// Answers events, and tells each end the address of the other. Never returns.
fn answer(socket: &UdpSocket, through: Option<SocketAddr>) {
    let mut known: HashMap<u8, SocketAddr> = HashMap::new();
    let (mut buffer, answer) = ([0; 2048], [1; SIZES.1]);
    let mut other = None;
    loop {
        match socket.recv_from(&mut buffer) {
            Ok((length, from)) if length == SIZES.0 => {
                let _ = socket.send_to(&answer, from);
            }
            Ok((length, from)) if Some(from) == through => other = text(&buffer[..length]),
            Ok((1, from)) => {
                let who = buffer[0];
                known.insert(who, from);
                if let Some((_, address)) = known.iter().find(|(one, _)| **one != who) {
                    let _ = socket.send_to(address.to_string().as_bytes(), from);
                }
            }
            Ok(_) => {}
            // Nothing has come for a while.
            Err(_) => {
                if let Some(third) = through {
                    let _ = socket.send_to(SERVING, third);
                }
                if let Some(other) = other {
                    let _ = socket.send_to(b"open", other);
                }
            }
        }
    }
}

fn text(bytes: &[u8]) -> Option<SocketAddr> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

/// A socket, and the address of the other end.
pub(in crate::subject) struct UdpPeer {
    socket: UdpSocket,
    to: SocketAddr,
}

impl UdpPeer {
    pub(in crate::subject) fn new(
        ready: &ReadyAddress,
        options: &SubjectSetup,
    ) -> Result<Self, BenchError> {
        let broken = || BenchError::io("using the socket");
        let to = ready.socket()?;
        let local = options
            .through
            .map_or(any_like(to.ip()), |third| any_like(third.ip()));
        let socket = UdpSocket::bind((local, 0)).map_err(broken())?;
        socket
            .set_read_timeout(Some(RESEND_INTERVAL))
            .map_err(broken())?;
        let mut target = Self { socket, to };
        target.exchange_addresses(options.through)?;
        Ok(target)
    }

    /// Sends events until the first is answered, to the address from the third process where there is one.
    fn exchange_addresses(&mut self, through: Option<SocketAddr>) -> Result<(), BenchError> {
        let (event, mut buffer) = ([0; SIZES.0], [0; 2048]);
        let begun = Instant::now();
        let mut met = through.is_none();
        while begun.elapsed() < MEET_TIMEOUT {
            if let Some(third) = through.filter(|_| !met) {
                self.send(LOADING, third)?;
            }
            if met {
                self.send(&event, self.to)?;
            }
            match self.socket.recv_from(&mut buffer) {
                Ok((length, from)) if Some(from) == through => {
                    if let Some(other) = text(&buffer[..length]) {
                        (self.to, met) = (other, true);
                    }
                }
                Ok((length, from)) if length == SIZES.1 && from == self.to => return Ok(()),
                Ok(_) => {}
                Err(error) if is_late(&error) => {}
                Err(error) => return Err(BenchError::io("using the socket")(error)),
            }
        }
        Err(BenchError::Unsupported("no datagram came back"))
    }

    fn send(&self, bytes: &[u8], to: SocketAddr) -> Result<(), BenchError> {
        let sent = self.socket.send_to(bytes, to);
        sent.map(drop).map_err(BenchError::io("using the socket"))
    }

    pub(in crate::subject) fn run(&self, work: &WorkRequest) -> Result<MeasuredWork, BenchError> {
        let WorkRequest::Rate {
            in_flight: 1,
            seconds,
            ..
        } = work
        else {
            return Err(BenchError::Unsupported(
                "this subject only does one request at a time",
            ));
        };
        let (event, mut buffer) = ([0; SIZES.0], [0; 2048]);
        let mut times = TimeHistogram::default();
        let (begun, whole) = (Instant::now(), Duration::from_secs_f64(*seconds));
        // Late answers of earlier work are discarded.
        while self.drained(&mut buffer)? {}
        loop {
            let sent = Instant::now();
            self.send(&event, self.to)?;
            while self.receive(&mut buffer)? != Some(SIZES.1) {
                if sent.elapsed() > MEET_TIMEOUT {
                    return Err(BenchError::Unsupported("datagrams are lost"));
                }
            }
            times.record(sent.elapsed());
            if begun.elapsed() >= whole {
                break;
            }
        }
        let took = begun.elapsed().as_secs_f64();
        Ok(rate(times.measured(), times.count(), took, 0))
    }

    /// The length of a received datagram; `None` after the timeout.
    fn receive(&self, buffer: &mut [u8]) -> Result<Option<usize>, BenchError> {
        match self.socket.recv(buffer) {
            Ok(length) => Ok(Some(length)),
            Err(error) if is_late(&error) => Ok(None),
            Err(error) => Err(BenchError::io("using the socket")(error)),
        }
    }

    /// Discards what is waiting; returns whether something was.
    fn drained(&self, buffer: &mut [u8]) -> Result<bool, BenchError> {
        let broken = || BenchError::io("using the socket");
        self.socket.set_nonblocking(true).map_err(broken())?;
        let came = self.socket.recv(buffer).is_ok();
        self.socket.set_nonblocking(false).map_err(broken())?;
        Ok(came)
    }
}

fn is_late(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
