//! Whether enough of many have agreed, or no longer can.

/// A vote under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quorum {
    needed: usize,
    agreed: usize,
    outstanding: usize,
}

/// How a vote stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuorumState {
    /// It can go either way.
    Open,
    /// Enough have agreed.
    Reached,
    /// So many have not that the rest is too few.
    Unreachable,
}

impl Quorum {
    /// A vote of `voters`, of whom `needed` have to agree.
    #[must_use]
    pub const fn new(needed: usize, voters: usize) -> Self {
        Self {
            needed,
            agreed: 0,
            outstanding: voters,
        }
    }

    /// More than half of `voters`.
    #[must_use]
    pub const fn majority(voters: usize) -> usize {
        voters / 2 + 1
    }

    /// One of those who had not voted has: for it, or not. A vote of nobody counts for nothing.
    pub fn handle_vote(&mut self, agrees: bool) {
        if self.outstanding > 0 {
            self.outstanding -= 1;
            self.agreed += usize::from(agrees);
        }
    }

    /// How it stands.
    #[must_use]
    pub const fn state(&self) -> QuorumState {
        if self.agreed >= self.needed {
            QuorumState::Reached
        } else if self.agreed + self.outstanding < self.needed {
            QuorumState::Unreachable
        } else {
            QuorumState::Open
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vote_is_decided_as_soon_as_it_can_be_and_never_changes() {
        for voters in 0..8_usize {
            for needed in 0..=voters + 1 {
                for votes in 0..1_u32 << voters {
                    let agrees = |i: usize| votes >> i & 1 == 1;
                    let total = (0..voters).filter(|i| agrees(*i)).count();
                    let mut quorum = Quorum::new(needed, voters);
                    let mut decided = quorum.state();
                    for i in 0..voters {
                        quorum.handle_vote(agrees(i));
                        let state = quorum.state();
                        assert!(decided == QuorumState::Open || state == decided);
                        let so_far = (0..=i).filter(|i| agrees(*i)).count();
                        let failed = i + 1 - so_far;
                        assert_eq!(state == QuorumState::Reached, so_far >= needed);
                        let hopeless = voters - failed < needed;
                        assert_eq!(state == QuorumState::Unreachable, hopeless);
                        decided = state;
                    }
                    assert_eq!(decided == QuorumState::Reached, total >= needed);
                    assert_ne!(decided, QuorumState::Open);
                    quorum.handle_vote(true);
                    assert_eq!(quorum.state(), decided, "nobody is left to vote");
                }
            }
        }
        assert_eq!([1, 2, 3, 4, 5].map(Quorum::majority), [1, 2, 2, 3, 3]);
    }
}
