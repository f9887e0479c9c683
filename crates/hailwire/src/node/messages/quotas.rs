//! How many messages may wait: of or for one node, and in all.

use std::{collections::HashMap, time::Duration};

use hailwire_wire::{Code, NodeId, Status};

/// What one node may have here.
const OF_ONE: Waiting = Waiting {
    messages: 100_000,
    bytes: 1 << 30,
};

/// What all may have here together.
const OF_ALL: Waiting = Waiting {
    messages: 400_000,
    bytes: 4 << 30,
};

/// When a sender whose messages find no room may come back.
const COME_BACK: Duration = Duration::from_secs(30);

/// Messages that wait in one direction.
#[derive(Debug, Default)]
pub(super) struct MessageQuotas {
    nodes: HashMap<NodeId, Waiting>,
    all: Waiting,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Waiting {
    messages: u64,
    bytes: u64,
}

impl Waiting {
    fn has_room(self, bound: Self, size: u64) -> bool {
        self.messages < bound.messages && self.bytes.saturating_add(size) <= bound.bytes
    }

    fn add(&mut self, size: u64) {
        self.messages += 1;
        self.bytes += size;
    }

    fn release(&mut self, size: u64) {
        self.messages = self.messages.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(size);
    }
}

impl MessageQuotas {
    /// Takes room for a message.
    ///
    /// # Errors
    ///
    /// `resource_exhausted`, with when to come back.
    pub(super) fn reserve(&mut self, node: NodeId, size: u64) -> Result<(), Status> {
        let of_node = self.nodes.get(&node).copied().unwrap_or_default();
        let (waiting, whose) = match (
            of_node.has_room(OF_ONE, size),
            self.all.has_room(OF_ALL, size),
        ) {
            (true, true) => {
                self.add(node, size);
                return Ok(());
            }
            (false, _) => (of_node, format!("of or for node {}", node.short())),
            (true, false) => (self.all, "of and for all nodes".to_owned()),
        };
        let Waiting { messages, bytes } = waiting;
        let what =
            format!("{messages} messages {whose} wait here, with {bytes} bytes, and no more may");
        let hint = format!(
            "come back in {} s; `hail inbox ls` and `hail inbox sent` list what waits",
            COME_BACK.as_secs()
        );
        Err(Status::new(Code::ResourceExhausted, what).with_hint(hint))
    }

    /// Counts a message that is here already, whatever the bounds say.
    pub(super) fn add(&mut self, node: NodeId, size: u64) {
        self.nodes.entry(node).or_default().add(size);
        self.all.add(size);
    }

    /// A message waits no more.
    pub(super) fn release(&mut self, node: NodeId, size: u64) {
        let Some(of_node) = self.nodes.get_mut(&node) else {
            return;
        };
        of_node.release(size);
        self.all.release(size);
        if of_node.messages == 0 {
            self.nodes.remove(&node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u64) -> NodeId {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&number.to_le_bytes());
        NodeId::from_bytes(key)
    }

    #[test]
    fn one_node_leaves_room_for_others_and_all_together_have_a_bound() {
        let mut quotas = MessageQuotas::default();
        for _ in 0..OF_ONE.messages {
            quotas.reserve(node(0), 1).unwrap();
        }
        let full = quotas.reserve(node(0), 1).unwrap_err();
        assert_eq!(full.code, Code::ResourceExhausted);
        assert!(
            full.message.starts_with("100000 messages of or for node"),
            "{full}"
        );
        assert!(full.hint.contains("come back in 30 s"), "{full}");
        for other in 1..4 {
            quotas.reserve(node(other), OF_ONE.bytes).unwrap();
            quotas.reserve(node(other), 1).unwrap_err();
        }
        let all = quotas.reserve(node(4), OF_ONE.bytes).unwrap_err();
        assert!(all.message.contains("of and for all nodes"), "{all}");
        quotas.reserve(node(4), OF_ONE.bytes / 2).unwrap();
    }

    #[test]
    fn what_waits_no_more_gives_its_room_back_and_leaves_nothing() {
        let mut quotas = MessageQuotas::default();
        quotas.reserve(node(1), OF_ONE.bytes).unwrap();
        quotas.release(node(1), OF_ONE.bytes);
        // A second time changes nothing.
        quotas.release(node(1), OF_ONE.bytes);
        assert!(quotas.nodes.is_empty());
        assert_eq!(quotas.all, Waiting::default());
    }
}
