//! How many agents a node may offer, and how many bytes they may take in its offers and by their schemas.
//!
//! Checked where an agent registers, so that whoever is one too many is told, and no list of offers is
//! ever too long to be sent. Of several members of one name others see one, so the name counts once, with
//! the longest of them, and with room for what is said of them as a group.

use std::collections::HashMap;

use hailwire_wire::{
    AgentName, Code, Status,
    header::{AgentOffer, OfferedGroup},
    limits, offers,
};

/// What the local agents take.
#[derive(Debug, Default)]
pub struct OfferCapacity {
    members: usize,
    bytes: usize,
    schema_bytes: usize,
    /// The members of each name.
    sizes: HashMap<AgentName, Vec<MemberSize>>,
}

/// What a member takes, in bytes.
#[derive(Clone, Copy, Debug)]
struct MemberSize {
    number: u64,
    /// Without what is said of the group.
    offer: usize,
    /// Whether nothing is said of a group that has only this member.
    alone: bool,
    schema: usize,
}

impl OfferCapacity {
    /// Makes room for a member with a schema of that many bytes.
    ///
    /// # Errors
    ///
    /// `resource_exhausted`, in words for whoever registers.
    pub fn add(&mut self, number: u64, offer: &AgentOffer, schema: usize) -> Result<(), Status> {
        let most = limits::MAX_AGENTS_PER_NODE;
        if self.members >= most {
            return Err(Status::new(
                Code::ResourceExhausted,
                format!("this node has {most} agents already"),
            ));
        }
        let member = MemberSize {
            number,
            offer: offers::size(&AgentOffer {
                group: OfferedGroup::default(),
                ..offer.clone()
            }),
            alone: offer.group.is_one(),
            schema,
        };
        let known = self.sizes.get(&offer.name).map_or(&[][..], Vec::as_slice);
        let size = longest(known.iter().chain([&member]));
        let bytes = self.bytes + size - self.longest(&offer.name);
        if bytes > limits::MAX_OFFERS {
            return Err(self.too_long(offer, size, bytes));
        }
        let schema_bytes = self.schema_bytes + schema;
        if schema_bytes > limits::MAX_SCHEMAS {
            return Err(Status::new(
                Code::ResourceExhausted,
                format!(
                    "the schemas of this node's agents would take {schema_bytes} bytes of {} with that of `{}`",
                    limits::MAX_SCHEMAS,
                    offer.name
                ),
            )
            .with_hint("shorten schemas: their examples and descriptions first"));
        }
        self.members += 1;
        self.bytes = bytes;
        self.schema_bytes = schema_bytes;
        let sizes = self.sizes.entry(offer.name.clone()).or_default();
        sizes.push(member);
        Ok(())
    }

    /// Gives back what a member took.
    pub fn remove(&mut self, number: u64, name: &AgentName) {
        let before = self.longest(name);
        let Some(sizes) = self.sizes.get_mut(name) else {
            return;
        };
        let Some(place) = sizes.iter().position(|size| size.number == number) else {
            return;
        };
        let gone = sizes.swap_remove(place);
        self.schema_bytes -= gone.schema;
        self.members -= 1;
        if sizes.is_empty() {
            self.sizes.remove(name);
        }
        self.bytes -= before - self.longest(name);
    }

    fn longest(&self, name: &AgentName) -> usize {
        longest(self.sizes.get(name).into_iter().flatten())
    }

    fn too_long(&self, offer: &AgentOffer, size: usize, bytes: usize) -> Status {
        let longest = self.sizes.keys().max_by_key(|name| self.longest(name));
        let hint = longest.map_or_else(String::new, |name| {
            format!(
                "shorten descriptions and tags, or offer fewer agents; the longest here is `{name}` with {} bytes",
                self.longest(name)
            )
        });
        Status::new(
            Code::ResourceExhausted,
            format!(
                "names, descriptions and tags of this node's agents would take {bytes} bytes of {} with `{}`, which takes {size}",
                limits::MAX_OFFERS,
                offer.name
            ),
        )
        .with_hint(hint)
    }
}

