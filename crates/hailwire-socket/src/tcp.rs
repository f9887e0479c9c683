//! TCP listeners, of hubs and of nodes, whose connections fit through links that are narrower than they say.
//!
//! A tunnel or an uplink may carry 1,280 bytes, drop what is larger, and tell nobody (RFC 2923, section 2.1). Segments of the
//! usual size then never arrive, and neither end learns why. A listener that announces a smaller segment size
//! bounds both directions: the other side sends no larger ones (RFC 9293, section 3.7.1), and the kernel sends
//! none itself.

use std::{io, net::SocketAddr};

use socket2::SockRef;
use tokio::net::{TcpListener, TcpSocket};

/// Bytes of a segment, TCP options included: what a packet of IPv6 holds of the 1,280 bytes that every link of
/// IPv6 carries (RFC 8200, section 5), without the headers of IPv6 and TCP.
pub const SEGMENT_BYTES: u32 = 1280 - 40 - 20;

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// Listens at an address; port 0 lets the system choose one.
///
/// # Errors
///
/// The system refuses the address.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // As tokio's own listeners: a port whose last connections are still closing can be had again.
    socket.set_reuseaddr(true)?;
    SockRef::from(&socket).set_tcp_mss(SEGMENT_BYTES)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn neither_end_of_a_connection_sends_segments_that_a_narrow_link_drops() {
        for loopback in ["127.0.0.1:0", "[::1]:0"] {
            let listener = match bind(loopback.parse().unwrap()) {
                Ok(listener) => listener,
                // A machine without IPv6.
                Err(error) if loopback.starts_with('[') => {
                    assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            let at = listener.local_addr().unwrap();
            let (near, far) = tokio::join!(TcpStream::connect(at), listener.accept());
            for end in [near.unwrap(), far.unwrap().0] {
                let bytes = SockRef::from(&end).tcp_mss().unwrap();
                assert!(bytes <= SEGMENT_BYTES, "{loopback}: {bytes}");
            }
        }
    }
}
