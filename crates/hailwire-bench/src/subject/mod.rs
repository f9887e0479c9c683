//! Subjects: programs that serve and programs that load, each a process of its own.
//!
//! A program that serves prints one JSON line, `{"ready":{"address":"ip:port"}}`, and runs until its
//! standard input ends. A program that loads is given that, prints `{"ready":{}}`, and then answers
//! each line of [`Work`] with a line of [`Measured`]. Ours are reached by
//! `hail bench subject serve|load NAME`; anybody's can take part by the same interface
//! (`docs/reference/bench-subjects.md`). That both end with their standard input is what leaves no
//! process behind, however a run ends.
//!
//! | module | subject |
//! |---|---|
//! | `plain_h2` | hyper over TLS 1.3 |
//! | `plain_ws` | tungstenite over TLS 1.3 |
//! | `raw_iroh` | QUIC streams without a session |
//! | `session` | calls between embedded nodes, over each carrier |
//! | `processes` | calls from program to program through two nodes |
//! | `hub` | a hub, at which nodes behind NAT find each other |
//! | `proxy` | the TCP relay proxy of the baseline behind NAT |
//! | `callout` | a host and an agent of Agent Protocol v2, near and far, and what they do |
//! | `load` | how work is done, the same for all |
//! | `reach` | the far side of each, connections to it, and what is done on one |
//! | `setup` | how a subject is set up |

mod callout;
mod hub;
mod load;
mod pattern;
mod plain_h2;
mod plain_ws;
mod processes;
mod proxy;
mod raw_iroh;
mod reach;
mod session;
mod setup;
mod tls;

use std::{io::Write, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader};

pub use callout::Wire;
pub use session::Carrier;
pub use setup::{Congestion, Options, Path, Ready};

use reach::{Far, Got, Link, Packets, Prepared, any_like};

use crate::{
    BenchError,
    tables::subject as words,
    work::{Measured, Work},
};

/// How long a party may take to end after its standard input has.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The subjects that this program brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A session between embedded nodes.
    Session(Carrier),
    /// hyper.
    PlainH2,
    /// tungstenite.
    PlainWs,
    /// iroh.
    RawIroh,
    /// Through two nodes, from program to program.
    Processes,
    /// A node alone: a part of [`Subject::Processes`].
    Node,
    /// A hub: no subject itself, the way to one.
    Hub,
    /// A TCP relay proxy: no subject itself, the way to one.
    Proxy,
    /// A host and an agent of Agent Protocol v2.
    Callout,
    /// The same with a node beside each.
    FarCallout,
    /// Bytes back and forth over a Unix socket, with blocking calls.
    RawSocket,
    /// The same bytes on an event loop.
    RawEvented,
    /// Datagrams back and forth.
    RawUdp,
    /// Single operations of callouts: whoever serves does nothing.
    Operations,
}

impl Subject {
    /// Those that can be compared.
    pub const ALL: [Self; 8] = [
        Self::Session(Carrier::Quic),
        Self::Session(Carrier::H2),
        Self::Session(Carrier::Ws),
        Self::Session(Carrier::Auto),
        Self::RawIroh,
        Self::PlainH2,
        Self::PlainWs,
        Self::Processes,
    ];

    /// Its word in the cells of a result.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Session(Carrier::Quic) => words::QUIC,
            Self::Session(Carrier::H2) => words::H2,
            Self::Session(Carrier::Ws) => words::WS,
            Self::Session(Carrier::Auto) => words::AUTO,
            Self::PlainH2 => words::PLAIN_H2,
            Self::PlainWs => words::PLAIN_WS,
            Self::RawIroh => words::RAW_IROH,
            Self::Processes => words::PROCESSES,
            Self::Node => "node",
            Self::Hub => "hub",
            Self::Proxy => "proxy",
            Self::Callout => "callout",
            Self::FarCallout => crate::tables::callout::FAR,
            Self::RawSocket => crate::tables::callout::RAW,
            Self::RawUdp => crate::tables::callout::UDP,
            Self::RawEvented => "raw socket evented",
            Self::Operations => "operations",
        }
    }

    /// Its word on the command line.
    #[must_use]
    pub fn name(self) -> String {
        self.word().replace(' ', "-")
    }

    /// By its word on the command line.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let known = Self::ALL
            .into_iter()
            .chain([Self::Node, Self::Hub, Self::Proxy])
            .chain([Self::Callout, Self::FarCallout, Self::Operations])
            .chain([Self::RawSocket, Self::RawEvented, Self::RawUdp]);
        known.into_iter().find(|subject| subject.name() == name)
    }
}

