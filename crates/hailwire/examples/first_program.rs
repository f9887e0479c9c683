//! The program of docs/guide/rust-library.md: it attaches to the machine's node, serves an agent and calls it.

use std::error::Error;

use hailwire::{Agent, Client, DataDir, Request, Response};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Attach to the node that `hail up -d` runs.
    let data = DataDir::from_env().ok_or("no home folder")?;
    let client = Client::attach(&data).await?;

    // Serve an agent, for as long as `serving` lives.
    let shout = |mut request: Request| async move {
        let text = request.body_mut().bytes(1 << 20).await?;
        Ok(Response::new(text.to_ascii_uppercase()))
    };
    let serving = client.serve(Agent::new("shout")?, shout).await?;

    // Call it, as every program of this machine and of its peers can.
    let mut answer = client.call("shout").body("one two").send().await?;
    println!("{}", String::from_utf8_lossy(&answer.bytes(1024).await?));
    drop(serving);
    Ok(())
}
