//! A UDP port that a test can give back and have again.
//!
//! A port that the system chose may be given to any other program as soon as nobody holds it. So this one lies outside
//! the range from which the system chooses, where only those get a port who ask for it by its number. TCP's port of
//! the same number is held meanwhile, so that no other test that looks for one here takes the same.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    ops::RangeInclusive,
};

/// A port on 127.0.0.1, for as long as this lives.
pub(crate) struct Reserved {
    pub(crate) address: SocketAddr,
    _claim: TcpListener,
}

/// One that is free; `None` where the system chooses from all there are.
pub(crate) fn reserve() -> Option<Reserved> {
    let chosen_by_the_system = range();
    let free = |port: &u16| !chosen_by_the_system.contains(port);
    (10_000..=u16::MAX).filter(free).find_map(|port| {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let _claim = TcpListener::bind(address).ok()?;
        UdpSocket::bind(address).ok()?;
        Some(Reserved { address, _claim })
    })
}

fn range() -> RangeInclusive<u16> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let text = text.unwrap_or_default();
    let mut ends = text.split_whitespace().map_while(|end| end.parse().ok());
    match (ends.next(), ends.next()) {
        (Some(first), Some(last)) => first..=last,
        // Elsewhere it is that of RFC 6335, or begins at Linux's.
        _ => 32_768..=u16::MAX,
    }
}
