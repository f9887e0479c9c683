//! Connections beside the first one of a tunnel: who dials them, and who takes them.
//!
//! The side that dialled a tunnel sees to it that it has as many connections as the setting `pool` says,
//! which may depend on how many agents the peer offers: in the background once the first one is up, and again
//! when the peer offers more or a connection is lost. What fails or is lost is tried again later and later
//! ([`Pace`]). A peer that does not say that it takes such connections is asked for none.
//!
//! The far side takes a connection by its first `OFFERS`, and calls are placed on it only then: so none is on
//! a connection that is refused. It may be refused where there is no tunnel beside which it could stand, where
//! there is no room, and to a stranger.

use std::{sync::Arc, time::Duration};

use hailwire_wire::{
    Code, NodeId, Status,
    header::{BESIDE, Hello},
    limits,
};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, timeout},
};

use super::{
    Inner,
    connections::Standing,
    overlay,
    tunnel::{GREETING_TIMEOUT, greeted, look_after, unreachable},
};
use crate::{
    config::Carrier,
    session::{Session, connection_status},
};

/// Further connections that are dialled at once.
const AT_ONCE: usize = 8;

/// First and longest pause after a connection was lost or refused.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

/// How long all must be well before a pause is the first one again.
const WELL: Duration = Duration::from_secs(180);

impl Inner {
    /// Sees to it that a tunnel that this node has dialled has its connections, for as long as it is up.
    pub(super) fn keep_connections(self: &Arc<Self>, id: NodeId, first: &Session) {
        let most = self.config.pool.size(limits::MAX_AGENTS_PER_NODE);
        if most > 1
            && takes_more(first)
            && let Ok(carrier) = first.connection().carrier().parse()
            && let Some(standing) = self.peers.standing(id, first)
        {
            tokio::spawn(Box::pin(keep(self.clone(), id, carrier, standing)));
        }
    }

    /// Most connections that a tunnel may have here.
    fn most_connections(&self) -> usize {
        let own = self.config.pool.size(limits::MAX_AGENTS_PER_NODE);
        own.max(limits::MAX_CONNECTIONS)
    }

    /// Takes a greeted session of a trusted peer that is to stand beside others, or closes it with the
    /// reason. Returns whether it was taken.
    pub(super) fn up_beside(
        self: &Arc<Self>,
        id: NodeId,
        session: &Session,
        dialled: bool,
    ) -> bool {
        let most = self.most_connections();
        let entered = match self.is_closing() {
            true => Err(Status::new(Code::Unavailable, "the node is shutting down")),
            false => self.peers.enter_beside(id, session, dialled, most),
        };
        if let Err(status) = entered {
            tracing::debug!(peer = %id, %status, "a connection beside the tunnel was refused");
            session.close(status.code, &status.message);
            return false;
        }
        if !self.trust.is_trusted(id) {
            // It was removed a moment ago, perhaps before this one could be closed with the others.
            session.close(Code::PermissionDenied, "this node does not trust yours");
        }
        let carrier = session.connection().carrier();
        tracing::debug!(peer = %id, carrier, dialled, "one more connection");
        session.send_offers(&self.registry.offers(&self.trust.grant(id)));
        tokio::spawn(look_after(self.clone(), id, session.clone()));
        true
    }

    /// Dials one more connection, and waits until it is taken.
    async fn dial_beside(self: Arc<Self>, id: NodeId, carrier: Carrier) -> Result<(), Status> {
        let places = self.places(id).await;
        let connection = if carrier.takes_udp() {
            let dial = Box::pin(overlay::dial_whole(&self.endpoint, id, &places)).await;
            dial.map(|connection| self.quic(connection))
        } else {
            self.dial_tcp(id, &places.tcp, carrier).await
        };
        let connection = connection.map_err(|reason| unreachable(id, &reason))?;
        let hello = Hello {
            beside: true,
            ..self.hello()
        };
        let session = self.start_session_as(hello, id, connection, true);
        if let Err(status) = taken(&session).await {
            session.close(status.code, &status.message);
            return Err(status);
        }
        match self.up_beside(id, &session, true) {
            true => Ok(()),
            false => Err(unreachable(id, "there is no tunnel to it any more")),
        }
    }
}

/// Whether an accepted session is to stand beside others, by its greeting.
pub(super) fn is_beside(session: &Session) -> bool {
    session.peer_hello().is_some_and(|hello| hello.beside)
}

/// Whether a peer takes connections beside the first.
fn takes_more(first: &Session) -> bool {
    let hello = first.peer_hello();
    hello.is_some_and(|hello| hello.features.iter().any(|feature| feature == BESIDE))
}

/// Waits until the far side takes a connection.
async fn taken(session: &Session) -> Result<(), Status> {
    greeted(session).await?;
    let mut offers = session.peer_offers();
    tokio::select! {
        biased;
        // The sender lives in the session.
        told = timeout(GREETING_TIMEOUT, offers.wait_for(Option::is_some)) => match told {
            Ok(_) => Ok(()),
            Err(_) => Err(Status::new(Code::Unavailable, "the peer did not take it in time")),
        },
        error = session.closed() => Err(connection_status(&error)),
    }
}

/// Dials what a tunnel lacks until it is down.
async fn keep(
    node: Arc<Inner>,
    id: NodeId,
    carrier: Carrier,
    mut standing: watch::Receiver<Standing>,
) {
    let mut pace = Pace::default();
    let mut had = 1;
    while !node.is_closing() {
        let Standing {
            connections,
            agents,
        } = *standing.borrow_and_update();
        let wanted = node.config.pool.size(agents);
        if connections < had {
            pace.trouble(Instant::now());
        }
        had = connections;
        if connections >= wanted {
            match standing.changed().await {
                Ok(()) => continue,
                // The tunnel is down, or another has taken its place.
                Err(_) => return,
            }
        }
        let missing = (wanted - connections).min(AT_ONCE);
        let wait = pace.wait(Instant::now());
        let round = async {
            tokio::time::sleep(wait).await;
            let mut dials = JoinSet::new();
            for _ in 0..missing {
                dials.spawn(Box::pin(node.clone().dial_beside(id, carrier)));
            }
            let mut well = true;
            while let Some(done) = dials.join_next().await {
                if let Ok(Err(status)) = &done {
                    tracing::debug!(peer = %id, %status, "no further connection");
                }
                well &= matches!(done, Ok(Ok(())));
            }
            well
        };
        let mut tunnel = standing.clone();
        let well = tokio::select! {
            well = round => well,
            _ = tunnel.wait_for(|_| false) => return,
        };
        if !well {
            pace.trouble(Instant::now());
        }
        had = standing.borrow().connections;
    }
}

/// When it may be dialled again: at once, unless something went wrong a moment ago. Pure.
#[derive(Debug, Default)]
struct Pace {
    /// When something last went wrong, and the pause from then on.
    last: Option<(Instant, Duration)>,
}

impl Pace {
    /// A dial has failed, or a connection was lost.
    fn trouble(&mut self, now: Instant) {
        let (first, longest) = PAUSE;
        let pause = match self.last {
            Some((at, pause)) if now.saturating_duration_since(at) < WELL => {
                (pause * 2).min(longest)
            }
            _ => first,
        };
        self.last = Some((now, pause));
    }

    fn wait(&self, now: Instant) -> Duration {
        self.last.map_or(Duration::ZERO, |(at, pause)| {
            (at + pause).saturating_duration_since(now)
        })
    }
}

#[cfg(test)]
mod tests;
