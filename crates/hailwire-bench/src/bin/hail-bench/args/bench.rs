//! `hail bench`: measurements.

use std::{path::PathBuf, time::Duration};

use clap::{
    Args, Subcommand,
    builder::{PossibleValuesParser, TypedValueParser},
};
use hailwire_bench::{
    changes::NetworkChange,
    run::NETWORKS,
    siege::{AttackerKind, SiegeProcessRole},
    subject::{SessionCarrier, Subject, SubjectSetup},
    suite::{ForeignProgram, Suite},
};
use hailwire_terminal::global::duration;
use hailwire_wire::Address;

/// Measure Hailwire on this machine
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) command: BenchCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    Run(BenchRunArgs),
    Call(BenchCallArgs),
    Siege(SiegeArgs),
    Reach(ReachArgs),
    Changes(ChangesArgs),
    Soak(SoakArgs),
    Messages(MessagesArgs),
    Topologies(TopologiesArgs),
    Report(super::report::ReportArgs),
    Compare(super::report::CompareArgs),
    Subject(SubjectArgs),
}

/// Put load on an agent of yours and print how long its answers take
///
/// With --rate calls are due at that rate whatever becomes of earlier ones, and each is measured from when it was due: so a slow
/// agent does not slow the measurement down and hide it. Otherwise each of --callers calls again once it has its answer.
#[derive(Debug, Args)]
pub(crate) struct BenchCallArgs {
    /// AGENT or AGENT@NODE
    #[arg(value_name = "AGENT[@NODE]")]
    pub(crate) to: Address,
    /// The body of each call
    #[arg(value_name = "TEXT")]
    pub(crate) body: Option<String>,
    /// A body of so many bytes instead
    #[arg(long, value_name = "BYTES", conflicts_with = "body", value_parser = clap::value_parser!(u32).range(..=16 << 20))]
    pub(crate) size: Option<u32>,
    /// Method to call
    #[arg(short, long, value_name = "NAME")]
    pub(crate) method: Option<String>,
    /// Calls a second, in an open loop
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) rate: Option<u32>,
    /// Callers, in a closed loop
    #[arg(long, value_name = "N", conflicts_with = "rate", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub(crate) callers: u32,
    /// For how long calls are made that count
    #[arg(long, value_name = "D", value_parser = duration, default_value = "10s")]
    pub(crate) duration: Duration,
    /// For how long calls are made before that
    #[arg(long, value_name = "D", value_parser = duration, default_value = "1s")]
    pub(crate) warm_up: Duration,
    /// How long each call may take
    #[arg(long, value_name = "D", value_parser = duration, default_value = "10s")]
    pub(crate) call_timeout: Duration,
}

/// Run a suite and keep its results in a folder
///
/// smoke is a little of everything on loopback, without root, in under a minute. coordination and overlay
/// fill the published tables Q and O; most of their rows need an emulated network, and so root. coordination does what `hail bench topologies` does as well. callout fills the
/// tables C, beside the foreign program in peers/zentinel where it is built. sdk measures calls between programs in Python and in TypeScript, beside gRPC,
/// NATS and HTTP in the same language, as peers/install has them. messaging is `hail bench messages` and `hail bench topologies` with all they have: durable messages beside
/// JetStream and Redis, publishing beside NATS, kills and losses of power, dispatch and priorities at 50 ms.
#[derive(Debug, Args)]
pub(crate) struct BenchRunArgs {
    /// Which suite
    #[arg(value_name = "SUITE", value_parser = suites())]
    pub(crate) suite: RunnableSuite,
    /// The least work that gives all figures, under ten minutes; the default
    #[arg(long, conflicts_with = "full")]
    pub(crate) quick: bool,
    /// Every scenario, with long measurements
    #[arg(long)]
    pub(crate) full: bool,
    /// Only the rows of this network; may repeat
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = PossibleValuesParser::new(NETWORKS))]
    pub(crate) network: Vec<String>,
    /// Only sessions over this carrier; the baselines always take part; may repeat
    #[arg(long, value_name = "CARRIER", value_delimiter = ',')]
    pub(crate) carrier: Vec<SessionCarrier>,
    /// Counted repeats, after one warm-up [default: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) repeats: Option<u32>,
    /// Folder for the results [default: bench/results/SUITE]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Another program that takes part: NAME=SERVE,LOAD, both commands without quotes; may repeat
    #[arg(long, value_name = "NAME=SERVE,LOAD", value_parser = foreign)]
    pub(crate) subject: Vec<ForeignProgram>,
    /// As little work as possible, to check that everything runs
    #[arg(long, hide = true, conflicts_with_all = ["quick", "full"])]
    pub(crate) tiny: bool,
}

