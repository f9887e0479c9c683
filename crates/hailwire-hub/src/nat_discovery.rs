//! STUN at two UDP ports, by which anybody learns what its NAT does (RFC 5780): [`hailwire_wire::stun`] has the bytes.
//!
//! It needs no membership and keeps nothing of who asks. An answer is at most three times as long as its request, as QUIC's to an
//! address that has not been proved (RFC 9000, 8), and each network gets so many a minute: a forged sender gains nothing. One may ask that
//! another port of its address be answered, never another address; that counts as the others do.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use hailwire_wire::stun::{MAX_MESSAGE, StunAnswer, StunRequest};
use tokio::{
    net::UdpSocket,
    sync::{Mutex, watch},
    time::{Instant, sleep},
};

use crate::throttle::{KeyedThrottle, client_network};

/// Answers that one network gets in a minute: a diagnosis takes about twenty, and of a mapping's lifetime twelve more.
const ANSWERS_PER_MINUTE: u32 = 600;

/// Most bytes of an answer for each byte of its request.
const MAX_AMPLIFICATION: usize = 3;

/// Pause after a socket failed.
const ERROR_PAUSE: Duration = Duration::from_millis(50);

/// The two ports.
#[derive(Debug)]
pub(crate) struct NatDiscovery {
    sockets: [Arc<UdpSocket>; 2],
    ports: [u16; 2],
}

impl NatDiscovery {
    /// Binds the two ports after that of address discovery on its IP address, or where they are taken any two.
    pub(crate) async fn bind(discovery: SocketAddr, chosen: bool) -> io::Result<Self> {
        let next = |by: u16| discovery.port().checked_add(by).filter(|_| chosen);
        let mut sockets = Vec::new();
        for port in [next(1), next(2)] {
            let wanted = SocketAddr::new(discovery.ip(), port.unwrap_or(0));
            let any = SocketAddr::new(discovery.ip(), 0);
            let bound = match UdpSocket::bind(wanted).await {
                Err(error) if port.is_some() => {
                    tracing::warn!(%wanted, %error, "STUN is at another port");
                    UdpSocket::bind(any).await
                }
                bound => bound,
            };
            sockets.push(Arc::new(bound?));
        }
        let [first, second]: [Arc<UdpSocket>; 2] = sockets
            .try_into()
            .map_err(|_| io::Error::other("there are two ports"))?;
        let ports = [first.local_addr()?.port(), second.local_addr()?.port()];
        Ok(Self {
            sockets: [first, second],
            ports,
        })
    }

    pub(crate) fn ports(&self) -> [u16; 2] {
        self.ports
    }

    /// Answers until the hub shuts down.
    pub(crate) async fn serve(self, mut stop: watch::Receiver<bool>) {
        let throttle = Mutex::new(KeyedThrottle::new(ANSWERS_PER_MINUTE));
        let serve = |own: usize| {
            let (sockets, ports, throttle) = (&self.sockets, self.ports, &throttle);
            async move {
                let mut buffer = [0; MAX_MESSAGE + 1];
                loop {
                    let Ok((length, from)) = sockets[own].recv_from(&mut buffer).await else {
                        // An error of one packet, such as an unreachable port, is not the end of the socket.
                        sleep(ERROR_PAUSE).await;
                        continue;
                    };
                    let Some(request) = StunRequest::parse(&buffer[..length]) else {
                        continue;
                    };
                    let network = client_network(from.ip());
                    if !throttle
                        .lock()
                        .await
                        .admit(network, Instant::now().into_std())
                    {
                        continue;
                    }
                    let answer = answer(&request, from, ports[1 - own], length);
                    let by = if request.change_port { 1 - own } else { own };
                    // Whoever asked asks again.
                    let _ = sockets[by]
                        .send_to(&answer, recipient(&request, from))
                        .await;
                }
            }
        };
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => {}
            () = async { tokio::join!(serve(0), serve(1)); } => {}
        }
    }
}

/// Who is answered: whoever asked, or another port there.
fn recipient(request: &StunRequest, from: SocketAddr) -> SocketAddr {
    let mut to = from;
    to.set_port(request.response_port.unwrap_or(from.port()));
    to
}

/// What is answered to a request of so many bytes. The hub does not know by which address it is reached from there, only the port.
fn answer(request: &StunRequest, from: SocketAddr, other_port: u16, length: usize) -> Vec<u8> {
    let from = SocketAddr::new(from.ip().to_canonical(), from.port());
    let mut unknown = from;
    unknown.set_ip(match from {
        SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    });
    unknown.set_port(other_port);
    let mut answer = StunAnswer {
        transaction: request.transaction,
        mapped: from,
        other: Some(unknown),
    };
    let mut message = answer.encode();
    if message.len() > length * MAX_AMPLIFICATION {
        answer.other = None;
        message = answer.encode();
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_never_more_than_three_times_its_request() {
        for response_port in [None, Some(41_641)] {
            let request = StunRequest {
                response_port,
                ..StunRequest::new([7; 12])
            };
            for from in ["192.0.2.1:7", "[2001:db8::1]:7", "[::ffff:192.0.2.1]:7"] {
                let from: SocketAddr = from.parse().unwrap();
                let length = request.encode(0).len();
                let message = answer(&request, from, 7445, length);
                assert!(message.len() <= MAX_AMPLIFICATION * length, "{from}");
                let mapped = StunAnswer::parse(&message).unwrap().mapped;
                assert_eq!(mapped.ip(), from.ip().to_canonical());
                let to = recipient(&request, from);
                assert_eq!(
                    (to.ip(), to.port()),
                    (from.ip(), response_port.unwrap_or(7))
                );
            }
        }
    }

    /// A hub on loopback, and one that floods it from one socket for another port.
    #[tokio::test]
    async fn another_port_gets_no_more_answers_than_its_network_may_have() {
        let discovery = NatDiscovery::bind("127.0.0.1:0".parse().unwrap(), false);
        let discovery = discovery.await.unwrap();
        let hub = SocketAddr::from(([127, 0, 0, 1], discovery.ports()[0]));
        let (stop, stopped) = watch::channel(false);
        let serving = tokio::spawn(discovery.serve(stopped));
        let bind = || UdpSocket::bind("127.0.0.1:0");
        let (asking, named) = (bind().await.unwrap(), bind().await.unwrap());
        let request = StunRequest {
            response_port: Some(named.local_addr().unwrap().port()),
            ..StunRequest::new([7; 12])
        };
        let mut buffer = [0; MAX_MESSAGE];
        for _ in 0..ANSWERS_PER_MINUTE {
            asking.send_to(&request.encode(0), hub).await.unwrap();
            let (length, by) = named.recv_from(&mut buffer).await.unwrap();
            let answer = StunAnswer::parse(&buffer[..length]).unwrap();
            assert_eq!((by, answer.mapped), (hub, asking.local_addr().unwrap()));
        }
        // Those that come now find nothing left but what the time since has given back.
        for _ in 0..ANSWERS_PER_MINUTE {
            asking.send_to(&request.encode(0), hub).await.unwrap();
        }
        stop.send_replace(true);
        serving.await.unwrap();
        let mut late = 0;
        while named.try_recv_from(&mut buffer).is_ok() {
            late += 1;
        }
        assert!(late < ANSWERS_PER_MINUTE / 2, "{late}");
        assert!(asking.try_recv_from(&mut buffer).is_err());
    }
}
