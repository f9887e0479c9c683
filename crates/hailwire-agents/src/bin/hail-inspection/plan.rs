//! What to do, decided from the command line without doing any of it.

use std::path::PathBuf;

use hailwire_agents::{rate_limit, waf};
use hailwire_terminal::{
    failure::CommandFailure,
    global::{CommonOptions, ProcessSurroundings},
};

use crate::args::{
    CalloutCommand, CalloutRateLimit, CalloutWaf, Cli, Command, ServedAt, UnreadDecision,
};

/// Everything that a run needs to know.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) common: CommonOptions,
    pub(crate) action: Action,
}

/// What to do.
#[derive(Debug)]
pub(crate) enum Action {
    Waf(ServedAt, waf::WafSettings),
    RateLimit(ServedAt, Limits),
    Outline,
}

/// The limits of a rate limiter.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Limits {
    Typed(rate_limit::RateLimitSettings),
    /// In a file, and what becomes of pushed ones if that was said.
    File(PathBuf, Option<rate_limit::PushPolicy>),
}

/// Decides what a run does.
pub(crate) fn plan(cli: Cli, around: &ProcessSurroundings) -> Result<Plan, CommandFailure> {
    let common = cli.global.decide(around)?;
    let action = match cli.command {
        Command::Callout(callout) => match callout.command {
            CalloutCommand::Waf(waf) => plan_waf(waf),
            CalloutCommand::RateLimit(limiter) => plan_rate_limit(limiter)?,
        },
        Command::Outline => Action::Outline,
    };
    Ok(Plan { common, action })
}

fn plan_waf(waf: CalloutWaf) -> Action {
    let CalloutWaf {
        at,
        rules,
        paranoia,
        threshold,
        detect_only,
        unread,
        unread_except,
    } = waf;
    let settings = waf::WafSettings {
        rules,
        paranoia,
        threshold,
        block: !detect_only,
        may_be_unread: may_be_unread(unread, unread_except),
        ..waf::WafSettings::default()
    };
    Action::Waf(at, settings)
}

/// What the firewall may leave unread.
fn may_be_unread(decision: UnreadDecision, except: Vec<waf::UnreadKind>) -> waf::UnreadSet {
    let any = !except.is_empty();
    let except: waf::UnreadSet = except.into_iter().collect();
    match decision {
        UnreadDecision::Allow => waf::UnreadSet::ALL.without(except),
        UnreadDecision::Block if any => except,
        UnreadDecision::Block => waf::UnreadSet::OPAQUE,
    }
}

fn plan_rate_limit(limiter: CalloutRateLimit) -> Result<Action, CommandFailure> {
    let CalloutRateLimit {
        at,
        limit,
        config,
        configure,
    } = limiter;
    let limits = match config {
        Some(path) => Limits::File(path, configure),
        None => {
            let settings = rate_limit::RateLimitSettings::of(limit.iter().map(String::as_str));
            Limits::Typed(rate_limit::RateLimitSettings {
                configure,
                ..settings.map_err(CommandFailure::usage)?
            })
        }
    };
    Ok(Action::RateLimit(at, limits))
}
