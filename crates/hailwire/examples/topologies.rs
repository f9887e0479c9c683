//! Star, hierarchy, ring and mesh: four shapes of agents that work together, each a composition of gather and pipeline.
//!
//! ```text
//! cargo run -p hailwire --example topologies
//! ```
//!
//! Eight agents have a number each, from 1 to 8, and every shape finds the sum of them. What is left of a deadline goes with each call from agent to
//! agent, and a cancel too. One node is enough to see it; with `agent@node` in the calls it is the same over many machines.

use std::{error::Error, time::Duration};

use bytes::Bytes;
use futures_util::stream;
use hailwire::{
    Agent, Client, Config, DataDir, Node, Request, Response, ServeHandle, Status,
    coordination::{Stage, gather, pipeline},
};

const AGENTS: u32 = 8;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let mut config = Config::default();
    config.listen.udp = vec![([127, 0, 0, 1], 0).into()];
    let builder = Node::builder()
        .data_dir(DataDir::new(folder.path()))
        .config(config);
    let node = builder.start().await?;
    let client = node.client();
    let mut serving = Vec::new();
    for number in 1..=AGENTS {
        serving.push(serve(&client, &leaf(number), move |_| async move { Ok(number) }).await?);
        // What comes along the ring, and one's own number.
        let add = move |sum| async move { Ok(sum + number) };
        serving.push(serve(&client, &format!("ring-{number}"), add).await?);
        // In a mesh each asks all.
        let asks = client.clone();
        let ask_all = move |_| sum_of(asks.clone(), (1..=AGENTS).map(leaf).collect());
        serving.push(serve(&client, &format!("mesh-{number}"), ask_all).await?);
    }
    for (name, leaves) in [("lead-low", 1..=4), ("lead-high", 5..=8)] {
        let asks = client.clone();
        let leaves: Vec<String> = leaves.map(leaf).collect();
        let lead = move |_| sum_of(asks.clone(), leaves.clone());
        serving.push(serve(&client, name, lead).await?);
    }

    // Star: one asks all.
    let leaves = (1..=AGENTS).map(leaf).collect();
    println!("star: {}", sum_of(client.clone(), leaves).await?);

    // Hierarchy: one asks those that ask others.
    let leads = ["lead-low", "lead-high"].map(str::to_owned).to_vec();
    println!("hierarchy: {}", sum_of(client.clone(), leads).await?);

    // Ring: each hands on to the next what it was handed, and the last to whoever began.
    let stages = (1..=AGENTS).map(|number| {
        let client = client.clone();
        Stage::new(move |sum| client.call(format!("ring-{number}")).body(sum))
    });
    let mut sums = pipeline(stream::iter([Bytes::from("0")]), stages);
    while let Some(sum) = sums.next().await {
        println!("ring: {}", number_in(&sum.outcome?)?);
    }

    // Mesh: each asks all, at once, and they agree.
    let calls = (1..=AGENTS).map(|number| client.call(format!("mesh-{number}")).body("0"));
    let calls = calls.map(|call| call.deadline(Duration::from_secs(5)));
    let mut agreed = Vec::new();
    for reply in gather(calls).all().await {
        agreed.push(number_in(&reply.outcome?)?);
    }
    agreed.dedup();
    println!("mesh: {agreed:?}");

    drop(serving);
    node.shutdown(Duration::from_secs(1)).await;
    Ok(())
}

fn leaf(number: u32) -> String {
    format!("leaf-{number}")
}

fn number_in(text: &Bytes) -> Result<u32, Status> {
    let number = std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok());
    number.ok_or_else(|| Status::new(hailwire::Code::InvalidArgument, "no number"))
}

/// Asks all of these agents at once, and adds up what they answer.
async fn sum_of(client: Client, agents: Vec<String>) -> Result<u32, Status> {
    let calls = agents.iter().map(|agent| client.call(agent).body("0"));
    let mut sum = 0;
    for reply in gather(calls).all().await {
        sum += number_in(&reply.outcome?)?;
    }
    Ok(sum)
}

/// An agent that answers a number with a number.
async fn serve<F>(
    client: &Client,
    name: &str,
    answer: impl Fn(u32) -> F + Send + Sync + Clone + 'static,
) -> Result<ServeHandle, Box<dyn Error>>
where
    F: Future<Output = Result<u32, Status>> + Send,
{
    let handler = move |request: Request| {
        let answer = answer.clone();
        async move {
            let asked = number_in(&request.into_body().bytes(100).await?)?;
            Ok(Response::new(answer(asked).await?.to_string()))
        }
    };
    Ok(client.serve(Agent::new(name)?, handler).await?)
}
