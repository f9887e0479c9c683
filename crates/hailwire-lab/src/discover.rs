//! What kind of NAT stands before a host, found from inside: RFC 5780 in small.
//!
//! A server with two addresses and two ports answers each question with the endpoint that it saw, and
//! from whichever of its four endpoints it was asked to use. Three questions from one socket tell
//! the mapping; an answer from another address or port than was asked tells the filtering; two
//! sockets that send to each other's external endpoint tell the hairpin. It works over any datagrams
//! ([`DatagramSocket`]), and so on the sockets of both tiers.
//!
//! ```text
//! question  "hail-nat?"  which endpoint is to answer, 0 to 3  token
//! answer    "hail-nat!"  address (4)  port (2)                token
//! ```

use std::{future::Future, io, net::SocketAddrV4, time::Duration};

use serde::Serialize;

use crate::nat::EndpointDependence;

/// How often a question is asked that nobody answers: loss must not look like a filter.
const MAX_ATTEMPTS: u8 = 4;

const QUESTION: &[u8] = b"hail-nat?";
const ANSWER: &[u8] = b"hail-nat!";
const GREETING: &[u8] = b"hail-nat, neighbour";

/// A UDP socket of either tier.
pub trait DatagramSocket {
    /// Its address as the host itself sees it.
    fn local(&self) -> io::Result<SocketAddrV4>;

    /// Sends a datagram.
    fn send(&self, payload: &[u8], to: SocketAddrV4)
    -> impl Future<Output = io::Result<()>> + Send;

    /// The next datagram and who sent it. Nothing is lost when the future is dropped.
    fn receive(&self) -> impl Future<Output = io::Result<(Vec<u8>, SocketAddrV4)>> + Send;
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct NatBehaviour {
    /// How far a mapping is kept.
    pub mapping: EndpointDependence,
    /// Who may answer.
    pub filtering: EndpointDependence,
    /// Whether inside endpoints reach each other by external ones.
    pub hairpin: bool,
    /// Whether the external port is the inside one.
    pub preserves_port: bool,
    /// How the first socket appears to the server's first endpoint.
    pub external: SocketAddrV4,
}

/// The four endpoints of a server: address 1 port 1, address 1 port 2, address 2 port 1, address 2
/// port 2.
#[derive(Debug)]
pub struct NatProbeServer<S>(pub [S; 4]);

impl<S: DatagramSocket> NatProbeServer<S> {
    /// Answers questions until dropped.
    ///
    /// # Errors
    ///
    /// When a socket fails.
    pub async fn serve(&self) -> io::Result<()> {
        let [a, b, c, d] = &self.0;
        loop {
            let (payload, from) = tokio::select! {
                received = a.receive() => received?,
                received = b.receive() => received?,
                received = c.receive() => received?,
                received = d.receive() => received?,
            };
            let Some((endpoint, token)) = read_question(&payload) else {
                continue;
            };
            if let Some(socket) = self.0.get(usize::from(endpoint)) {
                socket.send(&answer(from, token), from).await?;
            }
        }
    }
}

/// Finds out what stands before three fresh sockets of one host. `patience` is how long an answer
/// may take.
///
/// # Errors
///
/// `TimedOut` where the server does not answer at all, and what the sockets report.
pub async fn discover<S: DatagramSocket>(
    sockets: &[S; 3],
    server: [SocketAddrV4; 4],
    patience: Duration,
) -> io::Result<NatBehaviour> {
    let [first, second, third] = sockets
        .each_ref()
        .map(|socket| NatProbe { socket, patience });
    let external = first.must_see(server[0], 0).await?;
    let other_port = first.must_see(server[1], 1).await?;
    let other_address = first.must_see(server[2], 2).await?;
    let mapping = match (external == other_port, external == other_address) {
        (true, true) => EndpointDependence::EndpointIndependent,
        (true, false) => EndpointDependence::AddressDependent,
        (false, _) => EndpointDependence::AddressAndPortDependent,
    };
    // Fresh, so that nobody but the first endpoint has been contacted.
    let seen = second.must_see(server[0], 0).await?;
    let filtering = match second.sees(server[0], 3).await? {
        Some(_) => EndpointDependence::EndpointIndependent,
        None => match second.sees(server[0], 1).await? {
            Some(_) => EndpointDependence::AddressDependent,
            None => EndpointDependence::AddressAndPortDependent,
        },
    };
    let neighbour = third.must_see(server[0], 0).await?;
    Ok(NatBehaviour {
        mapping,
        filtering,
        hairpin: second.reaches(seen, &third, neighbour).await?,
        preserves_port: external.port() == first.socket.local()?.port(),
        external,
    })
}

struct NatProbe<'a, S> {
    socket: &'a S,
    patience: Duration,
}