/// Serves a subject until standard input ends.
///
/// # Errors
///
/// [`BenchError`], before it is ready.
pub async fn serve(subject: Subject, options: &Options) -> Result<(), BenchError> {
    let ready: Ready;
    let mut node = None;
    let mut processes = None;
    let mut hub = None;
    let mut raw = None;
    let mut agent = None;
    let mut far = None;
    match subject {
        Subject::FarCallout => {
            let served = callout::far::serve(options).await?;
            ready = served.ready.clone();
            far = Some(served);
        }
        Subject::RawUdp => ready = callout::udp::serve(options)?,
        Subject::Callout => {
            let served = callout::ends::serve(options.callout).await?;
            ready = served.ready.clone();
            agent = Some(served);
        }
        Subject::RawSocket => {
            let served = callout::raw::serve()?;
            ready = served.ready.clone();
            raw = Some(served);
        }
        Subject::RawEvented => {
            let served = callout::raw::serve_evented()?;
            ready = served.ready.clone();
            raw = Some(served);
        }
        Subject::Operations => ready = Ready::default(),
        Subject::PlainH2 => ready = plain_h2::serve(options).await?,
        Subject::PlainWs => ready = plain_ws::serve(options).await?,
        Subject::RawIroh => ready = raw_iroh::serve(options).await?,
        Subject::Proxy => ready = proxy::serve(options).await?,
        Subject::Hub => {
            let served = hub::serve(options).await?;
            ready = served.ready.clone();
            hub = Some(served);
        }
        Subject::Session(carrier) => {
            let served = session::serve(carrier, options).await?;
            ready = served.ready.clone();
            node = Some(served);
        }
        Subject::Node => {
            let served = session::serve_node(options).await?;
            ready = served.ready.clone();
            node = Some(served);
        }
        Subject::Processes => {
            let served = processes::serve(options).await?;
            ready = served.ready.clone();
            processes = Some(served);
        }
    }
    say_ready(&ready)?;
    until_stdin_ends().await;
    if let Some(node) = node {
        node.stop().await;
    }
    drop((processes, hub, raw, agent, far));
    Ok(())
}

/// Loads what [`serve`] serves: does the work of each line of standard input.
///
/// # Errors
///
/// [`BenchError`], before it is ready; work that fails is answered with the reason.
pub async fn load(subject: Subject, ready: &Ready, options: &Options) -> Result<(), BenchError> {
    let mut loading = match subject {
        Subject::Callout => {
            let far = callout::ends::Far::new(ready, options.callout).await?;
            Loading::Callout(Arc::new(tokio::sync::Mutex::new(far)))
        }
        Subject::FarCallout => {
            let far = callout::far::Far::new(ready, options).await?;
            Loading::FarCallout(Box::new(far))
        }
        Subject::RawSocket => Loading::Raw,
        Subject::RawUdp => Loading::RawUdp(callout::udp::Far::new(ready, options)?),
        Subject::RawEvented => Loading::RawEvented,
        Subject::Operations => Loading::Operations,
        _ => {
            let far = Far::reach(subject, ready, options).await?;
            Loading::Load(Box::new(load::Load::new(far)))
        }
    };
    say_ready(&serde_json::json!({}))?;
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let work: Work = serde_json::from_str(&line).map_err(failed("the work"))?;
        let done = match &mut loading {
            Loading::Load(load) => Box::pin(load.run(&work)).await,
            Loading::Callout(far) => {
                let far = far.clone();
                in_a_task(async move { far.lock().await.run(&work).await }).await
            }
            Loading::FarCallout(far) => Box::pin(far.run(&work)).await,
            Loading::RawUdp(far) => far.run(&work),
            Loading::Raw => callout::raw::load(ready, &work),
            Loading::RawEvented => in_a_task(callout::raw::load_evented(ready.clone(), work)).await,
            Loading::Operations => match &work {
                Work::Operation {
                    name,
                    threads,
                    seconds,
                } => Box::pin(callout::operations::run(name, *threads, *seconds)).await,
                _ => Err(BenchError::Unsupported("this subject does operations only")),
            },
        };
        say(&done.unwrap_or_else(|error| Measured {
            failed: Some(error.to_string()),
            ..Measured::default()
        }))?;
    }
    end_soon();
    if let Loading::Load(load) = loading {
        load.stop().await;
    }
    Ok(())
}

/// Does work where a program does its work: the main future of a runtime is special, and looks for events once more each time
/// it is woken.
async fn in_a_task(
    work: impl Future<Output = Result<Measured, BenchError>> + Send + 'static,
) -> Result<Measured, BenchError> {
    let done = tokio::spawn(work).await;
    done.unwrap_or(Err(BenchError::Unsupported("the work has panicked")))
}

/// Who does the work.
enum Loading {
    /// Echoes and streams.
    Load(Box<load::Load>),
    Callout(Arc<tokio::sync::Mutex<callout::ends::Far>>),
    FarCallout(Box<callout::far::Far>),
    Raw,
    RawEvented,
    RawUdp(callout::udp::Far),
    Operations,
}

#[derive(Serialize, Deserialize)]
struct IsReady<T> {
    ready: T,
}

fn say_ready(ready: &impl Serialize) -> Result<(), BenchError> {
    say(&IsReady { ready })
}

/// One JSON line on standard output, flushed.
fn say(value: &impl Serialize) -> Result<(), BenchError> {
    let mut out = std::io::stdout().lock();
    let line = serde_json::to_string(value).map_err(failed("writing"))?;
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(BenchError::io("standard output"))
}

async fn until_stdin_ends() {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(_)) = lines.next_line().await {}
    end_soon();
}

/// A party is not waited for by anybody any more: whatever holds it up, it ends.
fn end_soon() {
    std::thread::spawn(|| {
        std::thread::sleep(LAST_WORDS);
        std::process::exit(1);
    });
}

fn failed<E: std::fmt::Display>(what: &'static str) -> impl FnOnce(E) -> BenchError {
    move |error| BenchError::Part {
        part: what.to_owned(),
        reason: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subject_is_found_by_its_name() {
        for subject in Subject::ALL {
            assert_eq!(Subject::named(&subject.name()), Some(subject));
        }
        assert_eq!(Subject::PlainH2.name(), "plain-h2");
        assert_eq!(Subject::named("plain h2"), None);
    }
}
