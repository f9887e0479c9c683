//! The buffers of this node's UDP sockets.
//!
//! The engine asks the kernel for 7 MiB each and lets nobody choose. Its sockets are ours all the same: this
//! process finds them among its descriptors by their address, has the kernel make it a second handle to each
//! (`pidfd_getfd(2)` on itself, Linux 5.6), sets the options there and lets go of the handle. What the kernel
//! granted is read in the same way, since it silently gives less than `net.core.rmem_max` says.
//!
//! The engine replaces a socket when the network changes; the new one is set when the node's addresses
//! change, as they then do. Where the system forbids it (another system, a sandbox), everything stays as the
//! engine made it, and that is said.

use std::{
    io,
    net::SocketAddr,
    os::fd::{OwnedFd, RawFd},
};

use rustix::{
    net::{SocketType, getsockname, sockopt},
    process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open},
};

use super::NodeInner;
use crate::config::{ByteSize, InForce};

/// What the engine asks for.
const ENGINE: ByteSize = ByteSize::mib(7);

/// One socket, and the bytes that the kernel grants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GrantedBuffers {
    address: SocketAddr,
    receive: usize,
    send: usize,
}

/// Asks the kernel for buffers of the configured size, where the engine has asked for others.
pub(super) fn fit_sockets(node: &NodeInner) {
    let size = node.config().quic.socket_buffer;
    if size == ENGINE {
        return;
    }
    match fit(&node.sockets.endpoint.bound_sockets(), Some(size)) {
        Ok(sockets) => tracing::debug!(?sockets, "socket buffers"),
        Err(error) => tracing::warn!(%error, "the socket buffers stay as the engine made them"),
    }
}

/// What the kernel granted, for `hail config show --effective`.
pub(super) fn granted_buffers(node: &NodeInner) -> InForce {
    let asked = node.config().quic.socket_buffer;
    let (value, why) = match fit(&node.sockets.endpoint.bound_sockets(), None) {
        Ok(sockets) => say(asked, &sockets),
        Err(error) => (
            "unknown".to_owned(),
            format!("this system does not let a process look at its own sockets: {error}"),
        ),
    };
    InForce {
        setting: "quic.socket-buffer.granted".to_owned(),
        value,
        why,
    }
}

/// What the kernel granted of what was asked for, in bytes, where that is less.
pub(super) fn short_buffers(node: &NodeInner) -> Option<(usize, usize)> {
    let asked = node.config().quic.socket_buffer.bytes_u32() as usize;
    let sockets = fit(&node.sockets.endpoint.bound_sockets(), None).ok()?;
    let least = sockets.iter().map(|socket| socket.receive.min(socket.send));
    let least = least.min()?;
    (least < asked).then_some((least, asked))
}

/// What was granted, and what limits it: pure.
fn say(asked: ByteSize, sockets: &[GrantedBuffers]) -> (String, String) {
    let Some(least) = sockets
        .iter()
        .min_by_key(|socket| socket.receive.min(socket.send))
    else {
        return ("unknown".to_owned(), "no socket was found".to_owned());
    };
    let GrantedBuffers { receive, send, .. } = *least;
    let value = format!("{receive} bytes in, {send} out");
    let asked = asked.bytes() as usize;
    let short: Vec<String> = [("rmem_max", receive), ("wmem_max", send)]
        .into_iter()
        .filter(|(_, granted)| *granted < asked)
        .map(|(name, _)| format!("net.core.{name}"))
        .collect();
    let why = match short.is_empty() {
        true => "kernel: as asked for".to_owned(),
        false => format!(
            "kernel: allows no more; raise {} to {asked} (sysctl)",
            short.join(" and ")
        ),
    };
    (value, why)
}

/// Goes through the sockets that are bound to `addresses`; with a size, asks for it.
fn fit(addresses: &[SocketAddr], size: Option<ByteSize>) -> io::Result<Vec<GrantedBuffers>> {
    let me = pidfd_open(getpid(), PidfdFlags::empty())?;
    let mut sockets = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")?.flatten() {
        let number = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<RawFd>().ok());
        let (Some(number), Ok(target)) = (number, std::fs::read_link(entry.path())) else {
            continue;
        };
        if !target
            .as_os_str()
            .as_encoded_bytes()
            .starts_with(b"socket:")
        {
            continue;
        }
        // It may be another thing by now, so what it is gets looked at on the handle.
        let handle = match pidfd_getfd(&me, number, PidfdGetfdFlags::empty()) {
            Ok(handle) => handle,
            Err(rustix::io::Errno::BADF) => continue,
            Err(error) => return Err(error.into()),
        };
        let Some(address) = udp_address(&handle).filter(|address| addresses.contains(address))
        else {
            continue;
        };
        if let Some(size) = size {
            sockopt::set_socket_recv_buffer_size(&handle, size.bytes() as usize)?;
            sockopt::set_socket_send_buffer_size(&handle, size.bytes() as usize)?;
        }
        // The kernel doubles what it is asked for, to pay for its own bookkeeping (socket(7)).
        sockets.push(GrantedBuffers {
            address,
            receive: sockopt::socket_recv_buffer_size(&handle)? / 2,
            send: sockopt::socket_send_buffer_size(&handle)? / 2,
        });
    }
    Ok(sockets)
}

fn udp_address(handle: &OwnedFd) -> Option<SocketAddr> {
    let udp = sockopt::socket_type(handle).ok()? == SocketType::DGRAM;
    let address = getsockname(handle).ok().filter(|_| udp)?;
    SocketAddr::try_from(address).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_found_by_their_address_and_set() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let other = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let small = "64KiB".parse().unwrap();
        let before = sockopt::socket_recv_buffer_size(&other).unwrap();
        let sockets = fit(&[address], Some(small)).unwrap();
        let granted = GrantedBuffers {
            address,
            receive: 64 << 10,
            send: 64 << 10,
        };
        assert_eq!(sockets, [granted]);
        assert_eq!(
            sockopt::socket_recv_buffer_size(&socket).unwrap(),
            128 << 10
        );
        assert_eq!(sockopt::socket_recv_buffer_size(&other).unwrap(), before);
        assert_eq!(fit(&[address], None).unwrap(), [granted]);
    }

    #[test]
    fn less_than_was_asked_for_says_which_limit_to_raise() {
        let socket = |receive, send| GrantedBuffers {
            address: "127.0.0.1:1".parse().unwrap(),
            receive,
            send,
        };
        let (value, why) = say(
            ByteSize::mib(7),
            &[socket(7 << 20, 7 << 20), socket(212_992, 7 << 20)],
        );
        assert_eq!(value, "212992 bytes in, 7340032 out");
        assert_eq!(
            why,
            "kernel: allows no more; raise net.core.rmem_max to 7340032 (sysctl)"
        );
        let (_, why) = say(ByteSize::mib(1), &[socket(1 << 20, 2 << 20)]);
        assert_eq!(why, "kernel: as asked for");
    }
}
