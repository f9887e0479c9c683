//! The same with NATS core: lines of text over TCP (docs.nats.io, "NATS Protocol"), as far as it is needed here.

use std::{
    io,
    net::SocketAddr,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc,
    task::JoinSet,
};

use super::{CONNECTIONS, Deliveries, PATIENCE, WINDOW, row};
use crate::{BenchError, messages::record::FanoutSpeed};

/// Largest message that is read.
const MAX_MESSAGE: usize = 64 * 1024;

const HELLO: &str = "CONNECT {\"verbose\":false,\"pedantic\":false}\r\n";

/// A connection, once it has said hello and the server has answered what was written.
async fn connect(
    at: SocketAddr,
    then: &str,
) -> io::Result<(BufReader<OwnedReadHalf>, OwnedWriteHalf)> {
    // It may have been started a moment ago.
    let until = Instant::now() + PATIENCE;
    let tcp = loop {
        match TcpStream::connect(at).await {
            Ok(tcp) => break tcp,
            Err(error) if Instant::now() > until => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    tcp.set_nodelay(true)?;
    let (read, mut write) = tcp.into_split();
    write
        .write_all(format!("{HELLO}{then}PING\r\n").as_bytes())
        .await?;
    let mut read = BufReader::with_capacity(MAX_MESSAGE, read);
    let mut line = String::new();
    while line.trim_end() != "PONG" {
        line.clear();
        if read.read_line(&mut line).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok((read, write))
}

pub(super) async fn measure(
    at: SocketAddr,
    subscribers: u32,
    messages: u64,
) -> Result<FanoutSpeed, BenchError> {
    let failed = |what: &'static str| BenchError::io(what);
    let deliveries = Deliveries::new(subscribers, messages);
    let connections = CONNECTIONS.min(subscribers);
    let mut reading = JoinSet::new();
    for connection in 0..connections {
        let own = (connection..subscribers).step_by(connections as usize);
        let mut subscribe = String::new();
        let mut count = 0;
        for number in own {
            subscribe.push_str(&format!("SUB bench.fanout {}\r\n", number + 1));
            count += 1;
        }
        let (read, write) = connect(at, &subscribe)
            .await
            .map_err(failed("subscribing at nats-server"))?;
        let deliveries = deliveries.clone();
        reading.spawn(async move {
            let mut times = Vec::new();
            // A slow consumer is cut off by the server; what it lacks then is lost.
            let _ = receive(read, write, count * messages, &deliveries, &mut times).await;
            times
        });
    }
    let (_read, mut write) = connect(at, "")
        .await
        .map_err(failed("connecting to nats-server"))?;
    let (lines, mut queue) = mpsc::channel::<Vec<u8>>(WINDOW);
    let writing = tokio::spawn(async move {
        while let Some(mut together) = queue.recv().await {
            while let Ok(line) = queue.try_recv() {
                together.extend_from_slice(&line);
            }
            write.write_all(&together).await?;
        }
        io::Result::Ok(write)
    });
    let begun = Instant::now();
    for _ in 0..messages {
        deliveries.room().await?;
        let body = deliveries.body();
        let mut line = format!("PUB bench.fanout {}\r\n", body.len()).into_bytes();
        line.extend_from_slice(&body);
        line.extend_from_slice(b"\r\n");
        let gone = |_| BenchError::Unsupported("the connection to nats-server is gone");
        lines.send(line).await.map_err(gone)?;
    }
    drop(lines);
    deliveries.all().await;
    let took = begun.elapsed();
    let written = writing.await.map_err(BenchError::failed("a publisher"))?;
    written.map_err(failed("publishing to nats-server"))?;
    row("NATS core", &deliveries, messages, took, reading).await
}

async fn receive(
    mut read: BufReader<OwnedReadHalf>,
    mut write: OwnedWriteHalf,
    messages: u64,
    deliveries: &Deliveries,
    times: &mut Vec<Duration>,
) -> io::Result<()> {
    let (mut line, mut body) = (String::new(), Vec::new());
    let mut seen = 0;
    while seen < messages {
        line.clear();
        if read.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        if line.starts_with("PING") {
            write.write_all(b"PONG\r\n").await?;
        }
        let Some(rest) = line.strip_prefix("MSG ") else {
            continue;
        };
        // MSG subject sid [reply] size
        let size = rest.split_whitespace().last().map(str::parse::<usize>);
        let size = size
            .and_then(Result::ok)
            .filter(|size| *size <= MAX_MESSAGE);
        body.resize(size.ok_or(io::ErrorKind::InvalidData)? + 2, 0);
        read.read_exact(&mut body).await?;
        seen += 1;
        times.extend(deliveries.took(&body));
        deliveries.note_done(1, false);
    }
    Ok(())
}
