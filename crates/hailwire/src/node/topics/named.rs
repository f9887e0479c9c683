//! Named subscribers: programs that are to get each kept message at least once, under a name that outlives them. What they have confirmed is on
//! the disk, for each node that they read; whoever reads next under the name begins there.

use std::sync::Arc;

use hailwire_core::kept_topics::{LogPosition, NamedPositions};
use hailwire_wire::{
    AgentName, Code, NodeId, Status,
    topics::{TopicPattern, TopicReplay},
};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::{invalid, locked, log_rows, now_ms};
use crate::{
    admin::{ConfirmRequest, NamedPositionRow, NamedSubscriberRow, SubscribeRequest},
    node::NodeInner,
};

/// Most named subscribers of a machine.
pub(super) const MAX_NAMED: u64 = 256;

/// What this run of the node knows of a name.
#[derive(Debug, Default)]
pub(super) struct NamedReading {
    positions: NamedPositions,
    /// The number of the program that reads; each takes the place of the one before.
    reader: watch::Sender<u64>,
    /// Whether one does.
    read: bool,
}

/// Where a subscriber starts in a log that it never read, as it is kept on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct KeptStart {
    since_ms: Option<u64>,
    last: Option<u64>,
    from: Option<u64>,
}

/// A program reads under a name, until this is dropped.
#[derive(Debug)]
pub(super) struct NamedReader {
    node: Arc<NodeInner>,
    name: String,
    number: u64,
    replaced: watch::Receiver<u64>,
    start: KeptStart,
    made_ms: u64,
}

impl NamedReader {
    /// Begins to read under a name, which is made if there is none; a program that reads under it does so no more.
    pub(super) async fn begin(
        node: &Arc<NodeInner>,
        patterns: &[TopicPattern],
        request: &SubscribeRequest,
    ) -> Result<Self, Status> {
        let name = request.name.parse::<AgentName>().map_err(invalid)?;
        let name = name.as_str().to_owned();
        let start = KeptStart {
            since_ms: request.since_ms,
            last: request.last,
            from: request.from,
        };
        let texts: Vec<&str> = patterns.iter().map(TopicPattern::as_str).collect();
        let texts = texts.join(" ");
        let said = serde_json::to_string(&start).map_err(invalid)?;
        let row = (texts.clone(), said, now_ms());
        let key = name.clone();
        let found = node
            .topics
            .kept
            .write(move |db| {
                let made = match log_rows::subscriber(db, &key)? {
                    Some(_) => true,
                    None => log_rows::put_subscriber(db, &key, &row, MAX_NAMED)?,
                };
                let found = match made {
                    true => log_rows::subscriber(db, &key)?,
                    false => None,
                };
                Ok((found, log_rows::positions(db, &key)?))
            })
            .await?;
        let (Some((kept, start, made_ms)), positions) = found else {
            return Err(Status::new(
                Code::ResourceExhausted,
                format!("{MAX_NAMED} names of subscribers are kept, which is the most"),
            )
            .with_hint("`hail topics` lists them, `hail topics forget NAME` removes one"));
        };
        if kept != texts {
            return Err(Status::new(
                Code::FailedPrecondition,
                format!("`{name}` is subscribed to {kept}"),
            )
            .with_hint("use another name, or `hail topics forget NAME` first"));
        }
        let mut names = locked(&node.topics.kept.names);
        let reading = names.entry(name.clone()).or_insert_with(|| NamedReading {
            positions: NamedPositions::new(positions),
            ..NamedReading::default()
        });
        reading.read = true;
        reading.reader.send_modify(|number| *number += 1);
        let replaced = reading.reader.subscribe();
        let number = *replaced.borrow();
        drop(names);
        Ok(Self {
            node: node.clone(),
            name,
            number,
            replaced,
            start: serde_json::from_str(&start).unwrap_or_default(),
            made_ms,
        })
    }

    /// Resolves when another program reads under the name, or it is forgotten.
    pub(super) async fn replaced(&self) -> Status {
        let mut replaced = self.replaced.clone();
        // An error is a name that was forgotten.
        let forgotten = replaced
            .wait_for(|number| *number != self.number)
            .await
            .is_err();
        match forgotten {
            true => Status::new(Code::NotFound, format!("`{}` was forgotten", self.name)),
            false => Status::new(
                Code::Aborted,
                format!("another program reads as `{}` now", self.name),
            ),
        }
    }

    /// Where to begin in the log of a node.
    pub(super) fn begin_at(&self, node: NodeId) -> TopicReplay {
        let names = locked(&self.node.topics.kept.names);
        let confirmed = names
            .get(&self.name)
            .and_then(|reading| reading.positions.confirmed(node));
        match confirmed {
            Some(position) => TopicReplay {
                log: position.log,
                after: position.number,
                ..TopicReplay::default()
            },
            // The name is as old as what it has not read at a node that it had not met.
            None => TopicReplay {
                from: self.start.from,
                last: self.start.last,
                since_ms: Some(
                    self.start
                        .since_ms
                        .unwrap_or_default()
                        .saturating_add(now_ms().saturating_sub(self.made_ms)),
                ),
                ..TopicReplay::default()
            },
        }
    }

