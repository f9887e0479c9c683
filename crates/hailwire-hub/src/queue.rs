//! The one thread that owns the directory, and the queue in front of it.
//!
//! SQLite blocks, so it gets a thread of its own; the queue holds at most [`LENGTH`] questions and
//! then makes their askers wait. The thread ends when it is told to, whoever still holds the queue.

use std::{io, thread};

use tokio::sync::{mpsc, oneshot};

use crate::directory::Directory;

const LENGTH: usize = 256;

type Question = Box<dyn FnOnce(&mut Directory) + Send>;

enum Item {
    Ask(Question),
    Close,
}

/// Hands questions to the directory's thread. Clones share it; it ends with the last of them, or
/// with [`Queue::close`].
#[derive(Clone, Debug)]
pub(crate) struct Queue(mpsc::Sender<Item>);

/// The directory's thread has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed;

impl Queue {
    /// Starts the thread.
    pub(crate) fn start(mut directory: Directory) -> io::Result<(Self, thread::JoinHandle<()>)> {
        let (sender, mut items) = mpsc::channel::<Item>(LENGTH);
        let thread = thread::Builder::new()
            .name("hub-directory".into())
            .spawn(move || {
                while let Some(item) = items.blocking_recv() {
                    match item {
                        Item::Ask(question) => question(&mut directory),
                        // What is queued already is answered still.
                        Item::Close => items.close(),
                    }
                }
            })?;
        Ok((Self(sender), thread))
    }

    /// Asks and waits for the answer. A question that is queued is answered even if nobody waits.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Directory) -> T + Send + 'static,
    ) -> Result<T, Closed> {
        let (sender, answer) = oneshot::channel();
        let question: Question = Box::new(move |directory| {
            // Whoever asked may have given up.
            let _ = sender.send(question(directory));
        });
        self.0.send(Item::Ask(question)).await.map_err(|_| Closed)?;
        answer.await.map_err(|_| Closed)
    }

    /// Takes no more questions; the thread ends once those that wait are answered.
    pub(crate) async fn close(&self) {
        // An error means that it is closed.
        let _ = self.0.send(Item::Close).await;
    }
}
