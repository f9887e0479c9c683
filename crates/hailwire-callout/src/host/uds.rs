//! An agent that listens on a Unix socket.

use std::path::Path;

use tokio::net::UnixStream;

use super::{ConnectError, ConnectOptions, Connection, stream};
use crate::stream::split;

/// Connects to an agent that listens on a Unix socket.
///
/// Runs a task until the connection ends.
///
/// # Errors
///
/// [`ConnectError`]; an agent that says nothing is given up after [`ConnectOptions::connect_timeout`].
///
/// # Cancel safety
///
/// The socket is closed.
pub async fn connect(
    path: impl AsRef<Path>,
    options: &ConnectOptions,
) -> Result<Connection, ConnectError> {
    let path = path.as_ref();
    stream::within(options, async {
        let socket = UnixStream::connect(path).await?;
        let (read, write) = split(socket)?;
        stream::halves(read, write, options).await
    })
    .await
}
