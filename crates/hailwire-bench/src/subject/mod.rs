//! Subjects: programs that serve and programs that load, each a process of its own.
//!
//! A program that serves prints one JSON line, `{"ready":{"address":"ip:port"}}`, and runs until its
//! standard input ends. A program that loads is given that, prints `{"ready":{}}`, and then answers
//! each line of [`WorkRequest`] with a line of [`MeasuredWork`]. Ours are reached by
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
//! | `callout` | a host and an agent of Agent Protocol v2, on one node and on two, and their single operations |
//! | `load` | how work is done, the same for all |
//! | `connections` | the serving side of each, connections to it, and the work on one |
//! | `subject_setup` | the options of a subject, and what a serving one reports |

mod callout;
mod connections;
mod hub;
pub(crate) mod load;
mod pattern;
mod plain_h2;
mod plain_ws;
mod processes;
mod proxy;
mod raw_iroh;
mod session;
mod subject_setup;
mod tls;

use std::{io::Write, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader};

pub use callout::CalloutWire;
pub use session::SessionCarrier;
pub use subject_setup::{CongestionControl, NodePath, ReadyAddress, SubjectSetup};

use connections::{
    PacketCounts, PreparedTarget, StreamProgress, SubjectConnection, SubjectTarget, any_like,
};

use crate::{
    BenchError,
    tables::subject as words,
    work::{MeasuredWork, WorkRequest},
};

/// How long a program may take to end after its standard input has.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// The subjects that this program brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A session between embedded nodes.
    Session(SessionCarrier),
    /// hyper.
    PlainH2,
    /// tungstenite.
    PlainWs,
    /// iroh.
    RawIroh,
    /// Through two nodes, from program to program.
    Processes,
    /// A node alone, as used by [`Subject::Processes`].
    Node,
    /// A hub: not measured itself, used to reach a subject.
    Hub,
    /// A TCP relay proxy: not measured itself, used to reach a subject.
    Proxy,
    /// A host and an agent of Agent Protocol v2.
    Callout,
    /// The same with a node beside each.
    RemoteCallout,
    /// Bytes back and forth over a Unix socket, with blocking calls.
    RawSocket,
    /// The same bytes on an event loop.
    RawEvented,
    /// Datagrams back and forth.
    RawUdp,
    /// Single operations of callouts: the serving program does nothing.
    Operations,
}

impl Subject {
    /// Those that can be compared.
    pub const ALL: [Self; 8] = [
        Self::Session(SessionCarrier::Quic),
        Self::Session(SessionCarrier::H2),
        Self::Session(SessionCarrier::Ws),
        Self::Session(SessionCarrier::Auto),
        Self::RawIroh,
        Self::PlainH2,
        Self::PlainWs,
        Self::Processes,
    ];

    /// Its name in the cells of a result.
    #[must_use]
    pub fn cell_name(self) -> &'static str {
        match self {
            Self::Session(SessionCarrier::Quic) => words::QUIC,
            Self::Session(SessionCarrier::H2) => words::H2,
            Self::Session(SessionCarrier::Ws) => words::WS,
            Self::Session(SessionCarrier::Auto) => words::AUTO,
            Self::PlainH2 => words::PLAIN_H2,
            Self::PlainWs => words::PLAIN_WS,
            Self::RawIroh => words::RAW_IROH,
            Self::Processes => words::PROCESSES,
            Self::Node => "node",
            Self::Hub => "hub",
            Self::Proxy => "proxy",
            Self::Callout => "callout",
            Self::RemoteCallout => crate::tables::callout::FAR,
            Self::RawSocket => crate::tables::callout::RAW,
            Self::RawUdp => crate::tables::callout::UDP,
            Self::RawEvented => "raw socket evented",
            Self::Operations => "operations",
        }
    }

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> String {
        self.cell_name().replace(' ', "-")
    }

    /// The subject of this name on the command line.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let known = Self::ALL
            .into_iter()
            .chain([Self::Node, Self::Hub, Self::Proxy])
            .chain([Self::Callout, Self::RemoteCallout, Self::Operations])
            .chain([Self::RawSocket, Self::RawEvented, Self::RawUdp]);
        known.into_iter().find(|subject| subject.name() == name)
    }
}

