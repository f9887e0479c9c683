//! The host, as an agent sees it.

use tokio::sync::mpsc;

use crate::control::Notice;

/// How many notices of one connection may wait to be sent.
const MAX_NOTICES: usize = 64;

/// A handle to a connected host. Clones are the same; they may outlive the connection.
#[derive(Clone, Debug)]
pub struct HostHandle {
    id: String,
    version: String,
    notices: mpsc::Sender<Notice>,
}

impl HostHandle {
    /// A host, and what its agent tells it.
    pub(crate) fn new(id: String, version: String) -> (Self, mpsc::Receiver<Notice>) {
        let (notices, told) = mpsc::channel(MAX_NOTICES);
        let host = Self {
            id,
            version,
            notices,
        };
        (host, told)
    }

    /// What it calls itself.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Tells the host something unasked: how the agent is, what it counted, that it wants less.
    ///
    /// Returns whether it will be sent: not when the connection has ended, or when 64 are waiting.
    pub fn notify(&self, notice: Notice) -> bool {
        self.notices.try_send(notice).is_ok()
    }

    /// Whether the connection has ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.notices.is_closed()
    }
}
