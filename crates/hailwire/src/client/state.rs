//! State that many share: a value for each key, which is the last message that is kept under the topic `state.KEY`. Each node keeps what its own
//! programs put; whoever reads merges what its node and the trusted peers keep, and of two values of a key that which was put last counts
//! ([`hailwire_core::state_values`]).

use std::time::Duration;

use bytes::Bytes;
use hailwire_core::{
    kept_topics::STATE,
    state_values::{MAX_MERGED_KEYS, MergeOutcome, StateValues, ValueStamp},
};
use hailwire_wire::{Code, NodeId, Status};

use super::{Client, Publication, Subscription, TopicEvent, TopicMessage};
use crate::admin::{NodeStatus, SubscribeRequest, method};

/// A value of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateValue {
    /// The key: tokens with dots between, as of a topic, at most 15.
    pub key: String,
    /// The node that it was put at; none for this machine.
    pub node: Option<NodeId>,
    /// The agent that put it, as it calls itself; empty where it has no name.
    pub from: String,
    /// The media type of the value.
    pub content_type: String,
    /// The value; empty where it is deleted.
    pub value: Bytes,
    /// Grows with each change at its node; what [`Client::state_put`] compares with, at that node.
    pub revision: u64,
    /// When it was put, by that node's clock: milliseconds since 1970.
    pub at_ms: u64,
    /// Whether it was deleted.
    pub deleted: bool,
}

/// What comes of watching state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateEvent {
    /// A value that counts from now on, or a deletion.
    Value(StateValue),
    /// What this peer keeps is not known now, and why.
    Away(NodeId, String),
    /// Once: every node has said which values stand, or cannot, or has had its time.
    Settled,
}

impl Client {
    /// Prepares to put a value of at most 1 MiB under a key at this node, where it is on the disk once [`Publication::send`] resolves; its revision is
    /// [`PublishReceipt::last`](crate::admin::PublishReceipt::last). [`Publication::if_kept`] puts it only if the revision at this node is
    /// still the one that was read, 0 for no value; [`Publication::deleted`] deletes it.
    ///
    /// ```no_run
    /// # async fn example(client: hailwire::Client) -> Result<(), hailwire::Status> {
    /// let first = client.state_put("build.web").body("green").send().await?;
    /// let changed = client.state_put("build.web").body("red").if_kept(first.last);
    /// changed.send().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn state_put(&self, key: &str) -> Publication {
        self.publish(format!("{STATE}.{key}"))
    }

    /// The value of a key that counts, of this node and all trusted peers that answer within `patience`, at most 60 s; none where there is none, or it was
    /// deleted. With it the peers whose values are not known.
    ///
    /// # Errors
    ///
    /// `invalid_argument` for what is no key; as [`Client::replay`].
    pub async fn state_get(
        &self,
        key: &str,
        patience: Duration,
    ) -> Result<(Option<StateValue>, Vec<(NodeId, String)>), Status> {
        if key.contains(['*', '>']) {
            let what = "a key has no wildcards; watch a pattern instead";
            return Err(Status::new(Code::InvalidArgument, what));
        }
        let (mut values, away) = self.state_values(key, patience).await?;
        Ok((values.pop(), away))
    }

    /// All values that count of keys that match a pattern, by key, as [`Client::state_get`] gives one.
    ///
    /// # Errors
    ///
    /// As [`Client::state_get`].
    pub async fn state_values(
        &self,
        pattern: &str,
        patience: Duration,
    ) -> Result<(Vec<StateValue>, Vec<(NodeId, String)>), Status> {
        let mut watch = self.watch_state(pattern, patience).await?;
        let mut away = Vec::new();
        loop {
            match watch.next().await? {
                Some(StateEvent::Value(_)) => {}
                Some(StateEvent::Away(node, why)) => away.push((node, why)),
                Some(StateEvent::Settled) | None => break,
            }
        }
        let values = watch.values.into_values().map(|(_, value)| value);
        Ok((values.filter(|value| !value.deleted).collect(), away))
    }

    /// Watches the values of keys that match a pattern: first those that stand, then each change.
    ///
    /// ```no_run
    /// # async fn example(client: hailwire::Client) -> Result<(), hailwire::Status> {
    /// use hailwire::StateEvent;
    ///
    /// let patience = std::time::Duration::from_secs(3);
    /// let mut builds = client.watch_state("build.>", patience).await?;
    /// while let Some(event) = builds.next().await? {
    ///     if let StateEvent::Value(value) = event {
    ///         println!("{}: {:?}", value.key, value.value);
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Client::state_get`].
    pub async fn watch_state(
        &self,
        pattern: &str,
        patience: Duration,
    ) -> Result<StateWatch, Status> {
        let request = SubscribeRequest {
            patterns: vec![format!("{STATE}.{pattern}")],
            from: Some(1),
            settle_ms: Some(u64::try_from(patience.as_millis()).unwrap_or(u64::MAX)),
            ..SubscribeRequest::default()
        };
        let status: NodeStatus = self.admin(method::STATUS, &()).await?;
        Ok(StateWatch {
            subscription: self.subscribe_with(&request).await?,
            values: StateValues::default(),
            own: status.id,
        })
    }
}

/// The values of some keys, as they change; dropping it ends it. Remembers the value of each key, of at most 262,144 keys.
#[derive(Debug)]
pub struct StateWatch {
    subscription: Subscription,
    values: StateValues<StateValue>,
    /// The key of this node.
    own: NodeId,
}

impl StateWatch {
    /// What comes next; `None` never comes while the node runs.
    ///
    /// # Errors
    ///
    /// `unavailable` when the node ends; `resource_exhausted` with too many keys.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub async fn next(&mut self) -> Result<Option<StateEvent>, Status> {
        while let Some(event) = self.subscription.next().await? {
            let event = match event {
                TopicEvent::Message(message) => self.merged(message)?,
                TopicEvent::Away(node, why) => Some(StateEvent::Away(node, why)),
                TopicEvent::Settled => Some(StateEvent::Settled),
                // No value goes because of a bound.
                TopicEvent::Missed(_) | TopicEvent::Reached(_) => None,
            };
            if event.is_some() {
                return Ok(event);
            }
        }
        Ok(None)
    }

    fn merged(&mut self, message: TopicMessage) -> Result<Option<StateEvent>, Status> {
        let key = message.topic.strip_prefix(STATE);
        let Some(key) = key.and_then(|rest| rest.strip_prefix('.')) else {
            return Ok(None);
        };
        let stamp = ValueStamp {
            at_ms: message.at_ms,
            node: message.node.unwrap_or(self.own),
            number: message.kept,
        };
        let value = StateValue {
            key: key.to_owned(),
            node: message.node,
            from: message.from,
            content_type: message.content_type,
            value: message.body,
            revision: message.kept,
            at_ms: message.at_ms,
            deleted: message.deleted,
        };
        match self.values.handle_value(key, stamp, value.clone()) {
            MergeOutcome::Changed => Ok(Some(StateEvent::Value(value))),
            MergeOutcome::Superseded => Ok(None),
            MergeOutcome::Full => Err(Status::new(
                Code::ResourceExhausted,
                format!("more than {MAX_MERGED_KEYS} keys of state"),
            )),
        }
    }
}
