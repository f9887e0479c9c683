//! When a router is asked to map a port to this node (UPnP IGD, NAT-PMP of RFC 6886, PCP of RFC 6887).
//!
//! It is asked once this machine has an address that is not global, which says that a NAT stands before it; anew when those
//! addresses change, because then another router may stand there; and again after a while where nobody answered. A mapping
//! that is held is renewed by whoever keeps it and is none of this machine's business.

use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use crate::backoff::Backoff;

/// First and longest pause before a router is asked again that did not answer, or gave nothing.
const ASK_AGAIN: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(3600));

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortMappingAction {
    /// Find out which protocols the router speaks, and ask for a mapping by one of them. Say how it went with
    /// [`PortMapping::handle_asked`].
    Ask,
    /// Give back the mapping that is held: it led to another network.
    Release,
}

/// The mapping of one port.
#[derive(Debug)]
pub struct PortMapping {
    /// Addresses behind which a router may stand, sorted.
    inside: Vec<Ipv4Addr>,
    mapped: bool,
    asking: bool,
    /// When the router is asked next; never while there is no NAT or a mapping is held.
    due: Option<Instant>,
    again: Backoff,
}

impl Default for PortMapping {
    fn default() -> Self {
        Self {
            inside: Vec::new(),
            mapped: false,
            asking: false,
            due: None,
            again: Backoff::new(ASK_AGAIN),
        }
    }
}

impl PortMapping {
    /// This machine has these addresses that are not global.
    pub fn handle_addresses(&mut self, now: Instant, mut inside: Vec<Ipv4Addr>) {
        inside.sort_unstable();
        if inside == self.inside {
            return;
        }
        self.due = (!inside.is_empty()).then_some(now);
        self.again.reset();
        self.inside = inside;
    }

    /// The router was asked. `mapped` says whether a mapping is held now.
    pub fn handle_asked(&mut self, now: Instant, mapped: bool) {
        self.asking = false;
        self.handle_mapped(now, mapped);
    }

    /// A mapping is held from now on, or is no more.
    pub fn handle_mapped(&mut self, now: Instant, mapped: bool) {
        self.mapped = mapped;
        if self.asking || self.inside.is_empty() {
            return;
        }
        if mapped {
            self.again.reset();
            // Unless the network has changed since it was asked for.
            self.due.take_if(|due| *due > now);
        } else if self.due.is_none() {
            self.due = Some(now + self.again.fail(now));
        }
    }

    /// What is to be done now.
    pub fn poll_action(&mut self, now: Instant) -> Option<PortMappingAction> {
        if self.asking {
            return None;
        }
        let elsewhere = self.inside.is_empty() || self.due.is_some();
        if self.mapped && elsewhere {
            self.mapped = false;
            return Some(PortMappingAction::Release);
        }
        self.due.take_if(|due| *due <= now)?;
        self.asking = true;
        Some(PortMappingAction::Ask)
    }

    /// When [`PortMapping::poll_action`] has something to say, if nothing happens before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.due.filter(|_| !self.asking)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{draws, for_each_seed, start};

    const HOME: Ipv4Addr = Ipv4Addr::new(192, 168, 1, 5);
    const CAFE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);

    #[test]
    fn a_router_is_asked_once_and_again_later_and_later_where_nobody_answers() {
        let begin = start();
        let mut mapping = PortMapping::default();
        assert_eq!(mapping.poll_action(begin), None);
        assert_eq!(mapping.poll_timeout(), None);
        mapping.handle_addresses(begin, vec![HOME]);
        assert_eq!(mapping.poll_action(begin), Some(PortMappingAction::Ask));
        assert_eq!(mapping.poll_action(begin), None);
        mapping.handle_asked(begin, false);
        let first = mapping.poll_timeout().unwrap();
        assert_eq!(first, begin + ASK_AGAIN.0);
        assert_eq!(mapping.poll_action(first), Some(PortMappingAction::Ask));
        mapping.handle_asked(first, false);
        assert_eq!(mapping.poll_timeout(), Some(first + 2 * ASK_AGAIN.0));
    }

    #[test]
    fn a_mapping_is_given_back_and_asked_for_anew_on_another_network() {
        let begin = start();
        let mut mapping = PortMapping::default();
        mapping.handle_addresses(begin, vec![HOME]);
        mapping.poll_action(begin);
        mapping.handle_asked(begin, true);
        assert_eq!(mapping.poll_timeout(), None);
        mapping.handle_addresses(begin, vec![HOME]);
        assert_eq!(mapping.poll_action(begin), None);
        mapping.handle_addresses(begin, vec![CAFE]);
        assert_eq!(mapping.poll_action(begin), Some(PortMappingAction::Release));
        assert_eq!(mapping.poll_action(begin), Some(PortMappingAction::Ask));
        mapping.handle_asked(begin, true);
        // No NAT any more.
        mapping.handle_addresses(begin, Vec::new());
        assert_eq!(mapping.poll_action(begin), Some(PortMappingAction::Release));
        assert_eq!(mapping.poll_action(begin), None);
        assert_eq!(mapping.poll_timeout(), None);
    }

    #[test]
    fn a_mapping_that_the_router_loses_is_asked_for_again() {
        let begin = start();
        let mut mapping = PortMapping::default();
        mapping.handle_addresses(begin, vec![HOME]);
        mapping.poll_action(begin);
        mapping.handle_asked(begin, true);
        mapping.handle_mapped(begin, false);
        assert_eq!(mapping.poll_timeout(), Some(begin + ASK_AGAIN.0));
    }

    fn follow(seed: u64) {
        let mut below = draws(seed, 17);
        let mut now = start();
        let mut mapping = PortMapping::default();
        let (mut held, mut asking, mut inside) = (false, false, Vec::new());
        for step in 0..300 {
            now += Duration::from_secs(u64::from(below(200)));
            match below(4) {
                0 => {
                    inside = [HOME, CAFE][..below(3) as usize].to_vec();
                    mapping.handle_addresses(now, inside.clone());
                }
                1 if asking => {
                    (asking, held) = (false, below(2) == 0);
                    mapping.handle_asked(now, held);
                }
                2 if held && !asking => {
                    held = false;
                    mapping.handle_mapped(now, false);
                }
                _ => {}
            }
            while let Some(action) = mapping.poll_action(now) {
                assert!(!asking, "seed {seed}, step {step}: {action:?} while asking");
                match action {
                    PortMappingAction::Ask => {
                        assert!(!inside.is_empty() && !held, "seed {seed}, step {step}");
                        asking = true;
                    }
                    PortMappingAction::Release => {
                        assert!(held, "seed {seed}, step {step}");
                        held = false;
                    }
                }
            }
            let waits = mapping.poll_timeout().is_some();
            let wanted = !inside.is_empty() && !held && !asking;
            assert_eq!(waits, wanted, "seed {seed}, step {step}");
        }
    }

    /// Seeds that once failed, each with what was wrong.
    const KEPT: &[u64] = &[];

    #[test]
    fn behind_a_nat_there_is_a_mapping_or_a_time_at_which_one_is_asked_for() {
        for_each_seed(KEPT, 2_000, follow);
    }
}
