//! Dialling: carriers race as addresses do in Happy Eyeballs (RFC 8305).
//!
//! QUIC goes first, TCP follows after a head start, or at once when QUIC has failed; where TCP worked
//! last, TCP goes first. Whoever is up first and greeted is the tunnel. A QUIC dial that lost the race
//! goes on: if it comes up after all, it is the peer's second tunnel.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use hailwire_core::Transport;
use hailwire_wire::{Code, NodeId, Status, address::NodeRef};
use iroh::endpoint::OutgoingZeroRttConnection;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::{
    Inner,
    early::EarlySeat,
    overlay::{self, Places, Reached},
    tunnel::{greeted, unreachable},
};
use crate::{
    carrier::{
        Connection, quic,
        tcp::{self, TcpCarrier},
    },
    config::Carrier,
    session::Session,
};

/// One runner of the race.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leg {
    pub(super) way: Transport,
    /// When it starts, if nobody before it has failed sooner.
    pub(super) after: Duration,
}

/// Who runs, and when: pure.
pub(super) fn legs(
    carrier: Carrier,
    udp: bool,
    tcp: bool,
    worked: Option<Transport>,
    head_start: Duration,
) -> Vec<Leg> {
    let mut ways = Vec::new();
    if udp && carrier.takes_udp() {
        ways.push(Transport::Udp);
    }
    if tcp && carrier.takes_tcp() {
        ways.push(Transport::Tcp);
    }
    if worked == Some(Transport::Tcp) {
        ways.reverse();
    }
    let start = [Duration::ZERO, head_start];
    ways.into_iter()
        .zip(start)
        .map(|(way, after)| Leg { way, after })
        .collect()
}

/// The carriers over TCP that a configuration allows, the preferred one first.
pub(super) fn tcp_carriers(carrier: Carrier) -> &'static [TcpCarrier] {
    match carrier {
        Carrier::Auto => &TcpCarrier::ALL,
        Carrier::Quic => &[],
        Carrier::H2 => &[TcpCarrier::H2],
        Carrier::Ws => &[TcpCarrier::Ws],
    }
}

impl Inner {
    /// The carriers that may be used with a peer, by the configuration.
    pub(super) fn carrier_for(&self, id: NodeId) -> Carrier {
        let mut peers = self.config.peers.iter();
        let about = peers.find(|peer| match &peer.who {
            NodeRef::Id(key) => *key == id,
            alias @ NodeRef::Name(_) => self.trust.find(alias) == Some(id),
        });
        about.map_or(self.config.carrier, |peer| peer.carrier)
    }

    /// Dials a node wherever it may be, trusted or not, and greets it.
    pub(super) async fn dial_at(
        self: &Arc<Self>,
        id: NodeId,
        places: &Places,
    ) -> Result<Session, Status> {
        let carrier = self.carrier_for(id);
        let (udp, tcp) = (places.by_udp(), !places.tcp.is_empty());
        let worked = self.peers.worked(id);
        let legs = legs(carrier, udp, tcp, worked, self.config.head_start);
        if legs.is_empty() {
            let reason = format!("no address of it is known for carrier `{}`", carrier.name());
            return Err(unreachable(id, &reason));
        }
        // Counts the failures, so that whoever waits starts at once.
        let failures = watch::Sender::new(0_usize);
        let mut race = JoinSet::new();
        for (place, leg) in legs.into_iter().enumerate() {
            let (node, places, mut failed) = (self.clone(), places.clone(), failures.subscribe());
            race.spawn(async move {
                let early = failed.wait_for(|failed| *failed >= place);
                // Either way it is time to start.
                let _ = timeout(leg.after, early).await;
                (leg.way, node.dial_by(id, &places, leg.way, carrier).await)
            });
        }
        let mut reasons = Vec::new();
        while let Some(done) = race.join_next().await {
            let Ok((way, outcome)) = done else { continue };
            match outcome {
                Ok(session) => {
                    self.peers.note_worked(id, way);
                    if way == Transport::Tcp {
                        race.detach_all();
                    }
                    return Ok(session);
                }
                Err(status) => {
                    reasons.push(status);
                    failures.send_modify(|failed| *failed += 1);
                }
            }
        }
        Err(all_failed(id, reasons))
    }

    /// Dials a node over UDP or TCP, and greets it. A trusted one has its tunnel then.
    pub(super) async fn dial_by(
        self: &Arc<Self>,
        id: NodeId,
        places: &Places,
        way: Transport,
        carrier: Carrier,
    ) -> Result<Session, Status> {
        let connection = match way {
            Transport::Udp => {
                let early = self.config.quic.zero_rtt && self.trust.is_trusted(id);
                let dial = Box::pin(overlay::dial(&self.endpoint, id, places, early)).await;
                match dial.map_err(|reason| unreachable(id, &reason))? {
                    Reached::Full(connection) => self.quic(connection),
                    Reached::Early(early) => return self.dial_early(id, early).await,
                }
            }
            Transport::Tcp => {
                let dial = self.dial_tcp(id, &places.tcp, carrier).await;
                dial.map_err(|reason| unreachable(id, &reason))?
            }
        };
        let session = self.start_session(id, connection, true);
        let seat = self.trust.is_trusted(id).then(|| {
            let seat = self.peers.early.seat(id, &session);
            seat.prove();
            seat
        });
        self.greet(id, &session, seat).await?;
        Ok(session)
    }

