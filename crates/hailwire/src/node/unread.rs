//! Charges peers what they have sent on connections over QUIC and HTTP/2 and nobody has read.
//!
//! Those carriers promise each connection a window, which bounds it alone and cannot be taken back (RFC 9000,
//! 4.1). So what lies in the windows is looked at while there are calls, and charged to the peer's account
//! as it is. Where that has no room, and what waits is not being read either, the connection is closed;
//! where it is being read, its window becomes smaller until there is room again.

use std::{collections::HashMap, sync::Arc, time::Duration};

use hailwire_core::Transport;
use hailwire_wire::Code;
use tokio::time::{MissedTickBehavior, interval};

use super::{NodeInner, overlay};
use crate::{
    carrier::{ConnectionLimits, UnreadBytes, budget::AccountCharge},
    session::Session,
};

/// How often connections with calls are looked at. In so long a peer can send what its link carries, up to its
/// window, before it is charged.
const TICK: Duration = Duration::from_millis(100);

/// What waits is being read where it would be gone after so many looks.
const SOON: u64 = 8;

/// What is charged for a connection, and what was seen the time before.
#[derive(Debug)]
struct ChargedConnection {
    held: AccountCharge,
    read: u64,
    narrowed: bool,
}

/// What becomes of a connection.
#[derive(Debug, PartialEq, Eq)]
enum UnreadVerdict {
    /// It goes on as it is.
    GoOn,
    /// Its window becomes smaller.
    Narrow,
    /// It has its first window again.
    Widen,
    Close,
}

/// Decides it, by whether there is room for what is unread.
fn verdict(room: bool, unread: UnreadBytes, read_before: u64, narrowed: bool) -> UnreadVerdict {
    let read = unread.read.saturating_sub(read_before);
    match (room, narrowed) {
        (true, true) => UnreadVerdict::Widen,
        (true, false) => UnreadVerdict::GoOn,
        (false, _) if read.saturating_mul(SOON) < unread.bytes => UnreadVerdict::Close,
        (false, false) => UnreadVerdict::Narrow,
        (false, true) => UnreadVerdict::GoOn,
    }
}

/// Looks at the connections of peers until the node ends.
pub(super) async fn watch(node: Arc<NodeInner>) {
    let mut watched: HashMap<usize, ChargedConnection> = HashMap::new();
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let mut before = std::mem::take(&mut watched);
        for session in connections(&node) {
            session.connection().shrink();
            // One that rests holds nothing, and costs nothing more here.
            if session.in_flight() == 0 {
                continue;
            }
            let known = before.remove(&session.key());
            let Some(mut kept) = known.or_else(|| begin(&session)) else {
                continue;
            };
            if look(&node, &session, &mut kept) {
                watched.insert(session.key(), kept);
            }
        }
    }
}

fn connections(node: &NodeInner) -> Vec<Session> {
    let superseded = node.peers.still_busy().into_iter();
    let mut all: Vec<Session> = superseded.map(|(_, session)| session).collect();
    for id in node.peers.ids() {
        for way in Transport::BOTH {
            all.extend(node.peers.connections(id, way));
        }
    }
    all
}

fn begin(session: &Session) -> Option<ChargedConnection> {
    let unread = session.connection().unread()?;
    Some(ChargedConnection {
        held: session.account()?.hold(0)?,
        read: unread.read,
        narrowed: false,
    })
}

/// Whether the connection goes on.
fn look(node: &NodeInner, session: &Session, watched: &mut ChargedConnection) -> bool {
    let Some(unread) = session.connection().unread() else {
        return false;
    };
    let bytes = usize::try_from(unread.bytes).unwrap_or(usize::MAX);
    let room = watched.held.resize(bytes);
    let verdict = verdict(room, unread, watched.read, watched.narrowed);
    watched.read = unread.read;
    match verdict {
        UnreadVerdict::GoOn => {}
        UnreadVerdict::Narrow => {
            watched.narrowed = true;
            session
                .connection()
                .set_window(ConnectionLimits::UNTRUSTED.unread);
        }
        UnreadVerdict::Widen => {
            watched.narrowed = false;
            let first = overlay::first_window(&node.config().quic);
            session.connection().set_window(first);
        }
        UnreadVerdict::Close => {
            let carrier = session.connection().carrier();
            tracing::warn!(carrier, unread = bytes, "too much of a peer is unread");
            let why = "more is unread of this node than may be";
            session.close(Code::ResourceExhausted, why);
        }
    }
    verdict != UnreadVerdict::Close
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_read_closes_its_connection_and_what_is_read_narrows_it() {
        let unread = |bytes, read| UnreadBytes { bytes, read };
        let mib = 1 << 20;
        assert_eq!(verdict(true, unread(mib, 0), 0, false), UnreadVerdict::GoOn);
        assert_eq!(
            verdict(false, unread(mib, 0), 0, false),
            UnreadVerdict::Close
        );
        assert_eq!(
            verdict(false, unread(mib, 9), 0, false),
            UnreadVerdict::Close
        );
        // As much in one look as there is.
        assert_eq!(
            verdict(false, unread(mib, mib), 0, false),
            UnreadVerdict::Narrow
        );
        assert_eq!(
            verdict(false, unread(mib, 2 * mib), mib, true),
            UnreadVerdict::GoOn
        );
        assert_eq!(
            verdict(false, unread(mib, 2 * mib), 2 * mib, true),
            UnreadVerdict::Close
        );
        assert_eq!(
            verdict(true, unread(0, 3 * mib), 0, true),
            UnreadVerdict::Widen
        );
    }
}