/// Serves a subject until standard input ends.
///
/// # Errors
///
/// [`BenchError`], before it is ready.
pub async fn serve(subject: Subject, options: &SubjectSetup) -> Result<(), BenchError> {
    let ready: ReadyAddress;
    let mut node = None;
    let mut processes = None;
    let mut hub = None;
    let mut raw = None;
    let mut agent = None;
    let mut target = None;
    match subject {
        Subject::RemoteCallout => {
            let served = callout::remote::serve(options).await?;
            ready = served.ready.clone();
            target = Some(served);
        }
        Subject::RawUdp => ready = callout::udp::serve(options)?,
        Subject::Callout => {
            let served = callout::direct::serve(options.callout).await?;
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
        Subject::Operations => ready = ReadyAddress::default(),
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
    drop((processes, hub, raw, agent, target));
    Ok(())
}

/// Loads what [`serve`] serves: does the work of each line of standard input.
///
/// # Errors
///
/// [`BenchError`], before it is ready; work that fails is answered with the reason.
pub async fn load(
    subject: Subject,
    ready: &ReadyAddress,
    options: &SubjectSetup,
) -> Result<(), BenchError> {
    let mut loading = match subject {
        Subject::Callout => {
            let target = callout::direct::CalloutTarget::new(ready, options.callout).await?;
            LoadTarget::Callout(Arc::new(tokio::sync::Mutex::new(target)))
        }
        Subject::RemoteCallout => {
            let target = callout::remote::RemoteCalloutTarget::new(ready, options).await?;
            LoadTarget::RemoteCallout(Box::new(target))
        }
        Subject::RawSocket => LoadTarget::Raw,
        Subject::RawUdp => LoadTarget::RawUdp(callout::udp::UdpPeer::new(ready, options)?),
        Subject::RawEvented => LoadTarget::RawEvented,
        Subject::Operations => LoadTarget::Operations,
        _ => {
            let target = SubjectTarget::reach(subject, ready, options).await?;
            LoadTarget::Load(Box::new(load::SubjectLoad::new(target)))
        }
    };
    say_ready(&serde_json::json!({}))?;
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let work: WorkRequest = serde_json::from_str(&line).map_err(failed("parsing the work"))?;
        let done = match &mut loading {
            LoadTarget::Load(load) => Box::pin(load.run(&work)).await,
            LoadTarget::Callout(target) => {
                let target = target.clone();
                in_a_task(async move { target.lock().await.run(&work).await }).await
            }
            LoadTarget::RemoteCallout(target) => Box::pin(target.run(&work)).await,
            LoadTarget::RawUdp(target) => target.run(&work),
            LoadTarget::Raw => callout::raw::load(ready, &work),
            LoadTarget::RawEvented => {
                in_a_task(callout::raw::load_evented(ready.clone(), work)).await
            }
            LoadTarget::Operations => match &work {
                WorkRequest::Operation {
                    name,
                    threads,
                    seconds,
                } => Box::pin(callout::operations::run(name, *threads, *seconds)).await,
                _ => Err(BenchError::Unsupported("this subject only does operations")),
            },
        };
        say(&done.unwrap_or_else(|error| MeasuredWork {
            failed: Some(error.to_string()),
            ..MeasuredWork::default()
        }))?;
    }
    end_soon();
    if let LoadTarget::Load(load) = loading {
        load.stop().await;
    }
    Ok(())
}

/// Does work in a task, as programs do: the main future of a runtime is special, and polls for events once more each time
/// it is woken.
async fn in_a_task(
    work: impl Future<Output = Result<MeasuredWork, BenchError>> + Send + 'static,
) -> Result<MeasuredWork, BenchError> {
    let done = tokio::spawn(work).await;
    done.unwrap_or(Err(BenchError::Unsupported("the work panicked")))
}

/// What does the work of a loading program.
enum LoadTarget {
    /// Echoes and streams.
    Load(Box<load::SubjectLoad>),
    Callout(Arc<tokio::sync::Mutex<callout::direct::CalloutTarget>>),
    RemoteCallout(Box<callout::remote::RemoteCalloutTarget>),
    Raw,
    RawEvented,
    RawUdp(callout::udp::UdpPeer),
    Operations,
}

#[derive(Serialize, Deserialize)]
struct ReadyMessage<T> {
    ready: T,
}

fn say_ready(ready: &impl Serialize) -> Result<(), BenchError> {
    say(&ReadyMessage { ready })
}

/// One JSON line on standard output, flushed.
fn say(value: &impl Serialize) -> Result<(), BenchError> {
    let mut out = std::io::stdout().lock();
    let line = serde_json::to_string(value).map_err(failed("writing"))?;
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(BenchError::io("writing standard output"))
}

async fn until_stdin_ends() {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(_)) = lines.next_line().await {}
    end_soon();
}

/// Nothing waits for this process any more: it ends soon, whatever still blocks it.
fn end_soon() {
    std::thread::spawn(|| {
        std::thread::sleep(END_TIMEOUT);
        std::process::exit(1);
    });
}

fn failed<E: std::fmt::Display>(what: &'static str) -> impl FnOnce(E) -> BenchError {
    move |error| BenchError::Failed {
        what: what.to_owned(),
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
