//! The parties of a measurement, each a process of its own.
//!
//! A part prints one JSON line when it is ready. A part that loads then reads one [`Work`] per line
//! and prints one [`Measured`] for each; every part ends when its standard input does, so that none
//! outlives the suite, however that ends.

use std::path::PathBuf;

use hailwire::{Client, Config, DataDir, Node, admin, admin::method};
use iroh::{
    Endpoint, EndpointAddr, EndpointId, RelayMode, TransportAddr,
    endpoint::{QuicTransportConfig, presets},
};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::{
    BenchError,
    load::{self, Measured, Subject, Work},
};

/// The protocol of the raw subject.
pub const ALPN: &[u8] = b"hailwire-bench";

/// The name of the node with the agents.
const FAR: &str = "far";

/// Which party a process plays. Passed as one JSON argument.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Raw iroh, serving.
    IrohServe,
    /// Raw iroh, loading.
    IrohLoad {
        /// What [`Ready`] of the serving part said.
        target: Ready,
    },
    /// A node and nothing else.
    Node {
        /// Its data folder.
        data: PathBuf,
        /// Whose ticket to use, if any.
        join: Option<String>,
    },
    /// A node with the agents in its own process.
    EmbeddedServe {
        /// Its data folder.
        data: PathBuf,
    },
    /// A node whose own process loads.
    EmbeddedLoad {
        /// Its data folder.
        data: PathBuf,
        /// The far node's ticket.
        join: String,
    },
    /// The agents, attached to a node.
    AttachedServe {
        /// That node's data folder.
        data: PathBuf,
    },
    /// A load, attached to a node.
    AttachedLoad {
        /// That node's data folder.
        data: PathBuf,
    },
    /// Many nodes in one process, all joined to one far node.
    Crowd {
        /// Folder for their data folders.
        data: PathBuf,
        /// The far node's ticket.
        join: String,
        /// How many.
        count: u32,
    },
}

/// What a part says when it is ready.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Ready {
    /// The key of its node or endpoint.
    pub id: String,
    /// Where to reach it.
    pub address: String,
    /// A ticket to join it, of 1,000 uses.
    pub ticket: String,
}

/// Plays a part until standard input ends.
///
/// # Errors
///
/// [`BenchError`].
pub async fn play(part: Part) -> Result<(), BenchError> {
    match part {
        Part::IrohServe => {
            let endpoint = endpoint().await?;
            let address = endpoint.bound_sockets().first().map(ToString::to_string);
            let id = data_id(endpoint.id());
            let accepting = endpoint.clone();
            let serve = tokio::spawn(async move {
                while let Some(incoming) = accepting.accept().await {
                    if let Ok(connection) = incoming.await {
                        tokio::spawn(load::serve_iroh(connection));
                    }
                }
            });
            ready(&Ready {
                id,
                address: address.unwrap_or_default(),
                ..Ready::default()
            })?;
            until_stdin_ends().await;
            serve.abort();
            endpoint.close().await;
        }
        Part::IrohLoad { target } => {
            let endpoint = endpoint().await?;
            let id: EndpointId = target.id.parse().map_err(failed("the key"))?;
            let address = target.address.parse().map_err(failed("the address"))?;
            let far = EndpointAddr::from_parts(id, [TransportAddr::Ip(address)]);
            let connection = endpoint
                .connect(far, ALPN)
                .await
                .map_err(failed("dialling"))?;
            ready(&Ready::default())?;
            work(&Subject::Iroh(connection)).await?;
            endpoint.close().await;
        }
        Part::Node { data, join } => {
            let name = if join.is_none() { Some(FAR) } else { None };
            let node = start(data, name).await?;
            if let Some(ticket) = join {
                join_by(&node.client(), &ticket).await?;
            }
            ready(&introduce(&node).await?)?;
            until_stdin_ends().await;
            node.shutdown(std::time::Duration::ZERO).await;
        }
        Part::EmbeddedServe { data } => {
            let node = start(data, Some(FAR)).await?;
            let _serving = load::serve_agents(&node.client())
                .await
                .map_err(failed("serving"))?;
            ready(&introduce(&node).await?)?;
            until_stdin_ends().await;
            node.shutdown(std::time::Duration::ZERO).await;
        }
        Part::EmbeddedLoad { data, join } => {
            let node = start(data, None).await?;
            join_by(&node.client(), &join).await?;
            ready(&Ready::default())?;
            work(&Subject::hailwire(node.client(), FAR)).await?;
            node.shutdown(std::time::Duration::ZERO).await;
        }
        Part::AttachedServe { data } => {
            let client = attach(data).await?;
            let _serving = load::serve_agents(&client)
                .await
                .map_err(failed("serving"))?;
            ready(&Ready::default())?;
            until_stdin_ends().await;
        }
        Part::AttachedLoad { data } => {
            let client = attach(data).await?;
            ready(&Ready::default())?;
            work(&Subject::hailwire(client, FAR)).await?;
        }
        Part::Crowd { data, join, count } => {
            let mut nodes = Vec::new();
            for i in 0..count {
                let node = start(data.join(i.to_string()), None).await?;
                join_by(&node.client(), &join).await?;
                nodes.push(node);
            }
            ready(&Ready::default())?;
            until_stdin_ends().await;
        }
    }
    Ok(())
}

