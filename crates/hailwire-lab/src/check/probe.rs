//! The probe: plain sockets of the kernel inside two hosts, and threads of this process that use
//! them.

use std::{
    io::{self, Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::{TcpFigures, UdpFigures, rate};
use crate::{
    real::{LabError, NamespaceNetwork, hurry},
    topology::{ExpectedPath, FirewallPolicy},
};

/// Packets that are sent to learn round trip and loss.
const PACKETS: u32 = 5000;

/// Time between two of them, at least.
const PACKET_INTERVAL: Duration = Duration::from_micros(200);

/// Bytes of such a packet with its IP and UDP headers.
const PROBE_BYTES: u32 = 64;

/// IP and UDP headers.
pub(super) const UDP_HEADERS: usize = 28;

/// Bytes asked and answered over TCP to learn the round trip.
const TCP_PINGS: u32 = 20;

/// How long a probe waits for what may not come, beyond the label's round trip.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

pub(super) struct ProbeResult {
    pub(super) udp: Option<UdpFigures>,
    pub(super) tcp: Option<TcpFigures>,
}

/// Probes from one host to another.
pub(super) fn path(
    network: &NamespaceNetwork,
    from: &str,
    to: &str,
    label: &ExpectedPath,
    wall: Option<&FirewallPolicy>,
) -> Result<ProbeResult, LabError> {
    let address = network.address(to)?;
    let failed = |source| LabError::Failed {
        what: format!("the probe from `{from}` to `{to}` failed"),
        source,
    };
    let near = network
        .within(from, || udp(IpAddr::from([0, 0, 0, 0])))?
        .map_err(failed)?;
    let far = network.within(to, || udp(address))?.map_err(failed)?;
    let back = network.topology().expected(to, from);
    let probe = UdpProbe {
        near,
        far,
        label,
        rate_back: back.and_then(|back| back.rate),
    };
    let udp = probe.run().map_err(failed)?;
    let port = match wall {
        Some(FirewallPolicy::OnlyTcp443) => 443,
        _ => 0,
    };
    let listener = network
        .within(to, || TcpListener::bind((address, port)))?
        .map_err(failed)?;
    let target = listener.local_addr().map_err(failed)?;
    let patience = label.rtt + 6 * ANSWER_TIMEOUT;
    let connect = || network.within(from, || TcpStream::connect_timeout(&target, patience));
    // TCP slows down for loss, and then is held to no rate.
    let lossless = label.loss_out == 0.0 && label.loss_back == 0.0;
    let bounds = [label.rate, probe.rate_back].map(|rate| rate.filter(|_| lossless));
    let tcp = tcp(&listener, connect, bounds)?
        .transpose()
        .map_err(failed)?;
    Ok(ProbeResult { udp, tcp })
}

fn udp(address: IpAddr) -> io::Result<UdpSocket> {
    /// Room for what arrives while the probe's thread waits for its turn.
    const RECEIVE_BUFFER: usize = 4 << 20;
    let socket = UdpSocket::bind((address, 0))?;
    use rustix::net::sockopt;
    if sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER).is_err() {
        sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER)?;
    }
    socket.set_read_timeout(Some(Duration::from_millis(20)))?;
    Ok(socket)
}

struct UdpProbe<'a> {
    near: UdpSocket,
    far: UdpSocket,
    label: &'a ExpectedPath,
    /// Bits a second that the label says for the way back.
    rate_back: Option<u64>,
}

