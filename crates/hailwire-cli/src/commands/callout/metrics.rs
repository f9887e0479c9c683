//! Serves the metrics over HTTP as OpenMetrics text, for Prometheus: any request is answered with them.

use std::{io, sync::Arc, time::Duration};

use hailwire_callout::{exposition::CONTENT_TYPE, inspect::Inspector};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};

/// Most concurrent scrapes.
const MAX_SCRAPES: usize = 16;

/// Most bytes of a request's head.
const MAX_HEAD: usize = 8 << 10;

/// How long a scrape may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves until accepting fails.
pub(super) async fn serve(listener: TcpListener, inspector: Arc<Inspector>) -> io::Result<()> {
    let room = Arc::new(Semaphore::new(MAX_SCRAPES));
    loop {
        let place = Arc::clone(&room).acquire_owned().await;
        let (stream, _) = listener.accept().await?;
        let inspector = Arc::clone(&inspector);
        tokio::spawn(async move {
            // A scraper that leaves early needs no answer.
            let _ = tokio::time::timeout(REQUEST_TIMEOUT, answer(stream, &inspector)).await;
            drop(place);
        });
    }
}

async fn answer(mut stream: TcpStream, inspector: &Inspector) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() > MAX_HEAD || stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let text = inspector.to_openmetrics();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {CONTENT_TYPE}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        text.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await
}
