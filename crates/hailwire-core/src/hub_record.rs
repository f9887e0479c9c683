//! What a node has listed at a hub: the agents that its record has room for, and the peers that are shown
//! them.
//!
//! A record that is too large is never a reason to publish none. What helps least to find an agent is left
//! out first: descriptions, then tags and versions, then the last of the agents by name.

use hailwire_wire::{
    NodeId,
    directory::ShownTo,
    limits,
    record::{NodeRecord, RecordError, SignedRecord},
    signed::KeyPair,
};

/// Signs a record with as much of its agents as it has room for, and says what was left out; nothing where
/// all of it fits.
pub fn fit(mut record: NodeRecord, key: &KeyPair) -> Result<(SignedRecord, String), RecordError> {
    let size = match record.clone().sign(key) {
        Ok(signed) => return Ok((signed, String::new())),
        Err(RecordError::TooLarge(size)) => size,
        Err(error) => return Err(error),
    };
    let said = |what: &str| {
        format!(
            "the record at the hub leaves out {what}: with them it would take {size} bytes of {}",
            limits::MAX_RECORD
        )
    };
    for agent in &mut record.agents {
        agent.description.clear();
    }
    if let Some(signed) = signed(&record, key)? {
        return Ok((signed, said("descriptions")));
    }
    for agent in &mut record.agents {
        agent.tags.clear();
        agent.version.clear();
    }
    if let Some(signed) = signed(&record, key)? {
        return Ok((signed, said("descriptions, tags and versions")));
    }
    let all = record.agents.len();
    // A name is at most 64 bytes, so most of them fit; a sixteenth less each time is soon enough.
    loop {
        let fewer = record.agents.len() - (record.agents.len() / 16).max(1);
        record.agents.truncate(fewer);
        if let Some(signed) = signed(&record, key)? {
            let what = format!("{} agents, and what describes the others", all - fewer);
            return Ok((signed, said(&what)));
        }
    }
}

/// Signs a record unless it is too large.
fn signed(record: &NodeRecord, key: &KeyPair) -> Result<Option<SignedRecord>, RecordError> {
    match record.clone().sign(key) {
        Ok(signed) => Ok(Some(signed)),
        Err(RecordError::TooLarge(_)) if !record.agents.is_empty() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Those of some peers to whom a node shows its agents, and how many there is no room for. Each comes with
/// the time since when it is trusted; where there are too many, those trusted last are shown them.
pub fn shown_to(peers: impl Iterator<Item = (u64, NodeId)>) -> (Vec<ShownTo>, usize) {
    let mut peers: Vec<_> = peers.collect();
    peers.sort_unstable_by(|a, b| b.cmp(a));
    let hidden = peers.len().saturating_sub(limits::MAX_SHOWN_TO);
    peers.truncate(limits::MAX_SHOWN_TO);
    let mut shown: Vec<_> = peers.into_iter().map(|(_, id)| ShownTo::of(id)).collect();
    shown.sort_unstable();
    (shown, hidden)
}

#[cfg(test)]
mod tests {
    use hailwire_wire::header::AgentOffer;

    use super::*;

    fn record(agents: usize, name: usize, description: usize, tags: usize) -> NodeRecord {
        let offer = |index: usize| AgentOffer {
            group: hailwire_wire::header::OfferedGroup::default(),
            name: format!("{index:0>name$}").parse().unwrap(),
            description: "d".repeat(description),
            tags: vec!["t".repeat(64); tags],
            version: String::new(),
        };
        NodeRecord {
            agents: (0..agents).map(offer).collect(),
            sequence: 1,
            issued: 1_800_000_000,
            expires: 1_800_000_000 + 7200,
            ..NodeRecord::default()
        }
    }

    #[test]
    fn a_record_that_is_too_large_loses_what_helps_least_and_says_so() {
        let key = KeyPair::from_seed(&[7; 32]);
        let fitted = |record: NodeRecord| {
            let (signed, said) = fit(record, &key).unwrap();
            assert!(signed.bytes().len() <= limits::MAX_RECORD);
            (signed.record().agents.clone(), said)
        };
        let small = record(10, 8, 200, 3);
        assert_eq!(fitted(small.clone()), (small.agents, String::new()));

        let (agents, said) = fitted(record(300, 8, 250, 1));
        assert_eq!(agents.len(), 300);
        assert!(
            agents
                .iter()
                .all(|a| a.description.is_empty() && a.tags.len() == 1)
        );
        assert!(said.contains("leaves out descriptions:"), "{said}");
        assert!(said.contains("of 65536"), "{said}");

        let (agents, said) = fitted(record(1024, 8, 10, 2));
        assert_eq!(agents.len(), 1024);
        assert!(said.contains("tags and versions"), "{said}");

        let (agents, said) = fitted(record(1024, 64, 100, 0));
        assert!((700..1024).contains(&agents.len()), "{}", agents.len());
        assert!(
            said.contains(&format!("{} agents", 1024 - agents.len())),
            "{said}"
        );
    }

    #[test]
    fn agents_are_shown_to_those_trusted_last() {
        let id = |number: u16| {
            let mut bytes = [1; 32];
            bytes[..2].copy_from_slice(&number.to_be_bytes());
            NodeId::from_bytes(bytes)
        };
        let peers = |count: u16| (0..count).map(move |number| (u64::from(number), id(number)));
        let (shown, hidden) = shown_to(peers(1030));
        assert_eq!((shown.len(), hidden), (limits::MAX_SHOWN_TO, 6));
        assert!(!shown.contains(&ShownTo::of(id(5))));
        assert!(shown.contains(&ShownTo::of(id(6))));
        assert_eq!(shown_to(peers(3)).1, 0);
    }
}