/// Attack a node and a hub on this machine, and see whether honest callers notice
///
/// Starts a hub, a node with agents and two honest nodes, calls them at a steady rate, and attacks: once all
/// attackers at a time, or one by one. Exits with 1 when an honest call is lost, the 99th percentile grows more than
/// threefold, or memory is not flat.
#[derive(Debug, Args)]
pub(crate) struct SiegeArgs {
    /// How long the attack lasts
    #[arg(long, value_name = "D", value_parser = duration, default_value = "10m")]
    pub(crate) duration: Duration,
    /// How long the calls run without an attack before it, and again after it
    #[arg(long, value_name = "D", value_parser = duration, default_value = "1m")]
    pub(crate) quiet: Duration,
    /// Only these attackers; may repeat [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = attackers())]
    pub(crate) only: Vec<AttackerKind>,
    /// One attacker after the other, each against processes of its own
    #[arg(long)]
    pub(crate) one_by_one: bool,
    /// Attack the hub and the nodes of another build of hail [default: this one]
    #[arg(long, value_name = "FILE")]
    pub(crate) program: Option<PathBuf>,
    /// Folder for the results [default: bench/results/siege]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Set by `hail bench siege` for the processes that it starts
    #[arg(long, value_name = "PART", hide = true)]
    pub(crate) part: Option<SiegeProcessRole>,
}

