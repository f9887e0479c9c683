//! The serving side of a subject, connections to it, and the work on one.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use hailwire::Priority;
use serde::{Deserialize, Serialize};

use super::{
    ReadyAddress, Subject, SubjectSetup, plain_h2, plain_ws, processes, raw_iroh, session,
};
use crate::{BenchError, work::ConnectionStart};

/// The serving side of a subject, and how to connect to it.
pub(super) enum SubjectTarget {
    H2(plain_h2::H2Target),
    Ws(plain_ws::WsTarget),
    Iroh(raw_iroh::IrohTarget),
    Session(session::SessionTarget),
    Processes(processes::ProgramTarget),
}

/// A connection that is prepared as far as possible before it is timed.
pub(super) enum PreparedTarget {
    Tls(tokio_rustls::TlsConnector),
    Iroh(raw_iroh::PreparedIroh),
    Link(SubjectConnection),
}

/// One connection, on which work is done.
#[derive(Clone)]
pub(super) enum SubjectConnection {
    H2(plain_h2::H2Connection),
    Ws(plain_ws::WsConnection),
    Iroh(raw_iroh::IrohConnection),
    Session(session::SessionConnection),
}

impl SubjectTarget {
    pub(super) async fn reach(
        subject: Subject,
        ready: &ReadyAddress,
        options: &SubjectSetup,
    ) -> Result<Self, BenchError> {
        if options.pool.is_some() && !matches!(subject, Subject::Session(_)) {
            return Err(BenchError::Unsupported(
                "only a session has a pool of connections",
            ));
        }
        Ok(match subject {
            Subject::PlainH2 => Self::H2(plain_h2::H2Target::new(ready, options)?),
            Subject::PlainWs => Self::Ws(plain_ws::WsTarget::new(ready)?),
            Subject::RawIroh => Self::Iroh(raw_iroh::IrohTarget::new(ready, options).await?),
            Subject::Session(carrier) => {
                Self::Session(session::SessionTarget::new(carrier, ready, options).await?)
            }
            Subject::Processes => {
                Self::Processes(processes::ProgramTarget::new(ready, options).await?)
            }
            Subject::Node
            | Subject::Hub
            | Subject::Proxy
            | Subject::Callout
            | Subject::RemoteCallout
            | Subject::RawSocket
            | Subject::RawUdp
            | Subject::RawEvented
            | Subject::Operations => {
                return Err(BenchError::Unsupported("this subject only serves"));
            }
        })
    }

    /// Makes sure that a number of agents are served.
    pub(super) async fn agents(&self, count: u32) -> Result<(), BenchError> {
        match self {
            Self::Session(target) => target.agents(count).await,
            Self::Processes(target) => target.agents(count).await,
            Self::H2(_) | Self::Ws(_) | Self::Iroh(_) => Ok(()),
        }
    }

    /// Makes sure that a number of further new nodes are trusted.
    pub(super) async fn expect(&self, count: u32) -> Result<(), BenchError> {
        match self {
            Self::Session(target) => target.expect(count).await,
            _ => Ok(()),
        }
    }

    /// Whether a second connection between the same two ends would be the same one.
    pub(super) fn shares_one_connection(&self) -> bool {
        matches!(self, Self::Session(_) | Self::Processes(_))
    }

    /// `alone`: on a connection that no other agent has.
    pub(super) async fn prepare(
        &self,
        start: ConnectionStart,
        alone: bool,
    ) -> Result<PreparedTarget, BenchError> {
        Ok(match self {
            Self::H2(target) => PreparedTarget::Tls(target.prepare(start).await?),
            Self::Ws(target) => PreparedTarget::Tls(target.prepare(start).await?),
            Self::Iroh(target) => PreparedTarget::Iroh(target.prepare(start).await?),
            Self::Session(target) => PreparedTarget::Link(SubjectConnection::Session(
                target.prepare(start, alone).await?,
            )),
            Self::Processes(target) => {
                PreparedTarget::Link(SubjectConnection::Session(target.prepare(start, alone)?))
            }
        })
    }

