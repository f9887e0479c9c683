//! A case: its name, what it checks, and the script that does.

use std::{future::Future, pin::Pin};

use crate::{failure::Outcome, stage::Stage};

/// How long most cases may take.
const SECONDS: u64 = 20;

/// What a case does.
pub(crate) type Script = for<'a> fn(&'a mut Stage) -> Pin<Box<dyn Future<Output = Outcome> + 'a>>;

/// One case.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// What is checked, as a sentence without its full stop.
    pub(crate) claim: &'static str,
    /// After so many seconds it has failed.
    pub(crate) seconds: u64,
    pub(crate) script: Script,
}

/// Cases about one subject.
#[derive(Clone, Debug)]
pub(crate) struct CaseGroup {
    pub(crate) title: &'static str,
    pub(crate) cases: Vec<Case>,
}

impl Case {
    pub(crate) const fn new(name: &'static str, claim: &'static str, script: Script) -> Self {
        Self {
            name,
            claim,
            seconds: SECONDS,
            script,
        }
    }

    /// The same with a time of its own.
    pub(crate) const fn within(mut self, seconds: u64) -> Self {
        self.seconds = seconds;
        self
    }
}
