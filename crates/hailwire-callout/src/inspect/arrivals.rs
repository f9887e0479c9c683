//! Agents that connect by themselves: each goes to the pool that waits for one of its id.
//!
//! A pool that is to be had by `reverse` waits here whenever one of its connections is missing. An agent that registers
//! is handed to the one that has waited longest; where none waits it is refused, so that a pool has as many
//! connections as it was told to have and no more.

use std::{
    collections::{HashMap, VecDeque},
    io,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use futures_util::future::BoxFuture;
use tokio::{
    sync::{Semaphore, oneshot},
    task::JoinSet,
};
use tracing::{debug, warn};

use crate::{
    agent::uds,
    host::{
        ConnectError, ConnectOptions, Connection,
        reverse::{self, ReverseOptions},
    },
    pool::Connect,
};

/// How many agents may be in their handshake at once.
const HANDSHAKES: usize = 64;

/// Who waits for an agent to connect.
#[derive(Clone, Default)]
pub struct Arrivals(Arc<Mutex<HashMap<String, VecDeque<Waiter>>>>);

struct Waiter {
    options: ConnectOptions,
    connection: oneshot::Sender<Connection>,
}

impl Arrivals {
    /// How a pool comes by connections of the agent with this id.
    #[must_use]
    pub fn of(&self, id: &str) -> Arc<dyn Connect> {
        Arc::new(Arrival {
            arrivals: self.clone(),
            id: id.to_owned(),
        })
    }

    /// Takes the agents that connect to a Unix socket, for ever.
    ///
    /// # Errors
    ///
    /// The socket cannot be listened on, or fails.
    ///
    /// # Cancel safety
    ///
    /// It ends; agents in their handshake are dropped.
    pub async fn listen(&self, path: &Path, options: ReverseOptions) -> io::Result<()> {
        let socket = uds::Listener::bind(path)?;
        let options = Arc::new(options);
        let room = Arc::new(Semaphore::new(HANDSHAKES));
        let mut handshakes = JoinSet::new();
        loop {
            let place = Arc::clone(&room).acquire_owned().await;
            let stream = socket.accept().await?;
            let (arrivals, options) = (self.clone(), Arc::clone(&options));
            handshakes.spawn(async move {
                let _place = place;
                arrivals.take(stream, &options).await;
            });
            while handshakes.try_join_next().is_some() {}
        }
    }

    async fn take(&self, stream: tokio::net::UnixStream, options: &ReverseOptions) {
        let mut waiter = None;
        let connect = |id: &str| {
            waiter = self.longest(id);
            waiter.as_ref().map(|waiter| waiter.options.clone())
        };
        match (reverse::over_for(stream, options, connect).await, waiter) {
            (Ok(connection), Some(waiter)) => {
                debug!(agent = connection.capabilities().agent_id, "has connected");
                // Who gave up meanwhile comes again; so does the agent.
                let _ = waiter.connection.send(connection);
            }
            (Ok(_), None) => {}
            (Err(error), _) => {
                warn!(
                    error = &error as &dyn std::error::Error,
                    "an agent is not taken"
                );
            }
        }
    }

    /// Whoever has waited longest for this agent and still does.
    fn longest(&self, id: &str) -> Option<Waiter> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = waiting.get_mut(id)?;
        std::iter::from_fn(|| queue.pop_front()).find(|waiter| !waiter.connection.is_closed())
    }
}

/// The arrivals of one agent.
struct Arrival {
    arrivals: Arrivals,
    id: String,
}

impl Connect for Arrival {
    fn connect<'a>(
        &'a self,
        options: &'a ConnectOptions,
    ) -> BoxFuture<'a, Result<Connection, ConnectError>> {
        Box::pin(async move {
            let (connection, arrived) = oneshot::channel();
            {
                let waiting = &self.arrivals.0;
                let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
                let queue = waiting.entry(self.id.clone()).or_default();
                queue.retain(|waiter| !waiter.connection.is_closed());
                queue.push_back(Waiter {
                    options: options.clone(),
                    connection,
                });
            }
            let limit = options.connect_timeout;
            match tokio::time::timeout(limit, arrived).await {
                Ok(Ok(connection)) => Ok(connection),
                Ok(Err(_)) => Err(ConnectError::Handshake("it went away".to_owned())),
                Err(_) => Err(ConnectError::Timeout(limit)),
            }
        })
    }

    fn place(&self) -> String {
        format!("reverse {}", self.id)
    }
}