impl<S: DatagramSocket> NatProbe<'_, S> {
    async fn must_see(&self, server: SocketAddrV4, answers: u8) -> io::Result<SocketAddrV4> {
        let seen = self.sees(server, answers).await?;
        seen.ok_or_else(|| io::Error::new(io::ErrorKind::TimedOut, "the server does not answer"))
    }

    /// How an endpoint of the server sees this socket, when endpoint `answers` answers.
    async fn sees(&self, server: SocketAddrV4, answers: u8) -> io::Result<Option<SocketAddrV4>> {
        for attempt in 0..MAX_ATTEMPTS {
            // A token of its own, so that a late answer to another question is not taken for this.
            let token =
                u32::from(answers) << 24 | u32::from(server.port()) << 8 | u32::from(attempt);
            self.socket.send(&question(answers, token), server).await?;
            let answer = |payload: &[u8]| read_answer(payload, token);
            if let Some(seen) = self.wait_for(answer).await? {
                return Ok(Some(seen));
            }
        }
        Ok(None)
    }

    /// Whether another socket of the same host is reached by its external endpoint. Both send, so
    /// that a filter sees traffic out before it judges traffic in.
    async fn reaches(
        &self,
        own: SocketAddrV4,
        other: &Self,
        external: SocketAddrV4,
    ) -> io::Result<bool> {
        for _ in 0..MAX_ATTEMPTS {
            other.socket.send(GREETING, own).await?;
            self.socket.send(GREETING, external).await?;
            let greeted = |payload: &[u8]| (payload == GREETING).then_some(());
            if other.wait_for(greeted).await?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn wait_for<T>(&self, wanted: impl Fn(&[u8]) -> Option<T>) -> io::Result<Option<T>> {
        let found = async {
            loop {
                let (payload, _) = self.socket.receive().await?;
                if let Some(found) = wanted(&payload) {
                    return Ok(found);
                }
            }
        };
        tokio::time::timeout(self.patience, found)
            .await
            .ok()
            .transpose()
    }
}

fn question(answers: u8, token: u32) -> Vec<u8> {
    [QUESTION, &[answers], &token.to_be_bytes()].concat()
}

fn read_question(payload: &[u8]) -> Option<(u8, u32)> {
    let (endpoint, token) = payload.strip_prefix(QUESTION)?.split_first()?;
    Some((*endpoint, u32::from_be_bytes(token.try_into().ok()?)))
}

fn answer(seen: SocketAddrV4, token: u32) -> Vec<u8> {
    let port = seen.port().to_be_bytes();
    [ANSWER, &seen.ip().octets(), &port, &token.to_be_bytes()].concat()
}

fn read_answer(payload: &[u8], token: u32) -> Option<SocketAddrV4> {
    let rest = payload.strip_prefix(ANSWER)?;
    let (address, rest) = rest.split_first_chunk::<4>()?;
    let (port, rest) = rest.split_first_chunk::<2>()?;
    let port = u16::from_be_bytes(*port);
    (rest == token.to_be_bytes()).then_some(SocketAddrV4::new((*address).into(), port))
}

impl DatagramSocket for crate::virtual_net::VirtualSocket {
    fn local(&self) -> io::Result<SocketAddrV4> {
        Ok(Self::local(self))
    }

    async fn send(&self, payload: &[u8], to: SocketAddrV4) -> io::Result<()> {
        self.send_to(payload, to);
        Ok(())
    }

    async fn receive(&self) -> io::Result<(Vec<u8>, SocketAddrV4)> {
        let (payload, from) = self.recv_from().await;
        Ok((payload.to_vec(), from))
    }
}

impl DatagramSocket for tokio::net::UdpSocket {
    fn local(&self) -> io::Result<SocketAddrV4> {
        v4(self.local_addr()?)
    }

    async fn send(&self, payload: &[u8], to: SocketAddrV4) -> io::Result<()> {
        self.send_to(payload, to).await.map(drop)
    }

    async fn receive(&self) -> io::Result<(Vec<u8>, SocketAddrV4)> {
        let mut buffer = [0; 64];
        let (length, from) = self.recv_from(&mut buffer).await?;
        Ok((buffer[..length].to_vec(), v4(from)?))
    }
}

fn v4(address: std::net::SocketAddr) -> io::Result<SocketAddrV4> {
    match address {
        std::net::SocketAddr::V4(address) => Ok(address),
        std::net::SocketAddr::V6(_) => Err(io::Error::other("the lab is IPv4 only")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_and_answers_read_back() {
        let seen: SocketAddrV4 = "198.18.0.1:5000".parse().unwrap();
        assert_eq!(read_question(&question(3, 77)), Some((3, 77)));
        assert_eq!(read_answer(&answer(seen, 77), 77), Some(seen));
        assert_eq!(
            read_answer(&answer(seen, 77), 78),
            None,
            "another question's"
        );
        assert_eq!(read_question(b"hail-nat?"), None);
        assert_eq!(read_answer(b"hail-nat!123", 77), None);
    }
}
