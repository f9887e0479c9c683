//! The connection of a seat.
//!
//! It is read by every ask and exchanged when the seat gets another, so it is a pointer that is swapped whole. A seat without a
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

/// Where a seat's connection lies.
pub(super) struct ConnectionSlot(ArcSwap<NumberedConnection>);

/// A connection, lent for a moment. It stays what it is while the seat gets another.
pub(super) type BorrowedConnection = Guard<Arc<NumberedConnection>>;

/// A connection and its number among those that its seat has had.
pub(super) struct NumberedConnection {
    pub(super) connection: Connection,
    /// Up to [`NUMBERS`], and then again from 0.
    pub(super) number: u8,
}

/// The greatest number of a seat's connection.
pub(super) const NUMBERS: u8 = 63;

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
    pub(super) fn lend(&self) -> Option<BorrowedConnection> {
        let lent = self.0.load();
        (lent.connection.state() != ConnectionState::Closed).then_some(lent)
    }

    /// The connection to be kept, unless it has ended.
    pub(super) fn connection(&self) -> Option<Connection> {
        self.lend().map(|lent| lent.connection.clone())
    }

    /// The seat gets a connection. Only its keeper says so.
    pub(super) fn set(&self, connection: Connection) {
        let number = self.0.load().number.wrapping_add(1) & NUMBERS;
        self.0
            .store(Arc::new(NumberedConnection { connection, number }));
    }

    /// The seat has none any more.
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
