//! What UDP meets on the way to a hub and back, by STUN (RFC 8489, RFC 5780): sockets of the probe's own, so that the node's are not
//! disturbed. A NAT treats them alike.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use hailwire_core::diagnosis::{MappingLife, NatFacts, ProbeOutcome, lifetime_steps};
use hailwire_wire::stun::{MAX_MESSAGE, StunAnswer, StunRequest, TransactionId};
use tokio::{
    net::UdpSocket,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::key::random;

/// The longest UDP payload that is tried: what QUIC may send by default.
pub(super) const LONGEST: u16 = 1452;

/// Those that are tried, in multiples of four.
const PAYLOADS: [u16; 7] = [LONGEST, 1392, 1352, 1252, 1200, 1000, 548];

/// How often a request is sent, and how long the answer to one is waited for: together longer than the round trips that there are.
const TRIES: u32 = 3;
const TRY_FOR: Duration = Duration::from_millis(400);

/// Pause between the two packets of a hairpin.
const HAIRPIN_PAUSE: Duration = Duration::from_millis(50);

/// Asks the hubs' two ports over IPv4: whether UDP comes back, the NAT, and the longest payload that comes through.
pub(super) async fn probe_ipv4(
    hubs: &[[SocketAddr; 2]],
    own: &[IpAddr],
) -> (ProbeOutcome, Option<NatFacts>, Option<u16>) {
    if hubs.is_empty() {
        return (ProbeOutcome::NotTried, None, None);
    }
    for hub in hubs {
        // Another hub is at another address, which shows a NAT that looks at no more than that.
        let other = hubs.iter().find(|other| other[0].ip() != hub[0].ip());
        if let Ok(Some(nat)) = nat(*hub, other.map(|other| other[0]), own).await {
            let payload = longest_payload(hub[0]).await;
            return (ProbeOutcome::Answered, Some(nat), payload);
        }
    }
    (ProbeOutcome::Silent, None, None)
}

/// Whether UDP over IPv6 comes back from any of them.
pub(super) async fn probe_ipv6(hubs: &[[SocketAddr; 2]]) -> ProbeOutcome {
    if hubs.is_empty() {
        return ProbeOutcome::NotTried;
    }
    for hub in hubs {
        let Ok(socket) = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).await else {
            continue;
        };
        if ask(&socket, hub[0], false).await.is_some() {
            return ProbeOutcome::Answered;
        }
    }
    ProbeOutcome::Silent
}

async fn nat(
    [first, second]: [SocketAddr; 2],
    other_hub: Option<SocketAddr>,
    own: &[IpAddr],
) -> io::Result<Option<NatFacts>> {
    let bind = || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0));
    // One asks both ports. The other never sends to the second, from which it is answered.
    let (mapping, filtering) = (bind().await?, bind().await?);
    let Some(seen) = ask(&mapping, first, false).await else {
        return Ok(None);
    };
    let again = async {
        let of_port = ask(&mapping, second, false).await;
        match (of_port, other_hub) {
            (Some(same), Some(other)) if same == seen => {
                ask(&mapping, other, false).await.or(of_port)
            }
            _ => of_port,
        }
    };
    let from_other_port = async {
        let known = ask(&filtering, first, false).await?;
        let came_in = ask(&filtering, first, true).await.is_some();
        Some((known, came_in))
    };
    let (again, filter) = tokio::join!(again, from_other_port);
    let hairpin = match filter {
        Some((other, _)) => hairpins(&mapping, seen, &filtering, other).await,
        None => false,
    };
    Ok(Some(NatFacts {
        local_port: mapping.local_addr()?.port(),
        first: seen,
        second: again,
        other_port_came_in: filter.map(|(_, came_in)| came_in),
        hairpin,
        is_own: super::is_own(seen, own),
    }))
}

/// Asks until an answer comes. Where the request was seen to come from.
async fn ask(socket: &UdpSocket, hub: SocketAddr, change_port: bool) -> Option<SocketAddr> {
    let request = StunRequest {
        change_port,
        ..StunRequest::new(transaction())
    };
    for _ in 0..TRIES {
        // What cannot be sent now may be a moment later.
        let _ = socket.send_to(&request.encode(0), hub).await;
        if let Ok(seen) = timeout(TRY_FOR, answered(socket, request.transaction)).await {
            return Some(seen);
        }
    }
    None
}

