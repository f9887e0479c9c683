//! How many calls may be made again, so that a failure does not multiply the load that caused it.

/// What one call adds, in hundredths of a further attempt.
const SHARE_OF_CALLS: u32 = 20;

/// What there is at the beginning, so that who calls seldom may retry too.
const AT_FIRST: u32 = 10 * ATTEMPT;

/// The most that is saved.
const MOST: u32 = 100 * ATTEMPT;

/// One further attempt.
const ATTEMPT: u32 = 100;

/// The further attempts that a program may make, shared by all its calls that allow some.
///
/// Each call adds a fifth of one, up to 100 that are saved, and there are 10 at the beginning: of `n` calls, at most
/// `10 + n / 5` further attempts are made, and no more than 100 at once. It is the retry budget of Finagle and Envoy,
/// with their 20 %.
#[derive(Clone, Copy, Debug)]
pub struct RetryBudget {
    hundredths: u32,
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self {
            hundredths: AT_FIRST,
        }
    }
}

impl RetryBudget {
    /// A call that allows further attempts is made for the first time.
    pub fn add_call(&mut self) {
        self.hundredths = (self.hundredths + SHARE_OF_CALLS).min(MOST);
    }

    /// Whether a further attempt is left.
    #[must_use]
    pub const fn has_one(&self) -> bool {
        self.hundredths >= ATTEMPT
    }

    /// Takes a further attempt; `false` where there is none left.
    pub const fn take(&mut self) -> bool {
        match self.hundredths.checked_sub(ATTEMPT) {
            Some(left) => {
                self.hundredths = left;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_with_ten_earns_a_fifth_for_each_call_and_saves_a_hundred() {
        let mut budget = RetryBudget::default();
        let drain = |budget: &mut RetryBudget| (0..1_000).take_while(|_| budget.take()).count();
        assert_eq!(drain(&mut budget), 10);
        for _ in 0..4 {
            budget.add_call();
        }
        assert!(!budget.take());
        budget.add_call();
        assert!(budget.take());
        for _ in 0..10_000 {
            budget.add_call();
        }
        assert_eq!(drain(&mut budget), 100);
    }
}
