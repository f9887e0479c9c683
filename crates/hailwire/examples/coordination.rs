//! Agents that work together: ask all, wait for a quorum, work through a list, pass work from stage to stage.
//!
//! ```text
//! cargo run -p hailwire --example coordination
//! ```
//!
//! One node is enough to see it; with `agent@node` in the calls it is the same over many machines. To lead by lease takes a hub:
//! `docs/guide/coordination.md` has that.

use std::{error::Error, time::Duration};

use bytes::Bytes;
use futures_util::stream;
use hailwire::{
    Agent, Client, Config, DataDir, Node, Request, Response, ServeHandle, Status,
    coordination::{MapLimits, Stage, gather, map, pipeline},
};

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
    for name in ["north", "east", "south", "upper", "exclaim"] {
        serving.push(serve(&client, name).await?);
    }

    // Fan-out and gather: all answers, in the order of the calls.
    let calls = ["north", "east", "south"].map(|to| client.call(to).body("load?"));
    for reply in gather(calls).all().await {
        println!("{}: {}", reply.to, text(&reply.outcome?));
    }

    // Broadcast with quorum: two of three are enough, and the third is cancelled when `vote` goes.
    let calls = ["north", "east", "south"].map(|to| client.call(to).body("merge?"));
    let vote = gather(calls).quorum(2).await?;
    println!("{} agreed", vote.agreed.len());
    drop(vote);

    // Map with back-pressure: two in flight, and no further word is taken before there is a place for it.
    let caller = client.clone();
    let words = ["one", "two", "three", "four"];
    let calls = words.map(move |word| caller.call("upper").body(word));
    let limits = MapLimits {
        in_flight: 2,
        ..MapLimits::default()
    };
    let mut replies = map(stream::iter(calls), limits);
    while let Some(reply) = replies.next().await {
        println!("{} is {}", reply.index, text(&reply.outcome?));
    }

    // Pipeline: each stage works on what the one before has answered.
    let stages = ["upper", "exclaim"].map(|to| {
        let client = client.clone();
        Stage::new(move |body| client.call(to).body(body))
    });
    let mut out = pipeline(stream::iter(["hail", "wire"].map(Bytes::from)), stages);
    while let Some(item) = out.next().await {
        println!("{}", text(&item.outcome?));
    }
    node.shutdown(Duration::from_secs(1)).await;
    Ok(())
}

fn text(bytes: &Bytes) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// An agent that does what its name says, or agrees.
async fn serve(client: &Client, name: &'static str) -> Result<ServeHandle, Box<dyn Error>> {
    let handler = move |mut request: Request| async move {
        let body = request.body_mut().bytes(1024).await?;
        let answer = match name {
            "upper" => body.to_ascii_uppercase(),
            "exclaim" => [&body[..], b"!"].concat(),
            _ => b"yes".to_vec(),
        };
        Ok::<_, Status>(Response::new(answer))
    };
    Ok(client.serve(Agent::new(name)?, handler).await?)
}