/// Call between every pair of the networks that people have, and see who reaches whom
///
/// Makes a network of the lab with two hosts behind each kind of NAT, firewall, proxy and link, starts a node in each
/// and a hub, and has each pair call for the first time. Exits with 1 when a pair does not answer within 3 s, or is
/// relayed where theory gives it a direct path.
#[derive(Debug, Args)]
pub(crate) struct ReachArgs {
    /// Only between these networks, see docs/reference/nat.md; may repeat [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Only whether and when a pair meets, not what messages and bodies cost then
    #[arg(long)]
    pub(crate) quick: bool,
    /// The hub and the nodes of another build of hail [default: this one]
    #[arg(long, value_name = "FILE")]
    pub(crate) program: Option<PathBuf>,
    /// Folder for the results [default: bench/results/reach]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

/// Change the network under a stream, and see how long it is silent and when calls are answered again
///
/// Makes a network of the lab with two nodes behind NATs and a hub for each change: NATs that forget, UDP that is blocked,
/// a move, an interface that is down, sleep, a restart, hubs that die. Exits with 1 when something is lost or takes longer
/// than it may.
#[derive(Debug, Args)]
pub(crate) struct ChangesArgs {
    /// Only these changes; may repeat [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) only: Vec<NetworkChange>,
    /// The hubs and the nodes of another build of hail [default: this one]
    #[arg(long, value_name = "FILE")]
    pub(crate) program: Option<PathBuf>,
    /// Folder for the results [default: bench/results/changes]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

/// Let agents on eleven machines work together: star, hierarchy, ring, mesh, a dispatch, and priorities on a full line
///
/// Makes a network of the lab with a round trip of 50 ms between any two machines. Exits with 1 where a dispatch of 1,000 calls over 10 known
/// nodes takes more than a round trip and 60 ms, a critical call on a full line more than 1.5 times what it takes alone, the lowest
/// priority gets less than 2 %, or a call fails otherwise than by its deadline.
#[derive(Debug, Args)]
pub(crate) struct TopologiesArgs {
    /// How often each topology is done
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Seconds for which the line is full
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub(crate) seconds: u32,
    /// Only up to so many agents [default: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) agents: Option<u32>,
    /// The hub and the nodes of another build of hail [default: this one]
    #[arg(long, value_name = "FILE")]
    pub(crate) program: Option<PathBuf>,
    /// Folder for the results [default: bench/results/topologies]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

/// Soak a phone on the move: no call may be lost, and memory must be flat
///
/// In a network of the lab with jitter and 1 % of loss, a node whose address changes every 20 s calls another and is called by it.
/// Exits with 1 when a call is lost or a process grows by more than a tenth from the second quarter to the last.
#[derive(Debug, Args)]
pub(crate) struct SoakArgs {
    /// For how long
    #[arg(long, value_name = "D", value_parser = duration, default_value = "30m")]
    pub(crate) duration: Duration,
    /// The hub and the nodes of another build of hail [default: this one]
    #[arg(long, value_name = "FILE")]
    pub(crate) program: Option<PathBuf>,
    /// Folder for the results [default: bench/results/soak]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

/// Durable messages: how many are accepted each second, and whether any is lost while the nodes are killed
///
/// Beside the syncs of the disk, a bare log, and NATS JetStream and Redis where they are installed; and what is published under topics, kept and to 1, 100 and 1,000 subscribers, beside NATS core. Then one of two nodes is killed again and again while messages go
/// from one to the other. Exits with 1 when one is lost, comes after its end or out of order.
#[derive(Debug, Args)]
pub(crate) struct MessagesArgs {
    /// Durable sends in each row of speed; 0 for no such rows
    #[arg(long, value_name = "N", default_value = "50000")]
    pub(crate) sends: u32,
    /// What is published to subscribers in each row comes to them about so many times in all; 0 for no such rows [default: four times the sends]
    #[arg(long, value_name = "N")]
    pub(crate) deliveries: Option<u32>,
    /// Messages while nodes are killed; 0 for none
    #[arg(long, value_name = "N", default_value = "10000")]
    pub(crate) messages: u32,
    /// How often a node is killed
    #[arg(long, value_name = "N", default_value = "100")]
    pub(crate) kills: u32,
    /// Each kill is a loss of power: the node's disk, an ext4 of its own, forgets what was not synced. Needs root, and makes loop devices in a mount
    /// namespace that ends with this command
    #[arg(long)]
    pub(crate) power_loss: bool,
    /// The same on disks that ignore syncs, which must lose messages
    #[arg(long, requires = "power_loss", hide = true)]
    pub(crate) ignore_syncs: bool,
    /// The nodes are in a network of the lab that loses, repeats and reorders packets; before some of the kills nothing passes for a while, and the sender's NAT forgets
    #[arg(long)]
    pub(crate) rough_network: bool,
    /// And for so long 200 durable messages a second, and as many that are published, while the receiver's node is killed and started again every 20 s: none may be
    /// lost, and memory and disks must be flat [default: none]
    #[arg(long, value_name = "D", value_parser = duration)]
    pub(crate) soak: Option<Duration>,
    /// From which the instants of the kills are drawn [default: one from the time, which is printed]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Folder on the disk that is measured [default: the system's folder for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) disk: Option<PathBuf>,
    /// The nodes of another build of hail [default: this one]
    #[arg(long, value_name = "FILE")]
    pub(crate) program: Option<PathBuf>,
    /// Folder for the results [default: bench/results/messages]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

/// Run one program of a measurement
///
/// Our own subjects behind the interface by which any program can take part: see
/// docs/reference/bench-subjects.md.
#[derive(Debug, Args)]
pub(crate) struct SubjectArgs {
    #[command(subcommand)]
    pub(crate) command: SubjectCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SubjectCommand {
    /// Serve until standard input ends; prints one line of JSON when ready
    Serve {
        /// Which subject
        #[arg(value_name = "NAME", value_parser = subject)]
        name: Subject,
        #[command(flatten)]
        options: SubjectSetup,
    },
    /// Load: do the work of each line of JSON on standard input
    Load {
        /// Which subject
        #[arg(value_name = "NAME", value_parser = subject)]
        name: Subject,
        /// What the serving program printed when it was ready, in JSON
        #[arg(value_name = "READY")]
        ready: String,
        #[command(flatten)]
        options: SubjectSetup,
    },
}

/// What `hail bench run` runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunnableSuite {
    /// Tables of measured cells.
    Cells(Suite),
    /// Messages and what is built on them, each with a record of its own.
    Messaging,
}

/// The name of [`RunnableSuite::Messaging`].
pub(crate) const MESSAGING: &str = "messaging";

fn suites() -> impl TypedValueParser<Value = RunnableSuite> {
    let names = Suite::ALL.map(Suite::name).into_iter();
    PossibleValuesParser::new(names.chain([MESSAGING])).try_map(|name| match name.as_str() {
        MESSAGING => Ok(RunnableSuite::Messaging),
        name => Suite::named(name)
            .map(RunnableSuite::Cells)
            .ok_or("not a suite"),
    })
}

fn attackers() -> impl TypedValueParser<Value = AttackerKind> {
    PossibleValuesParser::new(AttackerKind::ALL.map(AttackerKind::name))
        .try_map(|name| AttackerKind::named(&name).ok_or("not an attacker"))
}

fn subject(text: &str) -> Result<Subject, String> {
    Subject::named(text).ok_or_else(|| {
        let names = Subject::ALL.map(Subject::name).join(", ");
        format!("expected one of {names}")
    })
}

fn foreign(text: &str) -> Result<ForeignProgram, String> {
    let words = |command: &str| -> Vec<String> {
        command
            .split_whitespace()
            .map(ToString::to_string)
            .collect()
    };
    let parts = text
        .split_once('=')
        .and_then(|(name, commands)| Some((name, commands.split_once(',')?)));
    let Some((name, (serve, load))) = parts else {
        return Err("expected NAME=SERVE,LOAD".into());
    };
    let foreign = ForeignProgram {
        name: name.trim().to_owned(),
        serve: words(serve),
        load: words(load),
    };
    if foreign.name.is_empty() || foreign.serve.is_empty() || foreign.load.is_empty() {
        return Err("expected NAME=SERVE,LOAD with none of the three empty".into());
    }
    if Subject::ALL
        .iter()
        .any(|ours| ours.cell_name() == foreign.name)
    {
        return Err(format!(
            "`{}` is the name of a built-in subject",
            foreign.name
        ));
    }
    Ok(foreign)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_program_is_a_name_and_two_commands() {
        let read = foreign("mine=./serve -p 0,./load --to {address}").unwrap();
        assert_eq!(read.name, "mine");
        assert_eq!(read.serve, ["./serve", "-p", "0"]);
        assert_eq!(read.load, ["./load", "--to", "{address}"]);
        assert!(foreign("mine=./serve").is_err());
        assert!(foreign("=a,b").is_err());
        assert!(foreign("plain h2=a,b").is_err());
    }
}
