//! Affinity: calls with equal keys go to one member, by rendezvous hashing (Thaler and Ravishankar, 1998).
//!
//! Each key gives each member a score, and the eligible member with the highest takes the call. A member that joins takes from
//! each of the others only the keys that it scores higher for, and the keys of one that leaves, is full or is down pass to the second in
//! their order, and back. Nothing is remembered, so every node that knows the same members chooses alike.
//!
//! The score is of two numbers: that of the member's node first, then that of the member on it. So whoever sees of another node
//! only that it offers the name chooses the node as that node's own view has it, and leaves the second choice to it.
//!
//! ```text
//! key   = FNV-1a 64 of the key's bytes
//! node  = mix(key xor mix(FNV-1a 64 of the node's 32 bytes))
//! score = (node, mix(node xor mix(number of the member's place on its node)))
//! mix   = the finaliser of splitmix64
//! ```

use crate::scramble::{fnv1a, scramble};

/// What calls have in common that are to go to one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AffinityKey(u64);

impl AffinityKey {
    /// The key of some bytes, whatever they mean. Two different ones may, as hashes do, have the same key.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(fnv1a(bytes))
    }

    pub(crate) fn score(self, place: MemberPlace) -> MemberScore {
        let node = scramble(self.0 ^ place.node);
        MemberScore {
            node,
            member: scramble(node ^ scramble(place.number)),
        }
    }
}

/// Where a member stands, as far as affinity goes: what stays the same when it is replaced by one that is to have its keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MemberPlace {
    /// Mixed already.
    node: u64,
    number: u64,
}

impl MemberPlace {
    /// The place of this number on a node, whose key or name is `node`.
    #[must_use]
    pub fn new(node: &[u8], number: u64) -> Self {
        Self {
            node: scramble(fnv1a(node)),
            number,
        }
    }

    /// The number of the place on its node.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }
}

/// How welcome a key is to a member; the fields in the order of their weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MemberScore {
    node: u64,
    member: u64,
}
