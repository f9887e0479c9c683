//! Bytes both ways at once, and what holds back a writer whose reader is slow.
//!
//! First a raw stream: the caller sends a word, reads the answer to it, and sends the next.
//! Then an answer without end: the agent writes as fast as it is let, the caller reads one chunk
//! and pauses. What the agent has written stops at what fits between the two (a channel of four
//! chunks and the flow-control windows of the tunnel) and goes on when the caller reads on.
//!
//! ```text
//! cargo run -p hailwire --example streamed_answer
//! ```

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use hailwire::{Agent, Body, Client, Request, Response};

mod common;

/// One chunk of the endless answer, in bytes.
const CHUNK: usize = 64 * 1024;

const MIB: u64 = 1024 * 1024;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let nodes = common::two_nodes().await?;
    converse(&nodes.laptop.client(), &nodes.desk.client()).await?;
    read_slowly(&nodes.laptop.client(), &nodes.desk.client()).await?;
    nodes.shutdown().await;
    Ok(())
}

/// A conversation: each answer is read before the next word is sent.
async fn converse(laptop: &Client, desk: &Client) -> Result<(), Box<dyn Error>> {
    let capitals = |request: Request| async move {
        let mut words = request.into_body();
        let (out, body) = Body::channel(4);
        tokio::spawn(async move {
            while let Some(word) = words.chunk().await? {
                out.send(word.to_ascii_uppercase()).await?;
            }
            out.finish().await
        });
        Ok(Response::new(body))
    };
    let _serving = laptop.serve(Agent::new("capitals")?, capitals).await?;

    let mut stream = desk.stream("capitals@laptop").open().await?;
    for word in ["one", "two", "three"] {
        stream.send.send(word).await?;
        let answer = stream.recv.chunk().await?.unwrap_or_default();
        println!("{word} -> {}", String::from_utf8_lossy(&answer));
    }
    stream.send.finish().await?;
    assert!(stream.recv.chunk().await?.is_none());
    Ok(())
}

/// A reader that pauses, and a writer that has to wait for it.
async fn read_slowly(laptop: &Client, desk: &Client) -> Result<(), Box<dyn Error>> {
    let written = Arc::new(AtomicU64::new(0));
    let counter = written.clone();
    let endless = move |_: Request| {
        let counter = counter.clone();
        async move {
            let (out, body) = Body::channel(4);
            tokio::spawn(async move {
                let chunk = Bytes::from_static(&[b'.'; CHUNK]);
                // Waits while the reader is behind; fails once the reader is gone.
                while out.send(chunk.clone()).await.is_ok() {
                    counter.fetch_add(CHUNK as u64, Ordering::Relaxed);
                }
            });
            Ok(Response::new(body))
        }
    };
    let _serving = laptop.serve(Agent::new("endless")?, endless).await?;

    let mut answer = desk.call("endless@laptop").send().await?;
    let mut read = 0;
    for _ in 0..3 {
        let until = read + 4 * MIB;
        while read < until {
            read += answer.chunk().await?.map_or(0, |chunk| chunk.len() as u64);
        }
        // The slow reader: long enough for the writer to have filled all the room there is.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let ahead = written.load(Ordering::Relaxed) - read;
        println!(
            "read {} MiB, the writer is {:.1} MiB ahead and waits",
            read / MIB,
            ahead as f64 / MIB as f64
        );
    }
    // Dropping the answer cancels the call, and with it the writer.
    drop(answer);
    Ok(())
}
