//! A deadline that holds and a cancel that arrives: both reach the handler by dropping its future.
//!
//! The agent works without end and says so when it is stopped. The first call gives it 200 ms. The
//! second has no deadline, but its caller loses interest and drops the call. No code in the agent
//! asks whether it should stop: what a future holds is released when it is dropped, wherever it
//! waits.
//!
//! ```text
//! cargo run -p hailwire --example deadline_and_cancel
//! ```

use std::{
    error::Error,
    time::{Duration, Instant},
};

use hailwire::{Agent, Request, Response, Status};
use tokio::sync::mpsc;

mod common;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let nodes = common::two_nodes().await?;
    let (tell, mut told) = mpsc::unbounded_channel();
    let work = move |_: Request| work(tell.clone());
    let laptop = nodes.laptop.client();
    let _serving = laptop.serve(Agent::new("work")?, work).await?;
    let desk = nodes.desk.client();

    println!("calling with 200 ms");
    let begun = Instant::now();
    let call = desk
        .call("work@laptop")
        .deadline(Duration::from_millis(200));
    match call.send().await {
        Ok(_) => println!("an answer, which this agent never gives"),
        Err(status) => println!("after {} ms: {status}", begun.elapsed().as_millis()),
    }
    println!("the agent {}", told.recv().await.unwrap_or_default());
    println!("the agent {}", told.recv().await.unwrap_or_default());

    println!("calling without a deadline");
    tokio::select! {
        _ = desk.call("work@laptop").send() => println!("an answer, which this agent never gives"),
        began = told.recv() => println!("the agent {}; giving up", began.unwrap_or_default()),
    }
    // `select!` has dropped the call.
    println!("the agent {}", told.recv().await.unwrap_or_default());

    nodes.shutdown().await;
    Ok(())
}

async fn work(tell: mpsc::UnboundedSender<&'static str>) -> Result<Response, Status> {
    let _stopped = OnDrop(tell.clone());
    // The receiver is there as long as the example.
    let _ = tell.send("began");
    std::future::pending().await
}

/// Stands for whatever a handler holds: a lock, a file, a child process.
struct OnDrop(mpsc::UnboundedSender<&'static str>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        let _ = self.0.send("was stopped and has let go of what it held");
    }
}