    /// Waits for the far side's greeting, and then makes the session of a trusted peer, which has a
    /// seat, its tunnel. Calls to such a peer wait for neither: they are a round trip sooner back.
    async fn greet(
        self: &Arc<Self>,
        id: NodeId,
        session: &Session,
        seat: Option<EarlySeat>,
    ) -> Result<(), Status> {
        let outcome = greeted(session).await;
        match &outcome {
            Ok(()) if seat.is_some() => self.up(id, session, true),
            Ok(()) => {}
            // Calls may be on it.
            Err(status) => session.close(status.code, &status.message),
        }
        outcome
    }

    /// Begins a session with the first packet. Calls that may be made twice travel with it; all
    /// others wait, as ever, until the handshake is complete.
    async fn dial_early(
        self: &Arc<Self>,
        id: NodeId,
        early: OutgoingZeroRttConnection,
    ) -> Result<Session, Status> {
        let room = overlay::room(&self.config.quic);
        let connection = quic::Connection::dialled_early(early, room);
        let session = self.start_session(id, Connection::Quic(connection.clone()), true);
        let seat = self.peers.early.seat(id, &session);
        let taken = match timeout(overlay::DIAL_TIMEOUT, connection.complete()).await {
            Ok(Ok(taken)) => taken,
            Ok(Err(reason)) => return Err(unreachable(id, &reason)),
            Err(_) => {
                session.close(Code::Unavailable, "the peer did not answer");
                return Err(unreachable(id, "no answer to a resumed handshake"));
            }
        };
        tracing::debug!(peer = %id, taken, "resumed, with a first flight");
        seat.prove();
        self.greet(id, &session, Some(seat)).await?;
        Ok(session)
    }

    /// A QUIC connection with the room that the configuration gives a peer.
    pub(super) fn quic(&self, connection: iroh::endpoint::Connection) -> Connection {
        let room = overlay::room(&self.config.quic);
        Connection::Quic(quic::Connection::with_room(connection, room))
    }

    /// Tries the addresses one after the other, each with a head start over the next.
    pub(super) async fn dial_tcp(
        &self,
        id: NodeId,
        addresses: &[SocketAddr],
        carrier: Carrier,
    ) -> Result<Connection, String> {
        #[cfg(test)]
        if let Some(dialled) = super::virtual_house::dial(self.id, id).await {
            return dialled;
        }
        let which = tcp_carriers(carrier);
        let mut dials = JoinSet::new();
        for (place, address) in addresses.iter().copied().enumerate() {
            let identity = self.tcp.identity.clone();
            let wait = self.config.head_start * u32::try_from(place).unwrap_or(u32::MAX);
            dials.spawn(async move {
                sleep(wait).await;
                tcp::connect(&identity, id, address, which).await
            });
        }
        let deadline = Instant::now() + overlay::DIAL_TIMEOUT;
        let mut reason = "no TCP address of it is known".to_owned();
        while let Ok(Some(done)) = tokio::time::timeout_at(deadline, dials.join_next()).await {
            match done {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(error)) => reason = format!("over TCP: {}", overlay::whole(&error)),
                Err(_) => {}
            }
        }
        Err(reason)
    }

    /// Brings up a peer's second tunnel, if nobody does already. Says nothing when it cannot.
    pub(super) async fn bring_up(self: Arc<Self>, id: NodeId, way: Transport, carrier: Carrier) {
        if !self.peers.begin_second(id, way) {
            return;
        }
        let places = self.places(id).await;
        let outcome = self.dial_by(id, &places, way, carrier).await;
        self.peers.end_second(id, way);
        if let Err(status) = outcome {
            tracing::debug!(peer = %id, ?way, %status, "no second tunnel");
        }
    }
}

fn all_failed(id: NodeId, mut reasons: Vec<Status>) -> Status {
    if reasons.len() == 1
        && let Some(only) = reasons.pop()
    {
        return only;
    }
    let texts: Vec<String> = reasons.into_iter().map(|status| status.message).collect();
    unreachable(id, &texts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD_START: Duration = Duration::from_millis(250);

    fn order(
        carrier: Carrier,
        udp: bool,
        tcp: bool,
        worked: Option<Transport>,
    ) -> Vec<(Transport, Duration)> {
        let legs = legs(carrier, udp, tcp, worked, HEAD_START);
        legs.into_iter().map(|leg| (leg.way, leg.after)).collect()
    }

    #[test]
    fn quic_goes_first_and_tcp_follows_after_a_head_start() {
        let both = order(Carrier::Auto, true, true, None);
        assert_eq!(
            both,
            [
                (Transport::Udp, Duration::ZERO),
                (Transport::Tcp, HEAD_START)
            ]
        );
        assert_eq!(order(Carrier::Auto, true, true, Some(Transport::Udp)), both);
    }

    #[test]
    fn what_worked_last_goes_first() {
        let both = order(Carrier::Auto, true, true, Some(Transport::Tcp));
        assert_eq!(
            both,
            [
                (Transport::Tcp, Duration::ZERO),
                (Transport::Udp, HEAD_START)
            ]
        );
    }

    #[test]
    fn who_has_no_address_or_is_not_allowed_does_not_run() {
        let now = Duration::ZERO;
        assert_eq!(
            order(Carrier::Auto, false, true, None),
            [(Transport::Tcp, now)]
        );
        assert_eq!(
            order(Carrier::Auto, true, false, Some(Transport::Tcp)),
            [(Transport::Udp, now)]
        );
        assert_eq!(
            order(Carrier::Quic, true, true, Some(Transport::Tcp)),
            [(Transport::Udp, now)]
        );
        assert_eq!(
            order(Carrier::Ws, true, true, None),
            [(Transport::Tcp, now)]
        );
        assert_eq!(order(Carrier::H2, true, false, None), []);
    }
}
