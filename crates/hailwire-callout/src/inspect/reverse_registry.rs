//! Reverse connections: an agent that connects to us goes to the pool that waits for its id.
//!
//! A pool that is to be had by `reverse` waits here whenever one of its connections is missing. An agent that registers
//! is handed to the one that has waited longest. Where none waits, the agent does, for as long as a handshake may take, and
//! is then hung up on: a pool has as many connections as it was told to have and no more. An agent that no
//! configuration names is refused.

use std::{
    collections::{HashMap, VecDeque},
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::future::BoxFuture;
use tokio::{
    sync::{Notify, Semaphore, oneshot},
    task::JoinSet,
};
use tracing::{debug, warn};

use crate::{
    agent::uds,
    host::{
        ConnectError, ConnectOptions, Connection,
        reverse::{self, ReverseOptions},
    },
    pool::Connector,
};

/// How many agents may be in their handshake at once.
const MAX_HANDSHAKES: usize = 64;

/// The pools that wait for reverse connections.
#[derive(Clone, Default)]
pub struct ReverseRegistry(Arc<ReverseWaiters>);

#[derive(Default)]
struct ReverseWaiters {
    waiting: Mutex<HashMap<String, VecDeque<ConnectionWaiter>>>,
    changed: Notify,
}

struct ConnectionWaiter {
    options: ConnectOptions,
    connection: oneshot::Sender<Connection>,
}

impl ReverseRegistry {
    /// How a pool comes by connections of the agent with this id.
    #[must_use]
    pub fn of(&self, id: &str) -> Arc<dyn Connector> {
        self.waiting().entry(id.to_owned()).or_default();
        Arc::new(ReverseConnector {
            arrivals: self.clone(),
            id: id.to_owned(),
        })
    }

    /// Takes the agents that connect to a Unix socket, for ever. Those that were taken stay when this ends.
    ///
    /// # Errors
    ///
    /// The socket fails.
    ///
    /// # Cancel safety
    ///
    /// It ends; agents in their handshake are dropped.
    pub async fn listen(
        &self,
        socket: &uds::UdsListener,
        options: ReverseOptions,
    ) -> io::Result<()> {
        let options = Arc::new(options);
        let room = Arc::new(Semaphore::new(MAX_HANDSHAKES));
        let mut handshakes = JoinSet::new();
        loop {
            let endpoint = Arc::clone(&room).acquire_owned().await;
            let stream = socket.accept().await?;
            let (arrivals, options) = (self.clone(), Arc::clone(&options));
            handshakes.spawn(async move {
                let _place = endpoint;
                arrivals.take(stream, &options).await;
            });
            while handshakes.try_join_next().is_some() {}
        }
    }

    async fn take(&self, stream: tokio::net::UnixStream, options: &ReverseOptions) {
        let found = Mutex::new(None);
        let connect = |id: String| async {
            let waiter = self.wanted(id).await?;
            let options = waiter.options.clone();
            *found.lock().unwrap_or_else(PoisonError::into_inner) = Some(waiter);
            Some(options)
        };
        let taken = reverse::over_for(stream, options, connect).await;
        let waiter = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        match (taken, waiter) {
            (Ok(connection), Some(waiter)) => {
                debug!(agent = connection.capabilities().agent_id, "has connected");
                // Who gave up meanwhile comes again; so does the agent.
                let _ = waiter.connection.send(connection);
            }
            (Ok(_), None) => {}
            (Err(error), _) => {
                warn!(
                    error = &error as &dyn std::error::Error,
                    "registration of an agent failed"
                );
            }
        }
    }

    /// Whoever has waited longest for this agent, once there is one; `None` where no configuration names it.
    async fn wanted(&self, id: String) -> Option<ConnectionWaiter> {
        loop {
            let changed = self.0.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            {
                let mut waiting = self.waiting();
                let queue = waiting.get_mut(&id)?;
                let mut waiters = std::iter::from_fn(|| queue.pop_front());
                if let Some(waiter) = waiters.find(|waiter| !waiter.connection.is_closed()) {
                    return Some(waiter);
                }
            }
            changed.await;
        }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<String, VecDeque<ConnectionWaiter>>> {
        let waiting = &self.0.waiting;
        waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reverse connections of one agent.
struct ReverseConnector {
    arrivals: ReverseRegistry,
    id: String,
}

impl Connector for ReverseConnector {
    fn connect<'a>(
        &'a self,
        options: &'a ConnectOptions,
    ) -> BoxFuture<'a, Result<Connection, ConnectError>> {
        Box::pin(async move {
            let (connection, arrived) = oneshot::channel();
            {
                let mut waiting = self.arrivals.waiting();
                let queue = waiting.entry(self.id.clone()).or_default();
                queue.retain(|waiter| !waiter.connection.is_closed());
                queue.push_back(ConnectionWaiter {
                    options: options.clone(),
                    connection,
                });
            }
            self.arrivals.0.changed.notify_waiters();
            let limit = options.connect_timeout;
            match tokio::time::timeout(limit, arrived).await {
                Ok(Ok(connection)) => Ok(connection),
                Ok(Err(_)) => Err(ConnectError::Handshake("the agent disconnected".to_owned())),
                Err(_) => Err(ConnectError::Timeout(limit)),
            }
        })
    }

    fn endpoint(&self) -> String {
        format!("reverse {}", self.id)
    }
}
