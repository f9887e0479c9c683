//! How much passes: a flood of UDP that offers more than the label says, and one TCP connection.

use std::{
    io::{self, IoSliceMut, Read as _, Write as _},
    net::{SocketAddr, TcpStream, UdpSocket},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use noq::udp::{RecvMeta, Transmit, UdpSocketState};

use super::probe::{ANSWER_TIMEOUT, UDP_HEADERS, received, sleep_until};
use crate::{real::hurry, topology::ExpectedPath};

/// Payload of a packet of the flood.
const FLOOD_PAYLOAD: usize = 1200;

/// Packets that are handed to the kernel at once for each of these bits a second: without batches
/// the probe would be slower than the line.
const BATCH_RATE: u64 = 50_000_000;
const MAX_BATCH: u64 = 16;

/// How long the flood lasts.
const FLOOD_DURATION: Duration = Duration::from_millis(1500);

/// How long the rate is measured over TCP, where a label bounds it and where there is nothing to hold it to.
const BULK_DURATION: Duration = Duration::from_secs(4);
const UNBOUND_BULK_DURATION: Duration = Duration::from_millis(1500);

/// How often, and over how many samples.
const BULK_SAMPLE: Duration = Duration::from_millis(100);
const BULK_WINDOW: usize = 6;

/// Offers a quarter more than the label says and tells how many bits of IP packets a second pass.
pub(super) fn flood(
    label: &ExpectedPath,
    rate: u64,
    from: &UdpSocket,
    to: &UdpSocket,
    target: SocketAddr,
) -> io::Result<f64> {
    let sender = batching(from)?;
    let most = sender.max_gso_segments().get();
    let batch = usize::try_from((rate / BATCH_RATE).clamp(1, MAX_BATCH))
        .unwrap_or(1)
        .min(most);
    let payload = vec![2; FLOOD_PAYLOAD * batch];
    let transmit = Transmit {
        destination: target,
        ecn: None,
        contents: &payload,
        segment_size: (batch > 1).then_some(FLOOD_PAYLOAD),
        src_ip: None,
    };
    let bits = ((FLOOD_PAYLOAD + UDP_HEADERS) * batch * 8) as f64;
    let pace = Duration::from_secs_f64(bits / (rate.max(1) as f64 * 1.25));
    let sending = AtomicBool::new(true);
    thread::scope(|scope| {
        let counting = scope.spawn(|| counted(to, &sending));
        let start = Instant::now();
        let mut number = 0;
        while start.elapsed() < FLOOD_DURATION {
            sleep_until(start + pace * number);
            // A full queue of our own device is the link's queue to us.
            let _ = sender.try_send(from.into(), &transmit);
            number += 1;
        }
        thread::sleep(label.rtt + ANSWER_TIMEOUT);
        sending.store(false, Ordering::Release);
        let counted = counting.join();
        counted.map_err(|_| io::Error::other("a thread of the probe panicked"))?
    })
}

/// A socket that takes and gives many packets at once, and waits as long as it did before.
fn batching(socket: &UdpSocket) -> io::Result<UdpSocketState> {
    let state = UdpSocketState::new(socket.into())?;
    socket.set_nonblocking(false)?;
    Ok(state)
}

/// Bits of IP packets a second from the first of the flood to the last.
fn counted(socket: &UdpSocket, sending: &AtomicBool) -> io::Result<f64> {
    hurry();
    let receiver = batching(socket)?;
    let mut buffer = vec![0; 1 << 16];
    let (mut first, mut last, mut bytes) = (None, Instant::now(), 0);
    while sending.load(Ordering::Acquire) {
        let mut meta = [RecvMeta::default()];
        let mut buffers = [IoSliceMut::new(&mut buffer)];
        let [RecvMeta { len, stride, .. }] =
            match received(receiver.recv(socket.into(), &mut buffers, &mut meta))? {
                Some(_) => meta,
                None => continue,
            };
        // What the other way round is still under way is smaller.
        if stride < FLOOD_PAYLOAD {
            continue;
        }
        last = Instant::now();
        match first {
            None => first = Some(last),
            Some(_) => bytes += len + len.div_ceil(stride) * UDP_HEADERS,
        }
    }
    let time = first.map_or(Duration::ZERO, |first| last - first);
    Ok(bytes as f64 * 8.0 / time.as_secs_f64().max(1e-9))
}

/// Bits of IP packets a second over one connection: the third quartile of what its half seconds
/// carried. The lower ones are the sender's search for the rate, which is its own affair; the highest
/// may hold what had waited behind a lost packet.
pub(super) fn bulk(from: &TcpStream, to: &TcpStream, bound: Option<u64>) -> io::Result<f64> {
    let lasts = bound.map_or(UNBOUND_BULK_DURATION, |_| BULK_DURATION);
    /// Payload of a full packet with timestamps, and the packet.
    const PACKET_OVERHEAD: f64 = 1500.0 / 1448.0;
    let (read, stopped) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut from, block) = (from, [3; 65536]);
            while !stopped.load(Ordering::Acquire) {
                if from.write(&block).is_err() {
                    break;
                }
            }
        });
        scope.spawn(|| {
            let (mut to, mut block) = (to, vec![0; 1 << 18]);
            while let Ok(length @ 1..) = to.read(&mut block) {
                read.fetch_add(length as u64, Ordering::Relaxed);
            }
        });
        let begun = Instant::now();
        let mut samples = vec![(begun, 0)];
        while begun.elapsed() < lasts {
            thread::sleep(BULK_SAMPLE);
            samples.push((Instant::now(), read.load(Ordering::Relaxed)));
        }
        stopped.store(true, Ordering::Release);
        // Wakes both, whatever they wait for.
        from.shutdown(std::net::Shutdown::Both)?;
        to.shutdown(std::net::Shutdown::Both)?;
        let rate = |window: &[(Instant, u64)]| match window {
            [(begin, before), .., (end, after)] => {
                (after - before) as f64 * 8.0 * PACKET_OVERHEAD / (*end - *begin).as_secs_f64()
            }
            _ => 0.0,
        };
        let mut rates: Vec<f64> = samples.windows(BULK_WINDOW).map(rate).collect();
        rates.sort_by(f64::total_cmp);
        Ok(rates.get(rates.len() * 3 / 4).copied().unwrap_or(0.0))
    })
}