impl UdpProbe<'_> {
    fn run(&self) -> io::Result<Option<UdpFigures>> {
        let far = self.far.local_addr()?;
        let Some(near) = self.meet(far)? else {
            return Ok(None);
        };
        let echoes = self.echoes(far)?;
        let Some((rtt_ms, rtt_min_ms, rtt_p99_ms)) = echoes.quantiles() else {
            return Ok(None);
        };
        let arrived = f64::from(echoes.arrived.max(1));
        let rate = |bound: Option<u64>, from, to, target| {
            let offered = bound.map(|rate| rate::flood(self.label, rate, from, to, target));
            offered.transpose()
        };
        Ok(Some(UdpFigures {
            sent: echoes.sent,
            rtt_ms,
            rtt_min_ms,
            rtt_p99_ms,
            loss_out: 1.0 - f64::from(echoes.arrived) / f64::from(echoes.sent),
            loss_back: 1.0 - echoes.rtts.len() as f64 / arrived,
            rate_out: rate(self.label.rate, &self.near, &self.far, far)?,
            rate_back: rate(self.rate_back, &self.far, &self.near, near)?,
        }))
    }

    /// Learns how the far side sees the near one; `None` where nothing passes.
    fn meet(&self, far: SocketAddr) -> io::Result<Option<SocketAddr>> {
        let mut buffer = [0; 64];
        let until = Instant::now() + self.label.rtt + 2 * ANSWER_TIMEOUT;
        while Instant::now() < until {
            self.near.send_to(b"hello", far)?;
            if let Some((_, from)) = received(self.far.recv_from(&mut buffer))? {
                return Ok(Some(from));
            }
        }
        Ok(None)
    }

    fn pace(&self) -> Duration {
        // A fifth of a slow link at most, so that the probe does not queue behind itself.
        let share =
            |rate: u64| Duration::from_secs_f64(f64::from(PROBE_BYTES * 8 * 5) / rate as f64);
        self.label
            .rate
            .map_or(PACKET_INTERVAL, |rate| PACKET_INTERVAL.max(share(rate)))
    }

    /// Sends numbered packets at a steady pace and has them answered.
    fn echoes(&self, far: SocketAddr) -> io::Result<EchoFigures> {
        let sending = AtomicBool::new(true);
        let origin = Instant::now();
        let pace = self.pace();
        thread::scope(|scope| {
            let answering = scope.spawn(|| self.answer(&sending));
            let listening = scope.spawn(|| self.listen(&sending, origin));
            let sent = self.send(far, origin, pace);
            thread::sleep(self.label.rtt + self.label.jitter + ANSWER_TIMEOUT);
            sending.store(false, Ordering::Release);
            let joined = |_| io::Error::other("a thread of the probe panicked");
            Ok(EchoFigures {
                sent: sent?,
                arrived: answering.join().map_err(joined)??,
                rtts: listening.join().map_err(joined)??,
            })
        })
    }

    fn send(&self, far: SocketAddr, origin: Instant, pace: Duration) -> io::Result<u32> {
        hurry();
        let mut packet = [1; PROBE_BYTES as usize - UDP_HEADERS];
        for number in 0..PACKETS {
            sleep_until(origin + pace * number);
            packet[..4].copy_from_slice(&number.to_be_bytes());
            let at = u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX);
            packet[4..12].copy_from_slice(&at.to_be_bytes());
            self.near.send_to(&packet, far)?;
        }
        Ok(PACKETS)
    }

    /// Answers each packet once and counts different ones.
    fn answer(&self, sending: &AtomicBool) -> io::Result<u32> {
        hurry();
        let mut seen = SeenNumbers::default();
        let mut buffer = [0; 2048];
        while sending.load(Ordering::Acquire) {
            if let Some((length, from)) = received(self.far.recv_from(&mut buffer))?
                && seen.first_time(&buffer[..length])
            {
                self.far.send_to(&buffer[..length], from)?;
            }
        }
        Ok(seen.count)
    }

    /// The round trips of the packets that came back.
    fn listen(&self, sending: &AtomicBool, origin: Instant) -> io::Result<Vec<f64>> {
        hurry();
        let mut seen = SeenNumbers::default();
        let mut rtts = Vec::with_capacity(PACKETS as usize);
        let mut buffer = [0; 2048];
        while sending.load(Ordering::Acquire) {
            let Some((length, _)) = received(self.near.recv_from(&mut buffer))? else {
                continue;
            };
            let now = origin.elapsed();
            let sent = buffer
                .get(4..12)
                .and_then(|b| b.try_into().ok())
                .map(u64::from_be_bytes);
            if let Some(sent) = sent.filter(|_| seen.first_time(&buffer[..length])) {
                rtts.push((now - Duration::from_nanos(sent)).as_secs_f64() * 1000.0);
            }
        }
        Ok(rtts)
    }
}

