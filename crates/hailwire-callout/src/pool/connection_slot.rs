//! The connection of a slot.
//!
//! It is read by every request and exchanged when the slot gets another, so it is a pointer that is swapped whole. A slot without a
//! connection has one that has ended, which nobody is given.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use arc_swap::{ArcSwap, Guard};

use crate::{
    capabilities::Capabilities,
    control::Cancel,
    event::Event,
    host::{
        Connection, ConnectionState, EventTransport, LinkSettings, OverloadPolicy, RequestError,
        RequestTicket, open,
    },
};

/// A slot of the pool: holds its current connection.
pub(super) struct ConnectionSlot(ArcSwap<NumberedConnection>);

/// A connection, borrowed for a moment. It stays what it is while the slot gets another.
pub(super) type BorrowedConnection = Guard<Arc<NumberedConnection>>;

/// A connection and its number among those that its slot has had.
pub(super) struct NumberedConnection {
    pub(super) connection: Connection,
    /// Up to [`MAX_NUMBER`], and then again from 0.
    pub(super) number: u8,
}

/// The greatest number of a slot's connection.
pub(super) const MAX_NUMBER: u8 = 63;

impl Default for ConnectionSlot {
    fn default() -> Self {
        Self(ArcSwap::from_pointee(NumberedConnection {
            connection: ENDED.clone(),
            number: 0,
        }))
    }
}

impl ConnectionSlot {
    /// The connection, unless it has ended.
    #[inline]
    pub(super) fn load(&self) -> Option<BorrowedConnection> {
        let borrowed = self.0.load();
        (borrowed.connection.state() != ConnectionState::Closed).then_some(borrowed)
    }

    /// The connection to be kept, unless it has ended.
    pub(super) fn connection(&self) -> Option<Connection> {
        self.load().map(|borrowed| borrowed.connection.clone())
    }

    /// The slot gets a connection. Only its reconnect task calls this.
    pub(super) fn set(&self, connection: Connection) {
        let number = self.0.load().number.wrapping_add(1) & MAX_NUMBER;
        self.0
            .store(Arc::new(NumberedConnection { connection, number }));
    }

    /// The slot has none any more.
    pub(super) fn clear(&self) {
        let number = self.0.load().number;
        let connection = ENDED.clone();
        self.0
            .store(Arc::new(NumberedConnection { connection, number }));
    }
}

static ENDED: LazyLock<Connection> = LazyLock::new(|| {
    let settings = LinkSettings {
        capabilities: Capabilities::default(),
        numbered: true,
        window: 0,
        overload: OverloadPolicy::Fail,
        late: Duration::MAX,
        notices: None,
    };
    let (connection, link) = open(ClosedTransport, settings);
    link.end();
    connection
});

struct ClosedTransport;

impl EventTransport for ClosedTransport {
    fn event(&self, _: RequestTicket, _: Event, _: bool) -> Result<(), RequestError> {
        Err(RequestError::Closed)
    }

    fn cancel(&self, _: Cancel) {}

    fn close(&self) {}
}