    pub(super) async fn connect(
        &self,
        prepared: PreparedTarget,
    ) -> Result<SubjectConnection, BenchError> {
        match (self, prepared) {
            (Self::H2(target), PreparedTarget::Tls(tls)) => {
                target.connect(tls).await.map(SubjectConnection::H2)
            }
            (Self::Ws(target), PreparedTarget::Tls(tls)) => {
                target.connect(tls).await.map(SubjectConnection::Ws)
            }
            (Self::Iroh(target), PreparedTarget::Iroh(prepared)) => {
                target.connect(prepared).await.map(SubjectConnection::Iroh)
            }
            (_, PreparedTarget::Link(link)) => Ok(link),
            _ => Err(BenchError::Invalid("prepared for another subject".into())),
        }
    }

    /// Where a node may choose its carrier, waits until it has chosen one for bulk; returns the seconds that this took.
    pub(super) async fn choose(&self) -> Result<Option<f64>, BenchError> {
        match self {
            Self::Session(target) => target.choose().await,
            _ => Ok(None),
        }
    }

    /// Packets that the serving side has sent and lost so far, where it counts them.
    pub(super) async fn packets(
        &self,
        link: &SubjectConnection,
    ) -> Result<Option<PacketCounts>, BenchError> {
        match (self, link) {
            (Self::Session(target), _) => target.packets().await,
            (_, SubjectConnection::Iroh(link)) => link.packets().await.map(Some),
            _ => Ok(None),
        }
    }

    /// Bytes received so far over UDP and over TCP, where a node may choose between them.
    pub(super) async fn received(&self) -> Result<Option<[u64; 2]>, BenchError> {
        match self {
            Self::Session(target) => target.received().await,
            _ => Ok(None),
        }
    }

    /// Closes connections that were made for one unit of work.
    pub(super) async fn release(&self, links: Vec<SubjectConnection>) {
        let mut sessions = Vec::new();
        for link in links {
            match link {
                SubjectConnection::Iroh(link) => link.close(),
                SubjectConnection::Session(link) => sessions.push(link),
                // Dropping the last handle closes them.
                SubjectConnection::H2(_) | SubjectConnection::Ws(_) => {}
            }
        }
        if let Self::Session(target) = self {
            target.release(sessions).await;
        }
    }

    pub(super) async fn stop(self) {
        if let Self::Session(target) = self {
            target.stop().await;
        }
    }
}

impl SubjectConnection {
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
        got: &StreamProgress,
    ) -> Result<(), BenchError> {
        match self {
            Self::H2(link) => link.bulk(bytes, got).await,
            Self::Ws(link) => link.bulk(bytes, got).await,
            Self::Iroh(link) => link.bulk(bytes, got).await,
            Self::Session(link) => link.bulk(priority, bytes, got).await,
        }
    }
}

/// Bytes of a stream that have been received.
#[derive(Debug, Default)]
pub(super) struct StreamProgress(AtomicU64);

impl StreamProgress {
    pub(super) fn set(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Packets that somebody has sent, and that were declared lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PacketCounts {
    pub(super) sent: u64,
    pub(super) lost: u64,
}

impl PacketCounts {
    /// Share lost since an earlier reading, in percent; `None` where none was sent.
    pub(super) fn lost_percent_since(&self, before: &Self) -> Option<f64> {
        let sent = self.sent.saturating_sub(before.sent);
        let lost = self.lost.saturating_sub(before.lost);
        (sent > 0).then(|| lost as f64 / sent as f64 * 100.0)
    }
}

/// The unspecified address of the same family, loopback for loopback.
pub(super) fn any_like(target: IpAddr) -> IpAddr {
    match target {
        _ if target.is_loopback() => target,
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}
