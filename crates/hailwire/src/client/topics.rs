//! Publishing under topics and subscribing to them (`spec/topics.md`), at most once: what is published while a subscriber is away, or reads too
//! slowly, is lost to it.

use bytes::{Bytes, BytesMut};
use hailwire_wire::{
    AgentName, Code, NodeId, Status,
    topics::{RecordReader, Topic, TopicRecord, put_record},
};
use tokio::task::JoinHandle;

use super::Client;
use crate::{
    admin::{self, PublishReceipt, SubscribeRequest, method},
    body::{Body, BodySender},
    session::Answer,
};

/// Records that wait for the node when many are published one after the other.
const PUBLISH_QUEUE: usize = 16;

/// Largest answer to what was published.
const MAX_RECEIPT: usize = 4096;

impl Client {
    /// Prepares one message under a topic, such as `build.web.done`. Nothing happens until [`Publication::send`].
    ///
    /// ```no_run
    /// # async fn example(client: hailwire::Client) -> Result<(), hailwire::Status> {
    /// let receipt = client.publish("build.web.done").body("ok").send().await?;
    /// println!("{} programs here, {} peers", receipt.programs, receipt.peers);
    /// # Ok(())
    /// # }
    /// ```
    pub fn publish(&self, topic: impl Into<String>) -> Publication {
        Publication {
            client: self.clone(),
            record: TopicRecord {
                topic: topic.into(),
                ..TopicRecord::default()
            },
        }
    }

    /// For many messages, one after the other, without waiting for each.
    #[must_use]
    pub fn publisher(&self) -> Publisher {
        let (sender, body) = Body::channel(PUBLISH_QUEUE);
        let call = self
            .call(admin::AGENT)
            .method(method::TOPIC_PUBLISH)
            .body(body);
        let publishing = tokio::spawn(async move {
            let mut answer = call.send().await?;
            answer.bytes(MAX_RECEIPT).await
        });
        Publisher {
            sender: Some(sender),
            publishing,
        }
    }

    /// Subscribes to all topics that match any of these patterns: in one, `*` stands for one token, and `>`, at its end, for one or more. Messages
    /// that are published here or at a trusted peer from now on come in the order in which each node published them, each once, until the
    /// subscription is dropped.
    ///
    /// ```no_run
    /// # async fn example(client: hailwire::Client) -> Result<(), hailwire::Status> {
    /// use hailwire::TopicEvent;
    ///
    /// let mut builds = client.subscribe(["build.*.done"]).await?;
    /// while let Some(event) = builds.next().await? {
    ///     match event {
    ///         TopicEvent::Message(message) => println!("{}", message.topic),
    ///         TopicEvent::Missed(lost) => eprintln!("{lost} messages were lost"),
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `invalid_argument` for what is no pattern, or none; `resource_exhausted` with 1,024 subscriptions of this program, 4,096 of this machine, or
    /// 1,024 different patterns of it; `unavailable` when the node is gone.
    ///
    /// # Cancel safety
    ///
    /// If dropped before it resolves, nothing is subscribed.
    pub async fn subscribe(
        &self,
        patterns: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<Subscription, Status> {
        let request = SubscribeRequest {
            patterns: patterns.into_iter().map(Into::into).collect(),
        };
        let body = serde_json::to_vec(&request)
            .map_err(|error| Status::new(Code::Internal, error.to_string()))?;
        let call = self.call(admin::AGENT).method(method::TOPIC_SUBSCRIBE);
        Ok(Subscription {
            answer: call.body(body).send().await?,
            reader: RecordReader::default(),
        })
    }
}

/// One message being prepared.
#[derive(Debug)]
#[must_use = "nothing happens until it is sent"]
pub struct Publication {
    client: Client,
    record: TopicRecord,
}

impl Publication {
    /// The body, at most [`MAX_TOPIC_BODY`](hailwire_wire::limits::MAX_TOPIC_BODY) bytes; empty by default.
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.record.body = body.into();
        self
    }

    /// The media type of the body; empty, meaning bytes, by default.
    pub fn content_type(mut self, media_type: impl Into<String>) -> Self {
        self.record.content_type = media_type.into();
        self
    }

    /// Adds a field of the application's own.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.record.headers.push((name.into(), value.into()));
        self
    }

    /// The agent that publishes it; none by default. Subscribers read it as what the program says of itself; the node they can trust.
    pub fn from(mut self, agent: &AgentName) -> Self {
        self.record.from = agent.to_string();
        self
    }

    /// Publishes it; resolves once it is in the queues of all who want it, and says how many those are.
    ///
    /// # Errors
    ///
    /// `invalid_argument` for what is no topic, or too large; `unavailable` when the node is gone.
    ///
    /// # Cancel safety
    ///
    /// If dropped, it may have been published or not.
    pub async fn send(self) -> Result<PublishReceipt, Status> {
        let bytes = encoded(&self.record)?;
        let call = self.client.call(admin::AGENT).method(method::TOPIC_PUBLISH);
        let mut answer = call.body(bytes).send().await?;
        receipt(&answer.bytes(MAX_RECEIPT).await?)
    }
}