/// What the offer of these members, of one name, may take at most.
fn longest<'a>(members: impl Iterator<Item = &'a MemberSize>) -> usize {
    let (mut count, mut offer, mut alone) = (0, 0, true);
    for member in members {
        count += 1;
        offer = offer.max(member.offer);
        alone &= member.alone;
    }
    match (count, alone) {
        (0, _) | (1, true) => offer,
        _ => offer + offers::LARGEST_GROUP,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(name: &str, description: usize) -> AgentOffer {
        AgentOffer {
            group: hailwire_wire::header::OfferedGroup::default(),
            name: name.parse().unwrap(),
            description: "d".repeat(description),
            tags: Vec::new(),
            version: String::new(),
        }
    }

    #[test]
    fn a_thousand_agents_with_a_sentence_each_fit() {
        let mut capacity = OfferCapacity::default();
        for number in 0..limits::MAX_AGENTS_PER_NODE as u64 {
            let offer = offer(&format!("agent-{number}"), 200);
            capacity.add(number, &offer, 0).unwrap();
        }
        let more = capacity.add(9999, &offer("more", 0), 0).unwrap_err();
        assert_eq!(more.code, Code::ResourceExhausted);
        assert!(more.message.contains("1024"), "{more}");
    }

    #[test]
    fn the_one_too_many_is_told_how_many_bytes_and_what_to_shorten() {
        let mut capacity = OfferCapacity::default();
        let mut number = 0;
        let refused = loop {
            let mut offer = offer(&format!("agent-{number}"), limits::MAX_DESCRIPTION);
            offer.tags = vec!["t".repeat(limits::MAX_NAME); limits::MAX_TAGS];
            match capacity.add(number, &offer, 0) {
                Ok(()) => number += 1,
                Err(refused) => break refused,
            }
        };
        assert!(number > 150, "{number}");
        assert_eq!(refused.code, Code::ResourceExhausted);
        for part in ["bytes of 262144", &format!("`agent-{number}`")] {
            assert!(refused.message.contains(part), "{refused}");
        }
        assert!(refused.hint.contains("shorten"), "{}", refused.hint);
        // A short one fits still, and the room of one that goes is there again.
        capacity.add(number, &offer("short", 10), 0).unwrap();
        capacity.remove(0, &"agent-0".parse().unwrap());
        capacity.add(0, &offer("again", 256), 0).unwrap();
    }

    #[test]
    fn members_of_one_name_take_its_room_once_and_give_it_back_with_the_last() {
        let mut capacity = OfferCapacity::default();
        for number in 0..limits::MAX_AGENTS_PER_NODE as u64 {
            capacity
                .add(number, &offer("same", 200 + number as usize % 56), 0)
                .unwrap();
        }
        let largest = offers::size(&offer("same", 255)) + offers::LARGEST_GROUP;
        assert_eq!(capacity.bytes, largest);
        let name = "same".parse().unwrap();
        for number in 0..limits::MAX_AGENTS_PER_NODE as u64 {
            capacity.remove(number, &name);
            capacity.remove(number, &name);
        }
        assert_eq!((capacity.members, capacity.bytes), (0, 0));
        assert!(capacity.sizes.is_empty());
    }

    #[test]
    fn what_is_said_of_a_group_has_room_as_soon_as_anything_may_be() {
        let mut capacity = OfferCapacity::default();
        let alone = offers::size(&offer("one", 100));
        capacity.add(1, &offer("one", 100), 0).unwrap();
        assert_eq!(capacity.bytes, alone);
        capacity.add(2, &offer("one", 0), 0).unwrap();
        assert_eq!(capacity.bytes, alone + offers::LARGEST_GROUP);
        capacity.remove(2, &"one".parse().unwrap());
        assert_eq!(capacity.bytes, alone);
        let mut prior = offer("one", 0);
        prior.group.priority = 1;
        capacity.add(3, &prior, 0).unwrap();
        capacity.remove(1, &"one".parse().unwrap());
        let short = offers::size(&offer("one", 0));
        assert_eq!(capacity.bytes, short + offers::LARGEST_GROUP);
    }

    #[test]
    fn schemas_of_all_members_share_a_room_and_give_it_back() {
        let mut capacity = OfferCapacity::default();
        let many = (limits::MAX_SCHEMAS / limits::MAX_SCHEMA) as u64;
        for number in 0..many {
            capacity
                .add(number, &offer("same", 0), limits::MAX_SCHEMA)
                .unwrap();
        }
        let rest = limits::MAX_SCHEMAS - many as usize * limits::MAX_SCHEMA;
        let refused = capacity.add(many, &offer("more", 0), rest + 1).unwrap_err();
        assert_eq!(refused.code, Code::ResourceExhausted);
        let what = "the schemas of this node's agents would take 4194305 bytes of 4194304 with that of `more`";
        assert_eq!(refused.message, what);
        assert_eq!(capacity.members, many as usize);
        capacity.add(many, &offer("more", 0), rest).unwrap();
        capacity.remove(0, &"same".parse().unwrap());
        capacity
            .add(0, &offer("other", 0), limits::MAX_SCHEMA)
            .unwrap();
    }
}
