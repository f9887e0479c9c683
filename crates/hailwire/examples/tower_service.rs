//! An agent that is a `tower::Service`, with a layer around it.
//!
//! What tower puts around a service (limits, time-outs, metrics) goes around an agent too. Here a
//! layer lets two calls run at once; ten are made. The layer makes the others wait, while
//! `Agent::max_concurrency` would have the node send them to another member of the name, or refuse
//! them with `resource_exhausted` where none has room.
//!
//! ```text
//! cargo run -p hailwire --example tower_service
//! ```

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use hailwire::{Agent, Request, Response, Status, agent};
use tower::{Layer, limit::ConcurrencyLimitLayer, service_fn};

mod common;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let nodes = common::two_nodes().await?;
    let meter = Arc::new(Meter::default());
    let gauge = meter.clone();
    let resize = service_fn(move |request| resize(request, gauge.clone()));
    // The service is cloned for each call; the clones share the layer's limit.
    let limited = ConcurrencyLimitLayer::new(2).layer(resize);
    let laptop = nodes.laptop.client();
    let _serving = laptop
        .serve(Agent::new("resize")?, agent::from_service(limited))
        .await?;

    let mut calls = tokio::task::JoinSet::new();
    for i in 0..10 {
        let desk = nodes.desk.client();
        calls.spawn(async move {
            let mut answer = desk
                .call("resize@laptop")
                .body(format!("photo {i}"))
                .send()
                .await?;
            answer.bytes(1024).await
        });
    }
    while let Some(answer) = calls.join_next().await {
        println!("{}", String::from_utf8_lossy(&answer??));
    }
    println!("at most {} at once", meter.most.load(Ordering::Relaxed));
    nodes.shutdown().await;
    Ok(())
}

async fn resize(mut request: Request, meter: Arc<Meter>) -> Result<Response, Status> {
    let running = meter.running.fetch_add(1, Ordering::Relaxed) + 1;
    meter.most.fetch_max(running, Ordering::Relaxed);
    let name = request.body_mut().bytes(1024).await?;
    // Stands for the work.
    tokio::time::sleep(Duration::from_millis(50)).await;
    meter.running.fetch_sub(1, Ordering::Relaxed);
    let text = format!("{} is smaller now", String::from_utf8_lossy(&name));
    Ok(Response::new(text))
}

/// Counts the calls that run.
#[derive(Default)]
struct Meter {
    running: AtomicU32,
    most: AtomicU32,
}