    /// Where it began in the log of a node: written down, so that it begins there again if the program confirms nothing.
    pub(super) async fn note_begun(
        &self,
        node: NodeId,
        position: LogPosition,
    ) -> Result<(), Status> {
        self.note_handed(node, position);
        let first = {
            let mut names = locked(&self.node.topics.kept.names);
            let reading = names.get_mut(&self.name);
            let begun = reading.map(|reading| reading.positions.handle_confirmed(node, position));
            begun.and_then(Result::ok).flatten()
        };
        match first {
            Some(position) => put(&self.node, &self.name, node, position).await,
            None => Ok(()),
        }
    }

    /// Messages up to this one are handed to the program.
    pub(super) fn note_handed(&self, node: NodeId, position: LogPosition) {
        if let Some(reading) = locked(&self.node.topics.kept.names).get_mut(&self.name) {
            reading.positions.handle_handed(node, position);
        }
    }
}

impl Drop for NamedReader {
    fn drop(&mut self) {
        if let Some(reading) = locked(&self.node.topics.kept.names).get_mut(&self.name)
            && *reading.reader.borrow() == self.number
        {
            reading.read = false;
        }
    }
}

async fn put(
    node: &NodeInner,
    name: &str,
    of: NodeId,
    position: LogPosition,
) -> Result<(), Status> {
    let name = name.to_owned();
    let put = move |db: &rusqlite::Connection| log_rows::put_position(db, &name, of, position);
    node.topics.kept.write(put).await
}

/// A program has done what it was handed, up to some message of a node; written down when this resolves.
pub(in crate::node) async fn confirm(
    node: &NodeInner,
    request: &ConfirmRequest,
) -> Result<(), Status> {
    let of = request.node.unwrap_or_else(|| node.id());
    let position = LogPosition {
        log: request.log,
        number: request.kept,
    };
    let news = {
        let mut names = locked(&node.topics.kept.names);
        let reading = names
            .get_mut(&request.name)
            .ok_or_else(|| nobody(&request.name))?;
        reading.positions.handle_confirmed(of, position)
    };
    match news {
        Ok(Some(position)) => put(node, &request.name, of, position).await,
        Ok(None) => Ok(()),
        Err(_) => Err(invalid(format!(
            "message {} was not handed to `{}`",
            request.kept, request.name
        ))),
    }
}

fn nobody(name: &str) -> Status {
    Status::new(
        Code::NotFound,
        format!("no program has read as `{name}` since this node was started"),
    )
    .with_hint("`hail topics` lists the names that are kept")
}

/// Forgets a named subscriber, with how far it has come.
pub(in crate::node) async fn forget(node: &NodeInner, name: &str) -> Result<(), Status> {
    let key = name.to_owned();
    let remove = move |db: &rusqlite::Connection| log_rows::remove_subscriber(db, &key);
    let was = node.topics.kept.write(remove).await?;
    locked(&node.topics.kept.names).remove(name);
    match was {
        true => Ok(()),
        false => Err(
            Status::new(Code::NotFound, format!("no subscriber is named `{name}`"))
                .with_hint("`hail topics` lists them"),
        ),
    }
}

/// All named subscribers.
pub(super) async fn rows(node: &NodeInner) -> Result<Vec<NamedSubscriberRow>, Status> {
    let found = node
        .topics
        .kept
        .write(|db| {
            let mut rows = Vec::new();
            for (name, row) in log_rows::subscribers(db)? {
                let positions = log_rows::positions(db, &name)?;
                rows.push((name, row, positions));
            }
            Ok(rows)
        })
        .await?;
    let names = locked(&node.topics.kept.names);
    let alias = |id| {
        let name = match id == node.id() {
            true => node.name(),
            false => node.trust.alias(id),
        };
        name.map(String::from).unwrap_or_default()
    };
    let row = |(name, (patterns, _, made_ms), positions): (
        String,
        log_rows::SubscriberRow,
        Vec<(NodeId, LogPosition)>,
    )| {
        let mut positions: Vec<NamedPositionRow> = positions
            .into_iter()
            .map(|(id, position)| NamedPositionRow {
                node: id,
                node_name: alias(id),
                kept: position.number,
            })
            .collect();
        positions.sort_by(|a, b| (&a.node_name, a.node).cmp(&(&b.node_name, b.node)));
        NamedSubscriberRow {
            reading: names.get(&name).is_some_and(|reading| reading.read),
            patterns: patterns.split(' ').map(str::to_owned).collect(),
            name,
            made_ms,
            positions,
        }
    };
    Ok(found.into_iter().map(row).collect())
}
