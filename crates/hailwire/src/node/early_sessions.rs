//! Sessions that take calls before their peer has greeted.
//!
//! A call need not wait for the greeting, and one that may be made twice not even for the handshake
//! (docs/concepts/first-flight.md). Each dial that is under way has an entry here; it is gone with the
//! dial, however that ends.

use std::collections::HashMap;

use hailwire_wire::NodeId;
use tokio::sync::watch;

use crate::session::Session;

type EarlySessionTable = HashMap<NodeId, EarlySession>;

/// Who may be called early.
#[derive(Debug, Default)]
pub(crate) struct EarlySessions(watch::Sender<EarlySessionTable>);

/// A session whose peer has not greeted yet.
#[derive(Debug)]
struct EarlySession {
    session: Session,
    /// The handshake is complete: what is sent now cannot be replayed.
    proven: bool,
}

/// What makes a session take calls before its peer has greeted. Also a dial that is given up leaves
/// nothing behind: the entry goes with it.
#[derive(Debug)]
pub(crate) struct EarlySessionGuard {
    early: watch::Sender<EarlySessionTable>,
    id: NodeId,
    session: Session,
}

impl EarlySessionGuard {
    /// The handshake is complete: from now on all calls may be on it.
    pub(crate) fn prove(&self) {
        self.early.send_if_modified(|early| {
            let ours = early.get_mut(&self.id);
            let ours = ours.filter(|entry| entry.session.is(&self.session));
            ours.is_some_and(|entry| !std::mem::replace(&mut entry.proven, true))
        });
    }
}

impl Drop for EarlySessionGuard {
    fn drop(&mut self) {
        self.early.send_if_modified(|early| {
            let ours = early.get(&self.id);
            let ours = ours.is_some_and(|entry| entry.session.is(&self.session));
            ours && early.remove(&self.id).is_some()
        });
    }
}

impl EarlySessions {
    /// Lets a session take calls that may be made twice while it is being brought up, for as long as the
    /// guard is held. Of several to one peer the first has it.
    pub(crate) fn admit(&self, id: NodeId, session: &Session) -> EarlySessionGuard {
        let early_session = EarlySessionGuard {
            early: self.0.clone(),
            id,
            session: session.clone(),
        };
        self.0.send_modify(|early| {
            early.entry(id).or_insert_with(|| EarlySession {
                session: session.clone(),
                proven: false,
            });
        });
        early_session
    }

    /// Waits for a session that is being brought up and takes this call. `twice` says whether the call
    /// may be made twice.
    pub(crate) async fn wait(&self, id: NodeId, twice: bool) -> Session {
        let takes = |early: &EarlySessionTable| {
            let entry = early.get(&id).filter(|entry| entry.proven || twice);
            // The peer may have preferred a tunnel of its own meanwhile.
            let entry = entry.filter(|entry| entry.session.takes_work());
            entry.map(|entry| entry.session.clone())
        };
        let mut early = self.0.subscribe();
        let found = early.wait_for(|early| takes(early).is_some()).await;
        match found.ok().and_then(|early| takes(&early)) {
            Some(session) => session,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use hailwire_wire::header::Hello;
    use tokio::time::timeout;

    use super::*;
    use crate::{
        carrier::{CarrierConnection, mux},
        session::{OpenedStream, StreamDispatcher},
    };

    struct IgnoresStreams;

    impl StreamDispatcher for IgnoresStreams {
        async fn dispatch(self: Arc<Self>, _session: Session, _opening: OpenedStream) {}
    }

    fn session() -> (Session, mux::MuxConnection) {
        let (near, far) = mux::MuxConnection::pair();
        let near = CarrierConnection::Mux(near);
        let session = Session::start(near, true, Hello::default(), Arc::new(IgnoresStreams));
        (session, far)
    }

    async fn takes(early: &EarlySessions, id: NodeId, twice: bool) -> Option<Session> {
        timeout(Duration::ZERO, early.wait(id, twice)).await.ok()
    }

    #[tokio::test]
    async fn a_dial_that_is_given_up_leaves_no_session_to_call_on() {
        let id = NodeId::from_bytes([1; 32]);
        let early = EarlySessions::default();
        let ((first, _far), (second, _other)) = (session(), session());
        let early_session = early.admit(id, &first);
        assert!(takes(&early, id, true).await.unwrap().is(&first));
        assert!(takes(&early, id, false).await.is_none(), "may be replayed");
        early_session.prove();
        assert!(takes(&early, id, false).await.unwrap().is(&first));

        let later = early.admit(id, &second);
        drop(later);
        assert!(takes(&early, id, false).await.unwrap().is(&first));

        let dial = async move {
            let _seat = early_session;
            std::future::pending::<()>().await;
        };
        assert!(timeout(Duration::ZERO, dial).await.is_err());
        assert!(takes(&early, id, true).await.is_none());
    }
}