/// Does one piece of work per line of standard input.
async fn work(subject: &Subject) -> Result<(), BenchError> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let work: Work = serde_json::from_str(&line).map_err(failed("the order"))?;
        let measured: Measured = load::run(subject, work).await?;
        say(&measured)?;
    }
    Ok(())
}

/// A bare endpoint on loopback, with the windows that a node has.
///
/// # Errors
///
/// It cannot be bound.
pub async fn endpoint() -> Result<Endpoint, BenchError> {
    // The windows of a node, so that both do the same work.
    let window = |bytes: u32| iroh::endpoint::VarInt::from_u32(bytes);
    let transport = QuicTransportConfig::builder()
        .max_concurrent_bidi_streams(window(1024))
        .stream_receive_window(window(2 * 1024 * 1024))
        .receive_window(window(8 * 1024 * 1024))
        .send_window(8 * 1024 * 1024)
        .build();
    Endpoint::builder(presets::Minimal)
        .relay_mode(RelayMode::Disabled)
        .alpns(vec![ALPN.to_vec()])
        .transport_config(transport)
        .clear_ip_transports()
        .bind_addr("127.0.0.1:0")
        .map_err(failed("binding"))?
        .bind()
        .await
        .map_err(failed("binding"))
}

async fn start(data: PathBuf, name: Option<&str>) -> Result<Node, BenchError> {
    let mut config = Config::default();
    config.node.name = name.and_then(|name| name.parse().ok());
    config.listen.udp = vec![([127, 0, 0, 1], 0).into()];
    Node::builder()
        .data_dir(DataDir::new(data))
        .config(config)
        .start()
        .await
        .map_err(failed("starting a node"))
}

async fn attach(data: PathBuf) -> Result<Client, BenchError> {
    Client::attach(&DataDir::new(data))
        .await
        .map_err(failed("attaching"))
}

async fn introduce(node: &Node) -> Result<Ready, BenchError> {
    let invite = admin::Invite {
        uses: 1000,
        expires_s: 3600,
        allow: Vec::new(),
    };
    let invited: admin::Invited = node
        .client()
        .admin(method::INVITE, &invite)
        .await
        .map_err(failed("inviting"))?;
    Ok(Ready {
        id: node.id().to_string(),
        ticket: invited.ticket,
        ..Ready::default()
    })
}

async fn join_by(client: &Client, ticket: &str) -> Result<(), BenchError> {
    let join = admin::Join {
        ticket: ticket.to_owned(),
        alias: String::new(),
    };
    let _: admin::Joined = client
        .admin(method::JOIN, &join)
        .await
        .map_err(failed("joining"))?;
    Ok(())
}

fn data_id(id: EndpointId) -> String {
    id.to_string()
}

fn ready(ready: &Ready) -> Result<(), BenchError> {
    say(ready)
}

/// One JSON line on standard output, flushed.
fn say(value: &impl Serialize) -> Result<(), BenchError> {
    use std::io::Write;

    let mut out = std::io::stdout().lock();
    let line = serde_json::to_string(value).map_err(failed("writing"))?;
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(BenchError::io("standard output"))
}

async fn until_stdin_ends() {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(_)) = lines.next_line().await {}
}

fn failed<E: std::fmt::Display>(what: &'static str) -> impl FnOnce(E) -> BenchError {
    move |error| BenchError::Part {
        part: what.to_owned(),
        reason: error.to_string(),
    }
}
