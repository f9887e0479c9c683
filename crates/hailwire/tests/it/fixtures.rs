//! Pairs of connections to test with, one constructor for each carrier.
//!
//! `quic_pair` takes its place here, as another variant of [`Carrier`], once that carrier can be
//! built without a network beyond loopback.

use hailwire::carrier::{Connection, mux};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;

/// Two ends of one connection: `client` connected, `server` listened.
pub(crate) struct Pair {
    pub(crate) client: Connection,
    pub(crate) server: Connection,
    /// What must live as long as the connection, such as a socket's folder or an endpoint.
    pub(crate) _keep: Vec<Box<dyn std::any::Any + Send>>,
}

/// The carriers under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// The multiplexer over a pair of Unix sockets.
    UnixPair,
    /// The multiplexer over a Unix socket that was bound, connected and accepted.
    UnixListener,
    /// The multiplexer over a pipe in memory.
    Memory,
}

impl Carrier {
    pub(crate) async fn pair(self) -> Pair {
        match self {
            Self::UnixPair => unix_pair(),
            Self::UnixListener => unix_listener_pair().await,
            Self::Memory => memory_pair(),
        }
    }
}

/// A connection whose far side runs on a runtime of its own, which can be stopped in mid-flight: as
/// when a process is killed, the far side's tasks are gone and say nothing.
pub(crate) struct Mortal {
    pub(crate) near: Connection,
    pub(crate) far: Connection,
    runtime: Option<Runtime>,
}

impl Mortal {
    pub(crate) fn new(carrier: Carrier) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (near, far) = match carrier {
            Carrier::UnixPair | Carrier::UnixListener => {
                let (a, b) = std::os::unix::net::UnixStream::pair().unwrap();
                a.set_nonblocking(true).unwrap();
                b.set_nonblocking(true).unwrap();
                let near = mux::Connection::client(UnixStream::from_std(a).unwrap());
                let _far_runtime = runtime.enter();
                (
                    near,
                    mux::Connection::server(UnixStream::from_std(b).unwrap()),
                )
            }
            Carrier::Memory => {
                let (a, b) = tokio::io::duplex(64 * 1024);
                let near = mux::Connection::client(a);
                let _far_runtime = runtime.enter();
                (near, mux::Connection::server(b))
            }
        };
        let (near, far) = (Connection::Mux(near), Connection::Mux(far));
        Self {
            near,
            far,
            runtime: Some(runtime),
        }
    }

    /// Kills the far side.
    pub(crate) fn vanish(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        self.vanish();
    }
}

fn unix_pair() -> Pair {
    let (a, b) = UnixStream::pair().unwrap();
    pair(
        mux::Connection::client(a),
        mux::Connection::server(b),
        Vec::new(),
    )
}

async fn unix_listener_pair() -> Pair {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    let (a, b) = tokio::join!(UnixStream::connect(&path), listener.accept());
    let (client, server) = (a.unwrap(), b.unwrap().0);
    let keep: Vec<Box<dyn std::any::Any + Send>> = vec![Box::new(folder)];
    pair(
        mux::Connection::client(client),
        mux::Connection::server(server),
        keep,
    )
}

fn memory_pair() -> Pair {
    let (client, server) = mux::Connection::pair();
    pair(client, server, Vec::new())
}

fn pair(
    client: mux::Connection,
    server: mux::Connection,
    keep: Vec<Box<dyn std::any::Any + Send>>,
) -> Pair {
    Pair {
        client: Connection::Mux(client),
        server: Connection::Mux(server),
        _keep: keep,
    }
}
