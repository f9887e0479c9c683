//! A UDP socket in memory, for tests and for the QUIC engine.

use std::{
    fmt,
    future::poll_fn,
    io::{self, IoSliceMut},
    net::{SocketAddr, SocketAddrV4},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use noq::udp::{RecvMeta, Transmit};

use super::SharedNetwork;
use crate::fabric::FabricPort;

/// A UDP socket of a host. Dropping it frees its port.
///
/// It never blocks a sender: what the links do not carry is dropped, as by a network.
#[derive(Clone)]
pub struct VirtualSocket(Arc<BoundSocket>);

struct BoundSocket {
    shared: Arc<SharedNetwork>,
    port: FabricPort,
    local: SocketAddrV4,
}

impl Drop for BoundSocket {
    fn drop(&mut self) {
        self.shared.lock().unread.remove(&self.local);
    }
}

impl fmt::Debug for VirtualSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Socket").field(&self.0.local).finish()
    }
}

impl VirtualSocket {
    pub(super) fn new(shared: Arc<SharedNetwork>, port: FabricPort, local: SocketAddrV4) -> Self {
        Self(Arc::new(BoundSocket {
            shared,
            port,
            local,
        }))
    }

    /// Its address as the host itself sees it.
    #[must_use]
    pub fn local(&self) -> SocketAddrV4 {
        self.0.local
    }

    /// Sends a datagram.
    pub fn send_to(&self, payload: &[u8], to: SocketAddrV4) {
        self.0.shared.send(self.0.port, self.0.local, to, payload);
    }

    /// The next datagram and who sent it.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn recv_from(&self) -> (Bytes, SocketAddrV4) {
        poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_next(&self, context: &Context<'_>) -> Poll<(Bytes, SocketAddrV4)> {
        let mut state = self.0.shared.lock();
        let unread = state.unread.entry(self.0.local).or_default();
        if let Some(datagram) = unread.datagrams.pop_front() {
            return Poll::Ready(datagram);
        }
        let waker = context.waker();
        if !unread.readers.iter().any(|known| known.will_wake(waker)) {
            unread.readers.push(waker.clone());
        }
        Poll::Pending
    }
}

impl noq::AsyncUdpSocket for VirtualSocket {
    fn create_sender(&self) -> Pin<Box<dyn noq::UdpSender>> {
        Box::pin(self.clone())
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let (Some(buffer), Some(meta)) = (bufs.first_mut(), meta.first_mut()) else {
            return Poll::Ready(Ok(0));
        };
        let (datagram, from) = ready!(self.poll_next(cx));
        // A datagram that does not fit is cut, as by a kernel.
        let length = datagram.len().min(buffer.len());
        buffer[..length].copy_from_slice(&datagram[..length]);
        *meta = RecvMeta::default();
        meta.addr = SocketAddr::V4(from);
        meta.len = length;
        meta.stride = length;
        meta.dst_ip = Some((*self.0.local.ip()).into());
        Poll::Ready(Ok(1))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(SocketAddr::V4(self.0.local))
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

impl noq::UdpSender for VirtualSocket {
    fn poll_send(
        self: Pin<&mut Self>,
        transmit: &Transmit<'_>,
        _: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let SocketAddr::V4(to) = transmit.destination else {
            let error = io::Error::new(io::ErrorKind::NetworkUnreachable, "the lab is IPv4 only");
            return Poll::Ready(Err(error));
        };
        let size = transmit
            .segment_size
            .unwrap_or(transmit.contents.len())
            .max(1);
        for datagram in transmit.contents.chunks(size) {
            self.send_to(datagram, to);
        }
        Poll::Ready(Ok(()))
    }
}
