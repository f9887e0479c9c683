//! A program attaches to the node of its machine and serves an agent there.
//!
//! This is the usual way: one node per machine (`hail up -d`), and any number of programs that
//! attach to its Unix socket. The program needs no key, no port and no configuration of its own.
//!
//! ```text
//! hail up -d
//! cargo run -p hailwire --example attach_agent     # in one terminal
//! hail call shout hello                            # in another
//! ```
//!
//! Where no node runs, the example starts one of its own in a temporary folder, attaches to that in
//! the same way, calls itself once and ends.

use std::{error::Error, time::Duration};

use hailwire::{
    Agent, Client, Config, DataDir, Node, Request, Response, Status, client::AttachError,
};

/// Largest text that the agent takes, in bytes.
const MAX_TEXT: usize = 64 * 1024;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let data = DataDir::from_env().ok_or("no data folder: set HAIL_DATA or HOME")?;
    match Client::attach(&data).await {
        Ok(client) => serve_until_stopped(&client).await,
        Err(error @ AttachError::NotRunning { .. }) => {
            println!("{error}; starting one for this example");
            with_own_node().await
        }
        Err(error) => Err(error.into()),
    }
}

async fn serve_until_stopped(client: &Client) -> Result<(), Box<dyn Error>> {
    let mut serving = client.serve(agent()?, shout).await?;
    println!("serving `{}`; try: hail call shout hello", serving.name());
    tokio::select! {
        stopped = tokio::signal::ctrl_c() => stopped?,
        why = serving.closed() => println!("the node is gone: {why}"),
    }
    // Dropping `serving` takes the offer back.
    Ok(())
}

async fn with_own_node() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let data = DataDir::new(folder.path());
    let mut config = Config::default();
    config.listen.udp = vec![([127, 0, 0, 1], 0).into()];
    let node = Node::builder()
        .data_dir(data.clone())
        .config(config)
        .start()
        .await?;

    let client = Client::attach(&data).await?;
    let serving = client.serve(agent()?, shout).await?;
    println!("serving `{}`", serving.name());
    let mut answer = client.call("shout").body("hello").send().await?;
    let text = answer.bytes(MAX_TEXT).await?;
    println!("shout answers: {}", String::from_utf8_lossy(&text));
    drop(serving);
    node.shutdown(Duration::from_secs(1)).await;
    Ok(())
}

/// What others see of the agent; `hail agents` lists it.
fn agent() -> Result<Agent, Box<dyn Error>> {
    let agent = Agent::new("shout")?
        .describe("returns a text in capitals")
        .tag("text")
        .version("1");
    Ok(agent)
}

async fn shout(mut request: Request) -> Result<Response, Status> {
    let text = request.body_mut().bytes(MAX_TEXT).await?;
    let text = String::from_utf8_lossy(&text).to_uppercase();
    Ok(Response::new(text).content_type("text/plain"))
}