struct EchoFigures {
    sent: u32,
    arrived: u32,
    rtts: Vec<f64>,
}

impl EchoFigures {
    /// Median, least and 99th percentile.
    fn quantiles(&self) -> Option<(f64, f64, f64)> {
        let mut sorted = self.rtts.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| {
            sorted
                .get(((sorted.len() as f64) * share) as usize)
                .copied()
        };
        Some((at(0.5)?, *sorted.first()?, at(0.99)?))
    }
}

/// Which numbers have been seen, so that copies count once.
#[derive(Default)]
struct SeenNumbers {
    numbers: Vec<bool>,
    count: u32,
}

impl SeenNumbers {
    fn first_time(&mut self, packet: &[u8]) -> bool {
        let number = packet
            .get(..4)
            .and_then(|b| b.try_into().ok())
            .map(u32::from_be_bytes);
        let full = packet.len() == PROBE_BYTES as usize - UDP_HEADERS;
        let Some(number) = number.filter(|n| full && *n < PACKETS) else {
            return false;
        };
        self.numbers.resize(PACKETS as usize, false);
        let seen = std::mem::replace(&mut self.numbers[number as usize], true);
        self.count += u32::from(!seen);
        !seen
    }
}

/// What was received; nothing where the time was up.
pub(super) fn received<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    use io::ErrorKind::{ConnectionRefused, Interrupted, TimedOut, WouldBlock};
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) => match error.kind() {
            WouldBlock | TimedOut | Interrupted | ConnectionRefused => Ok(None),
            _ => Err(error),
        },
    }
}

pub(super) fn sleep_until(at: Instant) {
    let left = at.saturating_duration_since(Instant::now());
    if !left.is_zero() {
        thread::sleep(left);
    }
}

/// Connects, plays ping-pong, and then sends as much as passes, first out and then back.
fn tcp(
    listener: &TcpListener,
    connect: impl Fn() -> Result<io::Result<TcpStream>, LabError>,
    [out, back]: [Option<u64>; 2],
) -> Result<Option<io::Result<TcpFigures>>, LabError> {
    let begun = Instant::now();
    let Ok(near) = connect()? else {
        return Ok(None);
    };
    let connect_ms = begun.elapsed().as_secs_f64() * 1000.0;
    let measure = || {
        let (far, _) = listener.accept()?;
        near.set_nodelay(true)?;
        far.set_nodelay(true)?;
        let rtt_ms = ping_pong(&near, &far)?;
        let rate_out = rate::bulk(&near, &far, out)?;
        let (near, far) = (connect().map_err(io::Error::other)??, listener.accept()?.0);
        let rate_back = rate::bulk(&far, &near, back)?;
        Ok(TcpFigures {
            connect_ms,
            rtt_ms,
            rate_out,
            rate_back,
        })
    };
    Ok(Some(measure()))
}

fn ping_pong(near: &TcpStream, far: &TcpStream) -> io::Result<f64> {
    thread::scope(|scope| {
        let answering = scope.spawn(|| answer_bytes(far));
        let asking = scope.spawn(|| ask_bytes(near));
        let panicked = |_| io::Error::other("a thread of the probe panicked");
        answering.join().map_err(panicked)??;
        asking.join().map_err(panicked)?
    })
}

fn answer_bytes(mut stream: &TcpStream) -> io::Result<()> {
    hurry();
    let mut byte = [0];
    for _ in 0..TCP_PINGS {
        stream.read_exact(&mut byte)?;
        stream.write_all(&byte)?;
    }
    Ok(())
}

/// The median round trip in milliseconds.
fn ask_bytes(mut stream: &TcpStream) -> io::Result<f64> {
    hurry();
    let (mut byte, mut rtts) = ([0], Vec::new());
    for _ in 0..TCP_PINGS {
        let begun = Instant::now();
        stream.write_all(&byte)?;
        stream.read_exact(&mut byte)?;
        rtts.push(begun.elapsed().as_secs_f64() * 1000.0);
    }
    rtts.sort_by(f64::total_cmp);
    Ok(rtts[rtts.len() / 2])
}
