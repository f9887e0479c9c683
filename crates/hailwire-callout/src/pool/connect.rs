//! Opens one more connection for a pool.

use std::fmt;

use futures_util::future::BoxFuture;

use crate::host::{ConnectError, ConnectOptions, Connection};

/// Opens connections to one agent: over a Unix socket, gRPC, the overlay, or one that the agent opened. A function
/// from options to a future is one too ([`connect_with`]).
pub trait Connector: Send + Sync + 'static {
    /// Opens one more. The options are the pool's own and must be used: without their `notices` the pool would not hear what the
    /// agent says of its health. The pool calls it for ever, with back-off; it should end within `connect_timeout`, and is
    /// dropped a second later.
    fn connect<'a>(
        &'a self,
        options: &'a ConnectOptions,
    ) -> BoxFuture<'a, Result<Connection, ConnectError>>;

    /// Where it leads, for logs.
    fn endpoint(&self) -> String;
}

impl fmt::Debug for dyn Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.endpoint())
    }
}

/// A [`Connector`] of a function.
pub fn connect_with<F>(endpoint: impl Into<String>, connect: F) -> impl Connector
where
    F: Fn(ConnectOptions) -> BoxFuture<'static, Result<Connection, ConnectError>>
        + Send
        + Sync
        + 'static,
{
    FnConnector {
        endpoint: endpoint.into(),
        connect,
    }
}

struct FnConnector<F> {
    endpoint: String,
    connect: F,
}

impl<F> Connector for FnConnector<F>
where
    F: Fn(ConnectOptions) -> BoxFuture<'static, Result<Connection, ConnectError>>
        + Send
        + Sync
        + 'static,
{
    fn connect<'a>(
        &'a self,
        options: &'a ConnectOptions,
    ) -> BoxFuture<'a, Result<Connection, ConnectError>> {
        (self.connect)(options.clone())
    }

    fn endpoint(&self) -> String {
        self.endpoint.clone()
    }
}
