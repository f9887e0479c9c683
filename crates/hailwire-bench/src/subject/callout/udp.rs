//! Datagrams back and forth: what a network alone takes for an event and its answer.
//!
//! Blocking calls on plain sockets, one at a time, of the sizes of `raw`. Where both ends are behind NAT a third one, with
//! an address of its own (`--through`), tells each how the other looks from outside; then both send, and their routers let
//! the other in.
//!
//! | datagram | bytes | answered with |
//! |---|---|---|
//! | at the third: `a` or `b`, who it is | 1 | where the other one is, as text, once that is known |
//! | an event | 395 | 170 bytes |
//! | anything else opens a router, or is a text | | nothing |

use std::{
    collections::HashMap,
    io::ErrorKind,
    net::{SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use super::{rate, raw::SIZES};
use crate::{
    BenchError,
    measure::Times,
    subject::{Options, Ready, any_like},
    work::{Measured, Work},
};

/// How often whoever waits says again that it is there.
const AGAIN: Duration = Duration::from_millis(100);

/// How long the two may take to meet.
const MEETS_WITHIN: Duration = Duration::from_secs(10);

/// The names of the two ends at the third.
const LOADING: &[u8] = b"a";
const SERVING: &[u8] = b"b";

pub(in crate::subject) fn serve(options: &Options) -> Result<Ready, BenchError> {
    let socket = UdpSocket::bind((options.listen, 0)).map_err(BenchError::io("a socket"))?;
    let address = socket
        .local_addr()
        .map_err(BenchError::io("its address"))?
        .to_string();
    let timed = socket.set_read_timeout(Some(AGAIN));
    timed.map_err(BenchError::io("a socket"))?;
    let through = options.through;
    // It ends with the process.
    std::thread::spawn(move || answer(&socket, through));
    Ok(Ready {
        address,
        ..Ready::default()
    })
}

/// Answers events, and tells whoever asks where the other is. Never returns.
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
                if let Some((_, place)) = known.iter().find(|(one, _)| **one != who) {
                    let _ = socket.send_to(place.to_string().as_bytes(), from);
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

/// A socket, and who is at the other end.
pub(in crate::subject) struct Far {
    socket: UdpSocket,
    to: SocketAddr,
}

impl Far {
    pub(in crate::subject) fn new(ready: &Ready, options: &Options) -> Result<Self, BenchError> {
        let broken = || BenchError::io("the socket");
        let to = ready.socket()?;
        let near = options
            .through
            .map_or(any_like(to.ip()), |third| any_like(third.ip()));
        let socket = UdpSocket::bind((near, 0)).map_err(broken())?;
        socket.set_read_timeout(Some(AGAIN)).map_err(broken())?;
        let mut far = Self { socket, to };
        far.meet(options.through)?;
        Ok(far)
    }

    /// Sends events until the first is answered, to whom the third one says where there is one.
    fn meet(&mut self, through: Option<SocketAddr>) -> Result<(), BenchError> {
        let (event, mut buffer) = ([0; SIZES.0], [0; 2048]);
        let begun = Instant::now();
        let mut met = through.is_none();
        while begun.elapsed() < MEETS_WITHIN {
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
                Err(error) => return Err(BenchError::io("the socket")(error)),
            }
        }
        Err(BenchError::Unsupported("no datagram came back"))
    }

    fn send(&self, bytes: &[u8], to: SocketAddr) -> Result<(), BenchError> {
        let sent = self.socket.send_to(bytes, to);
        sent.map(drop).map_err(BenchError::io("the socket"))
    }

    pub(in crate::subject) fn run(&self, work: &Work) -> Result<Measured, BenchError> {
        let Work::Rate {
            in_flight: 1,
            seconds,
            ..
        } = work
        else {
            return Err(BenchError::Unsupported("this subject does one at a time"));
        };
        let (event, mut buffer) = ([0; SIZES.0], [0; 2048]);
        let mut times = Times::default();
        let (begun, whole) = (Instant::now(), Duration::from_secs_f64(*seconds));
        // Answers that were late are not taken for those of what comes now.
        while self.drained(&mut buffer)? {}
        loop {
            let sent = Instant::now();
            self.send(&event, self.to)?;
            while self.receive(&mut buffer)? != Some(SIZES.1) {
                if sent.elapsed() > MEETS_WITHIN {
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

    /// The length of what came; nothing where nothing did for a while.
    fn receive(&self, buffer: &mut [u8]) -> Result<Option<usize>, BenchError> {
        match self.socket.recv(buffer) {
            Ok(length) => Ok(Some(length)),
            Err(error) if is_late(&error) => Ok(None),
            Err(error) => Err(BenchError::io("the socket")(error)),
        }
    }

    /// Whether something was waiting.
    fn drained(&self, buffer: &mut [u8]) -> Result<bool, BenchError> {
        let broken = || BenchError::io("the socket");
        self.socket.set_nonblocking(true).map_err(broken())?;
        let came = self.socket.recv(buffer).is_ok();
        self.socket.set_nonblocking(false).map_err(broken())?;
        Ok(came)
    }
}

fn is_late(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
