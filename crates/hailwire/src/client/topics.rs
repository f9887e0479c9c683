//! Publishing under topics and subscribing to them (`spec/topics.md`): at most once, so that what is published while a subscriber is away, or reads too
//! slowly, is lost to it; or from what nodes keep, and then nothing is lost that they still have.

use std::{collections::HashMap, time::Duration};

use bytes::{Bytes, BytesMut};
use hailwire_wire::{
    AgentName, Code, NodeId, Status,
    topics::{RecordReader, Topic, TopicRecord, put_record},
};
use tokio::task::JoinHandle;

use super::Client;
use crate::{
    admin::{self, ConfirmRequest, PublishReceipt, SubscribeRequest, method},
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
    ///         _ => {}
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
        let patterns = patterns.into_iter().map(Into::into).collect();
        self.subscribe_with(&SubscribeRequest {
            patterns,
            ..SubscribeRequest::default()
        })
        .await
    }

    /// Subscribes to what nodes keep of topics that match any of these patterns, at most 64: first what is there from `start` on, then what follows, without
    /// gap or repetition, in the order of each node's log. Reading slowly costs no memory and loses nothing but what a node removes meanwhile, of
    /// which [`TopicEvent::Missed`] tells. What nobody keeps does not come.
    ///
    /// # Errors
    ///
    /// `invalid_argument` for what is no pattern, or too many; `resource_exhausted` with 64 such subscriptions of this machine; `unavailable`
    /// when the node is gone.
    pub async fn replay(
        &self,
        patterns: impl IntoIterator<Item = impl Into<String>>,
        start: ReplayStart,
    ) -> Result<Subscription, Status> {
        let patterns = patterns.into_iter().map(Into::into).collect();
        self.subscribe_with(&start.request(patterns)).await
    }

    /// As [`Client::replay`], under a name that outlives this program: whoever reads next under it, with the same patterns, begins after what was
    /// confirmed with [`Subscription::confirm`], however this program, a tunnel or a node has ended. So each message that a node keeps comes at least
    /// once. `start` counts where nothing was read yet. One program reads under a name; a second one takes the place of the first.
    ///
    /// # Errors
    ///
    /// As [`Client::replay`]; `failed_precondition` where the name has other patterns; `resource_exhausted` with 256 names.
    pub async fn subscribe_as(
        &self,
        name: &AgentName,
        patterns: impl IntoIterator<Item = impl Into<String>>,
        start: ReplayStart,
    ) -> Result<Subscription, Status> {
        let patterns = patterns.into_iter().map(Into::into).collect();
        let request = SubscribeRequest {
            name: name.to_string(),
            ..start.request(patterns)
        };
        self.subscribe_with(&request).await
    }

    /// Subscribes as a request says.
    ///
    /// # Errors
    ///
    /// As [`Client::replay`].
    pub async fn subscribe_with(&self, request: &SubscribeRequest) -> Result<Subscription, Status> {
        let body = serde_json::to_vec(request)
            .map_err(|error| Status::new(Code::Internal, error.to_string()))?;
        let call = self.call(admin::AGENT).method(method::TOPIC_SUBSCRIBE);
        Ok(Subscription {
            client: self.clone(),
            name: request.name.clone(),
            answer: call.body(body).send().await?,
            reader: RecordReader::default(),
            logs: HashMap::new(),
        })
    }
}

/// Where a replay starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplayStart {
    /// With what is published from now on.
    #[default]
    Now,
    /// With what was published no longer ago, by the clock of the node that keeps it.
    Since(Duration),
    /// With the last so many messages of each node, at most 100,000.
    Last(u64),
    /// With the message of this number in the log of each node; 1 for all that is kept.
    From(u64),
}

