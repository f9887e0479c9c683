//! Serves metrics over HTTP as OpenMetrics text, for Prometheus: any request is answered with them.

use std::{io, time::Duration};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::timeout,
};

/// Most concurrent scrapes.
const MAX_SCRAPES: usize = 16;

/// Most bytes of a request's head.
const MAX_HEAD: usize = 8 << 10;

/// How long a scrape may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves until accepting fails; `text` is asked for at each scrape.
pub(super) async fn serve<F: Future<Output = String>>(
    listener: TcpListener,
    content_type: &str,
    text: impl Fn() -> F,
) -> io::Result<()> {
    let mut scrapes = FuturesUnordered::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if scrapes.len() < MAX_SCRAPES => {
                let (stream, _) = accepted?;
                scrapes.push(timeout(REQUEST_TIMEOUT, answer(stream, content_type, &text)));
            }
            // A scraper that leaves early needs no answer.
            Some(_) = scrapes.next() => {}
        }
    }
}

async fn answer<F: Future<Output = String>>(
    mut stream: TcpStream,
    content_type: &str,
    text: &impl Fn() -> F,
) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() > MAX_HEAD || stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let text = text().await;
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        text.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await
}