/// Many messages, in their order. Dropping it ends it, and what was not handed to the node by then may be lost.
#[derive(Debug)]
pub struct Publisher {
    sender: Option<BodySender>,
    publishing: JoinHandle<Result<Bytes, Status>>,
}

impl Publisher {
    /// Publishes one more, prepared with [`Client::publish`]. Waits while the node is behind, which subscribers do not make it.
    ///
    /// # Errors
    ///
    /// `invalid_argument` for what is no topic, or too large, and others may follow; the status with which the node ended it all.
    ///
    /// # Cancel safety
    ///
    /// It is published whole or not at all.
    pub async fn publish(&mut self, publication: Publication) -> Result<(), Status> {
        let bytes = encoded(&publication.record)?;
        let Some(sender) = &self.sender else {
            return Err(over());
        };
        if sender.send(bytes).await.is_ok() {
            return Ok(());
        }
        self.sender = None;
        let ended = (&mut self.publishing).await.unwrap_or_else(|_| Err(over()));
        Err(ended.err().unwrap_or_else(over))
    }

    /// Waits until all is published, and says to how many it went.
    ///
    /// # Errors
    ///
    /// The status with which the node refused.
    pub async fn finish(mut self) -> Result<PublishReceipt, Status> {
        let Some(sender) = self.sender.take() else {
            return Err(over());
        };
        // If the node has ended it, its status says why.
        let _ = sender.finish().await;
        let ended = (&mut self.publishing).await.unwrap_or_else(|_| Err(over()));
        receipt(&ended?)
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.publishing.abort();
    }
}

fn over() -> Status {
    Status::new(Code::Aborted, "nothing more is published here")
}

/// Checked here already, so that one mistake does not end what others are published with.
fn encoded(record: &TopicRecord) -> Result<Bytes, Status> {
    let checked = record.check();
    let _: Topic = checked.map_err(|error| Status::new(Code::InvalidArgument, error))?;
    let mut out = BytesMut::new();
    put_record(&mut out, record);
    Ok(out.freeze())
}

fn receipt(bytes: &[u8]) -> Result<PublishReceipt, Status> {
    serde_json::from_slice(bytes).map_err(|error| {
        let what = format!("what the node says of what was published cannot be read: {error}");
        Status::new(Code::Internal, what)
    })
}

/// What comes of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicEvent {
    /// A message.
    Message(TopicMessage),
    /// So many messages were lost before what comes next: this program read too slowly, or the way from a peer was too slow. A message that
    /// several patterns match and that was lost on the way from a peer counts for each of them.
    Missed(u64),
}

/// A message that was published.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicMessage {
    /// What it was published under.
    pub topic: String,
    /// The node that it was published at, whose key its tunnel has proved; none for this machine.
    pub node: Option<NodeId>,
    /// The agent that published it, as it calls itself; empty where it has no name.
    pub from: String,
    /// The media type of the body.
    pub content_type: String,
    /// Fields of the application's own.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Bytes,
    /// Grows with each message of that node, whatever its topic, from 1 at the node's start.
    pub sequence: u64,
    /// When it was published, by that node's clock: milliseconds since 1970.
    pub at_ms: u64,
}

/// Messages of the topics that a program is subscribed to; dropping it ends the subscription.
#[derive(Debug)]
pub struct Subscription {
    answer: Answer,
    reader: RecordReader,
}

impl Subscription {
    /// What comes next; `None` never comes while the node runs.
    ///
    /// At most 4 MiB wait at the node, fewer where it has more than 64 subscribers, and what fits into the connection. What more is published
    /// meanwhile takes the place of the oldest.
    ///
    /// # Errors
    ///
    /// `unavailable` when the node ends; subscribe again at the one that comes after it.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub async fn next(&mut self) -> Result<Option<TopicEvent>, Status> {
        loop {
            let record: Option<TopicRecord> = self.reader.poll_record().map_err(|error| {
                Status::new(Code::Internal, format!("a message cannot be read: {error}"))
            })?;
            match record {
                Some(record) if !record.topic.is_empty() => {
                    return Ok(Some(TopicEvent::Message(TopicMessage {
                        topic: record.topic,
                        node: record.node,
                        from: record.from,
                        content_type: record.content_type,
                        headers: record.headers,
                        body: record.body.into(),
                        sequence: record.sequence,
                        at_ms: record.at_ms,
                    })));
                }
                Some(record) if record.missed > 0 => {
                    return Ok(Some(TopicEvent::Missed(record.missed)));
                }
                Some(_) => {}
                None => match self.answer.chunk().await? {
                    Some(chunk) => self.reader.handle_chunk(&chunk),
                    None => return Ok(None),
                },
            }
        }
    }
}