impl ReplayStart {
    fn request(self, patterns: Vec<String>) -> SubscribeRequest {
        let request = SubscribeRequest {
            patterns,
            ..SubscribeRequest::default()
        };
        let millis = |age: Duration| u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        match self {
            Self::Now => SubscribeRequest {
                since_ms: Some(0),
                ..request
            },
            Self::Since(age) => SubscribeRequest {
                since_ms: Some(millis(age)),
                ..request
            },
            Self::Last(last) => SubscribeRequest {
                last: Some(last),
                ..request
            },
            Self::From(from) => SubscribeRequest {
                from: Some(from),
                ..request
            },
        }
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

    /// The value under this topic is deleted: where only the last message of each topic is kept.
    pub fn deleted(mut self) -> Self {
        self.record.deleted = true;
        self
    }

    /// Publish only if the value under this topic has this number in the node's log ([`TopicMessage::kept`]); 0 for none, or a deleted one. Where only the last message
    /// of each topic is kept.
    pub fn if_kept(mut self, number: u64) -> Self {
        self.record.if_kept = Some(number);
        self
    }

    /// Publishes it; resolves once it is in the queues of all who want it, and says how many those are. Where the topic is kept, it is on the disk then.
    ///
    /// # Errors
    ///
    /// `invalid_argument` for what is no topic, or too large; `aborted` where [`Publication::if_kept`] is not so; `resource_exhausted` where there is no room to keep it, on
    /// the disk or of its bound; `unavailable` when the node is gone.
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

/// What comes of a subscription. There may be more kinds one day.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TopicEvent {
    /// A message.
    Message(TopicMessage),
    /// So many messages were lost before what comes next: this program read too slowly, or the way from a peer was too slow. A message that
    /// several patterns match and that was lost on the way from a peer counts for each of them. Of a replay: the node that kept them has removed them.
    Missed(u64),
    /// Of a replay: all has come that this node had kept when it was asked; none for this machine.
    Reached(Option<NodeId>),
    /// Of a replay: what this peer keeps does not come now, and why. It comes once that has changed.
    Away(NodeId, String),
    /// Of a replay, once: every node has said what it had kept, or cannot, or has had its time.
    Settled,
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
    /// Its number in the log of the node that keeps it, from 1; 0 where it is not kept. The revision of a value of state.
    pub kept: u64,
    /// It says that the value under this topic is deleted.
    pub deleted: bool,
}

/// Messages of the topics that a program is subscribed to; dropping it ends the subscription.
#[derive(Debug)]
pub struct Subscription {
    client: Client,
    name: String,
    answer: Answer,
    reader: RecordReader,
    /// The log of each node, by which its numbers count.
    logs: HashMap<Option<NodeId>, u64>,
}

impl Subscription {
    /// What comes next; `None` never comes while the node runs.
    ///
    /// Of what is published from now on, at most once, at most 4 MiB wait at the node, fewer where it has more than 64 subscribers, and what fits into the connection. What more is published
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
                        kept: record.kept,
                        deleted: record.deleted,
                    })));
                }
                Some(record) => {
                    if record.log != 0 {
                        self.logs.insert(record.node, record.log);
                    }
                    if let Some(event) = news(record) {
                        return Ok(Some(event));
                    }
                }
                None => match self.answer.chunk().await? {
                    Some(chunk) => self.reader.handle_chunk(&chunk),
                    None => return Ok(None),
                },
            }
        }
    }
}

impl Subscription {
    /// Says that this message and all before it of the same node are done, so that they come no more under this subscriber's name; on the disk
    /// when it resolves. Several may be confirmed with the last of them.
    ///
    /// # Errors
    ///
    /// `failed_precondition` for a subscription without a name, or a message that is not kept; `invalid_argument` for one that did not come.
    ///
    /// # Cancel safety
    ///
    /// If dropped, it is confirmed or not.
    pub async fn confirm(&self, message: &TopicMessage) -> Result<(), Status> {
        let log = self.logs.get(&message.node).copied();
        let (false, Some(log)) = (self.name.is_empty(), log.filter(|_| message.kept > 0)) else {
            return Err(Status::new(
                Code::FailedPrecondition,
                "only what a named subscriber reads of what is kept is confirmed",
            ));
        };
        let request = ConfirmRequest {
            name: self.name.clone(),
            node: message.node,
            log,
            kept: message.kept,
        };
        self.client.admin(method::TOPIC_CONFIRM, &request).await
    }
}

/// What a record that is no message tells.
fn news(record: TopicRecord) -> Option<TopicEvent> {
    match record {
        TopicRecord { missed, .. } if missed > 0 => Some(TopicEvent::Missed(missed)),
        TopicRecord {
            reached: true,
            node,
            ..
        } => Some(TopicEvent::Reached(node)),
        TopicRecord { settled: true, .. } => Some(TopicEvent::Settled),
        TopicRecord {
            node: Some(node),
            away,
            ..
        } if !away.is_empty() => Some(TopicEvent::Away(node, away)),
        _ => None,
    }
}
