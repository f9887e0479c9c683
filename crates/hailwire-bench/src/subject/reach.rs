//! The far side of a subject, connections to it, and what is done on one.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use hailwire::Priority;
use serde::{Deserialize, Serialize};

use super::{Options, Ready, Subject, plain_h2, plain_ws, processes, raw_iroh, session};
use crate::{BenchError, work::Start};

/// The far side of a subject, and how to connect to it.
pub(super) enum Far {
    H2(plain_h2::Far),
    Ws(plain_ws::Far),
    Iroh(raw_iroh::Far),
    Session(session::Far),
    Processes(processes::Far),
}

/// Everything done that may be done before the clock runs.
pub(super) enum Prepared {
    Tls(tokio_rustls::TlsConnector),
    Iroh(raw_iroh::Prepared),
    Link(Link),
}

/// One connection: what work is done on.
#[derive(Clone)]
pub(super) enum Link {
    H2(plain_h2::Link),
    Ws(plain_ws::Link),
    Iroh(raw_iroh::Link),
    Session(session::Link),
}

impl Far {
    pub(super) async fn reach(
        subject: Subject,
        ready: &Ready,
        options: &Options,
    ) -> Result<Self, BenchError> {
        if options.pool.is_some() && !matches!(subject, Subject::Session(_)) {
            return Err(BenchError::Unsupported(
                "only a session has a pool of connections",
            ));
        }
        Ok(match subject {
            Subject::PlainH2 => Self::H2(plain_h2::Far::new(ready, options)?),
            Subject::PlainWs => Self::Ws(plain_ws::Far::new(ready)?),
            Subject::RawIroh => Self::Iroh(raw_iroh::Far::new(ready, options).await?),
            Subject::Session(carrier) => {
                Self::Session(session::Far::new(carrier, ready, options).await?)
            }
            Subject::Processes => Self::Processes(processes::Far::new(ready, options).await?),
            Subject::Node
            | Subject::Hub
            | Subject::Proxy
            | Subject::Callout
            | Subject::FarCallout
            | Subject::RawSocket
            | Subject::RawUdp
            | Subject::RawEvented
            | Subject::Operations => {
                return Err(BenchError::Unsupported("this subject only serves"));
            }
        })
    }

    /// Makes sure that so many agents are served.
    pub(super) async fn agents(&self, count: u32) -> Result<(), BenchError> {
        match self {
            Self::Session(far) => far.agents(count).await,
            Self::Processes(far) => far.agents(count).await,
            Self::H2(_) | Self::Ws(_) | Self::Iroh(_) => Ok(()),
        }
    }

    /// Makes sure that so many more strangers are let in.
    pub(super) async fn expect(&self, count: u32) -> Result<(), BenchError> {
        match self {
            Self::Session(far) => far.expect(count).await,
            _ => Ok(()),
        }
    }

    /// Whether several connections between the same two ends are of any use to it.
    pub(super) fn shares_one_connection(&self) -> bool {
        matches!(self, Self::Session(_) | Self::Processes(_))
    }

    /// `alone`: on a connection that no other agent has.
    pub(super) async fn prepare(&self, start: Start, alone: bool) -> Result<Prepared, BenchError> {
        Ok(match self {
            Self::H2(far) => Prepared::Tls(far.prepare(start).await?),
            Self::Ws(far) => Prepared::Tls(far.prepare(start).await?),
            Self::Iroh(far) => Prepared::Iroh(far.prepare(start).await?),
            Self::Session(far) => Prepared::Link(Link::Session(far.prepare(start, alone).await?)),
            Self::Processes(far) => Prepared::Link(Link::Session(far.prepare(start, alone)?)),
        })
    }

    pub(super) async fn connect(&self, prepared: Prepared) -> Result<Link, BenchError> {
        match (self, prepared) {
            (Self::H2(far), Prepared::Tls(tls)) => far.connect(tls).await.map(Link::H2),
            (Self::Ws(far), Prepared::Tls(tls)) => far.connect(tls).await.map(Link::Ws),
            (Self::Iroh(far), Prepared::Iroh(prepared)) => {
                far.connect(prepared).await.map(Link::Iroh)
            }
            (_, Prepared::Link(link)) => Ok(link),
            _ => Err(BenchError::Wrong("prepared for another subject".into())),
        }
    }

    /// Where a node may choose its carrier, has it choose one for bulk; seconds that this took.
    pub(super) async fn choose(&self) -> Result<Option<f64>, BenchError> {
        match self {
            Self::Session(far) => far.choose().await,
            _ => Ok(None),
        }
    }

    /// What the far side has sent and lost so far, where it counts packets.
    pub(super) async fn packets(&self, link: &Link) -> Result<Option<Packets>, BenchError> {
        match (self, link) {
            (Self::Session(far), _) => far.packets().await,
            (_, Link::Iroh(link)) => link.packets().await.map(Some),
            _ => Ok(None),
        }
    }

    /// Bytes received so far over UDP and over TCP, where a node may choose between them.
    pub(super) async fn received(&self) -> Result<Option<[u64; 2]>, BenchError> {
        match self {
            Self::Session(far) => far.received().await,
            _ => Ok(None),
        }
    }

    /// Gives up connections that were made for one piece of work.
    pub(super) async fn release(&self, links: Vec<Link>) {
        let mut sessions = Vec::new();
        for link in links {
            match link {
                Link::Iroh(link) => link.close(),
                Link::Session(link) => sessions.push(link),
                // Dropping the last handle closes them.
                Link::H2(_) | Link::Ws(_) => {}
            }
        }
        if let Self::Session(far) = self {
            far.release(sessions).await;
        }
    }

    pub(super) async fn stop(self) {
        if let Self::Session(far) = self {
            far.stop().await;
        }
    }
}

impl Link {
    pub(super) async fn echo(
        &self,
        agent: u32,
        priority: Priority,
        body: Bytes,
    ) -> Result<Bytes, BenchError> {
        match self {
            Self::H2(link) => link.echo(body).await,
            Self::Ws(link) => link.echo(body).await,
            Self::Iroh(link) => link.echo(priority, body).await,
            Self::Session(link) => link.echo(agent, priority, body).await,
        }
    }

    pub(super) async fn bulk(
        &self,
        priority: Priority,
        bytes: u64,
        got: &Got,
    ) -> Result<(), BenchError> {
        match self {
            Self::H2(link) => link.bulk(bytes, got).await,
            Self::Ws(link) => link.bulk(bytes, got).await,
            Self::Iroh(link) => link.bulk(bytes, got).await,
            Self::Session(link) => link.bulk(priority, bytes, got).await,
        }
    }
}

/// How far a stream has come.
#[derive(Debug, Default)]
pub(super) struct Got(AtomicU64);

impl Got {
    pub(super) fn set(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Packets that somebody has sent, and that were declared lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Packets {
    pub(super) sent: u64,
    pub(super) lost: u64,
}

impl Packets {
    /// Share lost since an earlier look, in percent; nothing where none was sent.
    pub(super) fn lost_percent_since(&self, before: &Self) -> Option<f64> {
        let sent = self.sent.saturating_sub(before.sent);
        let lost = self.lost.saturating_sub(before.lost);
        (sent > 0).then(|| lost as f64 / sent as f64 * 100.0)
    }
}

/// The unspecified address of the same family, loopback for loopback.
pub(super) fn any_like(far: IpAddr) -> IpAddr {
    match far {
        _ if far.is_loopback() => far,
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}
