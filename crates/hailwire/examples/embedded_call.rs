//! Two nodes in one process, a ticket, and one call between them.
//!
//! A node is what `hail up` runs; here a program embeds two of them. `laptop` offers the agent
//! `word-count` and writes a ticket. `desk` uses the ticket, after which both trust each other, and
//! calls the agent by name over one encrypted UDP tunnel.
//!
//! ```text
//! cargo run -p hailwire --example embedded_call
//! ```

use std::{error::Error, net::SocketAddr, path::Path, time::Duration};

use hailwire::{
    Agent, Config, DataDir, Node, Request, Response,
    admin::{InviteAnswer, InviteRequest, JoinAnswer, JoinRequest, method},
};

/// Largest text that the agent counts, in bytes.
const MAX_TEXT: usize = 1 << 20;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let laptop = start(folder.path(), "laptop").await?;
    let desk = start(folder.path(), "desk").await?;

    // Offer an agent. It is offered for as long as `serving` lives.
    let agent = Agent::new("word-count")?.describe("counts the words of a text");
    let serving = laptop.client().serve(agent, word_count).await?;

    // Make the two trust each other: one writes a ticket, the other uses it.
    let invite = InviteRequest {
        uses: 1,
        expires_s: 60,
        allow: Vec::new(),
        offer: Vec::new(),
    };
    let invited: InviteAnswer = laptop.client().admin(method::INVITE, &invite).await?;
    let join = JoinRequest {
        ticket: invited.ticket,
        ..JoinRequest::default()
    };
    let joined: JoinAnswer = desk.client().admin(method::JOIN, &join).await?;
    println!("joined: {joined:?}");

    // Call the agent by name.
    let mut answer = desk
        .client()
        .call("word-count@laptop")
        .body("the quick brown fox")
        .deadline(Duration::from_secs(5))
        .send()
        .await?;
    let count = answer.bytes(MAX_TEXT).await?;
    println!(
        "word-count@laptop answers: {}",
        String::from_utf8_lossy(&count)
    );

    drop(serving);
    desk.shutdown(Duration::from_secs(1)).await;
    laptop.shutdown(Duration::from_secs(1)).await;
    Ok(())
}

/// The agent: an asynchronous function from a request to a response.
async fn word_count(mut request: Request) -> Result<Response, hailwire::Status> {
    let text = request.body_mut().bytes(MAX_TEXT).await?;
    let words = String::from_utf8_lossy(&text).split_whitespace().count();
    Ok(Response::new(words.to_string()).content_type("text/plain"))
}

/// A node of this name on loopback, with its key and trust in a folder of its own.
async fn start(folder: &Path, name: &str) -> Result<Node, Box<dyn Error>> {
    let mut config = Config::default();
    config.node.name = Some(name.parse()?);
    config.listen.udp = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    let node = Node::builder()
        .data_dir(DataDir::new(folder.join(name)))
        .config(config)
        .start()
        .await?;
    println!("{name} is {}", node.id());
    Ok(node)
}
