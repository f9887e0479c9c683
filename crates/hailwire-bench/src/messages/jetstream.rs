//! NATS JetStream with `sync_interval: always`: as many publishers as are in flight on one connection, each of which waits for its acknowledgement.
//!
//! The client's protocol is lines of text (docs.nats.io, "NATS Protocol"); what is needed of it stands here.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, oneshot},
    task::JoinSet,
};

use crate::BenchError;

/// How long the server may take to be ready, and an acknowledgement to come.
const PATIENCE: Duration = Duration::from_secs(20);

/// Lines that wait to be written.
const QUEUE: usize = 1024;

/// Largest message from the server: acknowledgements are short.
const MAX_MESSAGE: usize = 64 * 1024;

/// A server in a folder. Dropping it ends it.
pub(super) struct JetStreamServer(Child);

impl Drop for JetStreamServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl JetStreamServer {
    /// Starts `program` at an address; `None` where there is no such program.
    pub(super) fn start(
        program: &str,
        folder: &Path,
        at: SocketAddr,
    ) -> Result<Option<Self>, BenchError> {
        let config = folder.join("nats.conf");
        let text = format!(
            "listen: \"{at}\"\njetstream {{ store_dir: {:?}, sync_interval: always }}\n",
            folder.join("nats")
        );
        std::fs::write(&config, text)
            .map_err(BenchError::io("writing the settings of nats-server"))?;
        let mut command = Command::new(program);
        command
            .arg("-c")
            .arg(&config)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        match command.spawn() {
            Ok(child) => Ok(Some(Self(child))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(BenchError::io("starting nats-server")(error)),
        }
    }
}

type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<Vec<u8>>>>>;

/// One connection, as many publishers share it.
#[derive(Clone)]
pub(super) struct NatsConnection {
    lines: mpsc::Sender<Vec<u8>>,
    waiting: Waiting,
    next: Arc<std::sync::atomic::AtomicU64>,
    _tasks: Arc<JoinSet<()>>,
}

impl NatsConnection {
    /// Connects, once the server is ready, and makes a stream of the subjects `S.>`.
    pub(super) async fn open(at: SocketAddr) -> Result<Self, BenchError> {
        let until = Instant::now() + PATIENCE;
        let tcp = loop {
            match TcpStream::connect(at).await {
                Ok(tcp) => break tcp,
                Err(error) if Instant::now() > until => {
                    return Err(BenchError::io("connecting to nats-server")(error));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        tcp.set_nodelay(true)
            .map_err(BenchError::io("connecting to nats-server"))?;
        let (read, write) = tcp.into_split();
        let (lines, queue) = mpsc::channel(QUEUE);
        let waiting = Waiting::default();
        let mut tasks = JoinSet::new();
        tasks.spawn(write_lines(write, queue));
        let (answers, pongs) = (waiting.clone(), lines.clone());
        tasks.spawn(async move {
            let _ = read_messages(BufReader::new(read), &answers, &pongs).await;
            // Whoever waits is told that nothing comes.
            answers
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clear();
        });
        let connection = Self {
            lines,
            waiting,
            next: Arc::default(),
            _tasks: Arc::new(tasks),
        };
        let hello = "CONNECT {\"verbose\":false,\"pedantic\":false,\"no_responders\":true,\"headers\":true}\r\nSUB I.* 1\r\n";
        connection.write(hello.into()).await?;
        let stream = br#"{"name":"S","subjects":["S.>"],"storage":"file","retention":"limits","discard":"old","num_replicas":1}"#;
        let made = loop {
            let made = connection.request("$JS.API.STREAM.CREATE.S", stream).await;
            // It answers nothing until it has looked through its folder.
            match made {
                Ok(made) if !made.is_empty() => break made,
                Ok(_) if Instant::now() < until => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Ok(_) => return Err(BenchError::Unsupported("JetStream does not start")),
                Err(error) => return Err(error),
            }
        };
        let text = String::from_utf8_lossy(&made).into_owned();
        match text.contains("\"error\"") {
            true => Err(BenchError::Failed {
                what: "making a stream of JetStream".to_owned(),
                reason: text,
            }),
            false => Ok(connection),
        }
    }

    /// Publishes a message, and waits until it is stored.
    pub(super) async fn publish(&self, body: &[u8]) -> Result<(), BenchError> {
        let stored = self.request("S.t", body).await?;
        match stored.windows(5).any(|part| part == b"\"seq\"") {
            true => Ok(()),
            false => Err(BenchError::Failed {
                what: "publishing to JetStream".to_owned(),
                reason: String::from_utf8_lossy(&stored).into_owned(),
            }),
        }
    }

    async fn request(&self, subject: &str, body: &[u8]) -> Result<Vec<u8>, BenchError> {
        let number = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let (tell, told) = oneshot::channel();
        self.waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(number, tell);
        let mut line = format!("PUB {subject} I.{number} {}\r\n", body.len()).into_bytes();
        line.extend_from_slice(body);
        line.extend_from_slice(b"\r\n");
        self.write(line).await?;
        let answer = tokio::time::timeout(PATIENCE, told).await;
        let gone = BenchError::Unsupported("nats-server does not answer");
        answer.ok().and_then(Result::ok).ok_or(gone)
    }

    async fn write(&self, line: Vec<u8>) -> Result<(), BenchError> {
        let gone = |_| BenchError::Unsupported("the connection to nats-server is gone");
        self.lines.send(line).await.map_err(gone)
    }
}

/// Writes what waits, all of it at once.
async fn write_lines(mut write: OwnedWriteHalf, mut queue: mpsc::Receiver<Vec<u8>>) {
    let mut together = Vec::new();
    while let Some(line) = queue.recv().await {
        together.extend_from_slice(&line);
        while let Ok(line) = queue.try_recv() {
            together.extend_from_slice(&line);
        }
        if write.write_all(&together).await.is_err() {
            return;
        }
        together.clear();
    }
}

async fn read_messages(
    mut read: BufReader<OwnedReadHalf>,
    waiting: &Waiting,
    pongs: &mpsc::Sender<Vec<u8>>,
) -> io::Result<()> {
    let mut line = String::new();
    loop {
        line.clear();
        if read.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            // MSG subject sid [reply] size; with headers HMSG, whose size is that of both.
            ["MSG" | "HMSG", subject, .., size] => {
                let size = size.parse().ok().filter(|size| *size <= MAX_MESSAGE);
                let size = size.ok_or(io::ErrorKind::InvalidData)?;
                let mut body = vec![0; size + 2];
                read.read_exact(&mut body).await?;
                body.truncate(size);
                if words[0] == "HMSG" {
                    // Nobody listens there yet.
                    body.clear();
                }
                let number = subject
                    .strip_prefix("I.")
                    .and_then(|number| number.parse::<u64>().ok());
                let tell = number.and_then(|number| {
                    waiting
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .remove(&number)
                });
                if let Some(tell) = tell {
                    let _ = tell.send(body);
                }
            }
            ["PING"] => {
                let _ = pongs.send(b"PONG\r\n".to_vec()).await;
            }
            _ => {}
        }
    }
}