async fn answered(socket: &UdpSocket, transaction: TransactionId) -> SocketAddr {
    let mut buffer = [0; MAX_MESSAGE];
    loop {
        let Ok((length, _)) = socket.recv_from(&mut buffer).await else {
            sleep(HAIRPIN_PAUSE).await;
            continue;
        };
        match StunAnswer::parse(&buffer[..length]) {
            Some(answer) if answer.transaction == transaction => return answer.mapped,
            _ => {}
        }
    }
}

/// Whether a packet from one socket to the other's external address arrives.
async fn hairpins(
    one: &UdpSocket,
    one_outside: SocketAddr,
    other: &UdpSocket,
    other_outside: SocketAddr,
) -> bool {
    let request = StunRequest::new(transaction());
    let message = request.encode(0);
    let arrives = async {
        let mut buffer = [0; MAX_MESSAGE];
        loop {
            if let Ok((length, _)) = one.recv_from(&mut buffer).await
                && StunRequest::parse(&buffer[..length]) == Some(request)
            {
                return;
            }
        }
    };
    let send = async {
        // The first one opens the way for the second, where the NAT filters.
        let _ = one.send_to(&[0; 4], other_outside).await;
        for _ in 0..TRIES {
            sleep(HAIRPIN_PAUSE).await;
            let _ = other.send_to(&message, one_outside).await;
        }
        sleep(TRY_FOR).await;
    };
    tokio::select! {
        () = arrives => true,
        () = send => false,
    }
}

/// How long a mapping is kept that nobody uses, by some that are left alone for a while, none longer than `longest`.
pub(super) async fn mapping_life(hubs: &[[SocketAddr; 2]], longest: Duration) -> MappingLife {
    for [hub, _] in hubs {
        // One that is new is there; where it does not seem so, the others would tell nothing.
        if survives(*hub, Duration::ZERO).await != Some(true) {
            continue;
        }
        let mut left_alone = JoinSet::new();
        for silence in lifetime_steps(longest) {
            let hub = *hub;
            left_alone.spawn(async move { Some((silence, survives(hub, silence).await?)) });
        }
        let steps: Vec<_> = left_alone.join_all().await.into_iter().flatten().collect();
        return MappingLife::of(&steps);
    }
    MappingLife::Unknown
}

/// Whether a mapping is there after so long a silence. It is a second socket that asks, and the first one that is to be answered:
/// by asking again, the first would make a mapping that looks the same (RFC 5780, 4.6).
async fn survives(hub: SocketAddr, silence: Duration) -> Option<bool> {
    let bind = || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0));
    let (silent, asking) = (bind().await.ok()?, bind().await.ok()?);
    let seen = ask(&silent, hub, false).await?;
    sleep(silence).await;
    let request = StunRequest {
        response_port: Some(seen.port()),
        ..StunRequest::new(transaction())
    };
    for _ in 0..TRIES {
        let _ = asking.send_to(&request.encode(0), hub).await;
        let answer = answered(&silent, request.transaction);
        if timeout(TRY_FOR, answer).await.is_ok() {
            return Some(true);
        }
    }
    Some(false)
}

/// The longest request that is answered.
async fn longest_payload(hub: SocketAddr) -> Option<u16> {
    let mut tried = JoinSet::new();
    for payload in PAYLOADS {
        tried.spawn(async move {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await.ok()?;
            let request = StunRequest::new(transaction());
            let message = request.encode(usize::from(payload));
            whole(&socket);
            // Once, since elsewhere what the system has learnt to be too long would go in pieces the next time.
            socket.send_to(&message, hub).await.ok()?;
            let answer = answered(&socket, request.transaction);
            timeout(TRY_FOR * 2, answer).await.ok().map(|_| payload)
        });
    }
    tried.join_all().await.into_iter().flatten().max()
}

/// Packets of this socket go as they are or not at all, whatever the system has learnt of the way.
fn whole(socket: &UdpSocket) {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::net::sockopt::set_ip_mtu_discover(
        socket,
        rustix::net::sockopt::Ipv4PathMtuDiscovery::PROBE,
    ) {
        tracing::debug!(%error, "long probes may go in pieces");
    }
    #[cfg(not(target_os = "linux"))]
    let _ = socket;
}

fn transaction() -> TransactionId {
    let mut transaction = TransactionId::default();
    random(&mut transaction);
    transaction
}
