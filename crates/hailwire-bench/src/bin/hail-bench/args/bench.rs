//! `hail bench`: measurements.

use std::{net::IpAddr, net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args, Subcommand, builder::PossibleValuesParser};
use hailwire::config::Pool;
use hailwire_bench::{
    run::NETWORKS,
    siege::Kind,
    subject::{Carrier, Congestion, Path, Subject, Wire},
    suite::{Foreign, Suite},
};
use hailwire_terminal::global::duration;

/// Measure Hailwire on this machine
#[derive(Debug, Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    pub(crate) command: BenchCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    Run(Run),
    Siege(Siege),
    Report(super::report::Report),
    Compare(super::report::Compare),
    Subject(SubjectArgs),
}

/// Run a suite and keep its results in a folder
///
/// smoke is a little of everything on loopback, without root, in under a minute. coordination and overlay
/// fill the published tables Q and O; most of their rows need an emulated network, and so root. callout fills the
/// tables C, beside the foreign program in peers/zentinel where it is built.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Which suite
    #[arg(value_name = "SUITE", value_parser = PossibleValuesParser::new(Suite::ALL.map(Suite::name)))]
    pub(crate) suite: String,
    /// As little as gives the figures, under ten minutes; the default
    #[arg(long, conflicts_with = "full")]
    pub(crate) quick: bool,
    /// Every scenario, long
    #[arg(long)]
    pub(crate) full: bool,
    /// Only the rows of this network; may repeat
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = PossibleValuesParser::new(NETWORKS))]
    pub(crate) network: Vec<String>,
    /// Only sessions over this carrier; the baselines always take part; may repeat
    #[arg(long, value_name = "CARRIER", value_delimiter = ',', value_parser = carrier)]
    pub(crate) carrier: Vec<Carrier>,
    /// Counted repeats, after one warm-up [default: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) repeats: Option<u32>,
    /// Folder for the results [default: bench/results/SUITE]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Another program that takes part: NAME=SERVE,LOAD, both commands in words without quotes; may repeat
    #[arg(long, value_name = "NAME=SERVE,LOAD", value_parser = foreign)]
    pub(crate) subject: Vec<Foreign>,
    /// As little work as there is, to see whether everything runs
    #[arg(long, hide = true, conflicts_with_all = ["quick", "full"])]
    pub(crate) tiny: bool,
}

/// Attack a node and a hub on this machine, and see whether honest callers notice
///
/// Starts a hub, a node with agents and two honest nodes, calls them at a steady rate, and attacks: once all
/// attackers at a time, or one by one. Exits with 1 when an honest call is lost, the 99th percentile grows more than
/// threefold, or memory is not flat.
#[derive(Debug, Args)]
pub(crate) struct Siege {
    /// How long the attack lasts
    #[arg(long, value_name = "D", value_parser = duration, default_value = "10m")]
    pub(crate) duration: Duration,
    /// How long it is quiet before the attack, and again after it
    #[arg(long, value_name = "D", value_parser = duration, default_value = "1m")]
    pub(crate) quiet: Duration,
    /// Only these attackers; may repeat [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = PossibleValuesParser::new(Kind::ALL.map(Kind::name)))]
    pub(crate) only: Vec<String>,
    /// One attacker after the other, each against processes of its own
    #[arg(long)]
    pub(crate) one_by_one: bool,
    /// Attack the hub and the nodes of another build of hail [default: this one]
    #[arg(long, value_name = "FILE")]
    pub(crate) program: Option<PathBuf>,
    /// Folder for the results [default: bench/results/siege]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Written by `hail bench siege` for the processes that it starts
    #[arg(long, value_name = "PART", hide = true)]
    pub(crate) part: Option<String>,
}

/// Play one party of a measurement
///
/// The interface by which any program can take part, spoken by our own: see
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
        options: SubjectOptions,
    },
    /// Load: do the work of each line of JSON on standard input
    Load {
        /// Which subject
        #[arg(value_name = "NAME", value_parser = subject)]
        name: Subject,
        /// What the serving party said when it was ready, in JSON
        #[arg(value_name = "READY")]
        ready: String,
        #[command(flatten)]
        options: SubjectOptions,
    },
}

/// How a subject is set up.
#[derive(Debug, Args)]
pub(crate) struct SubjectOptions {
    /// Address to serve at
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    pub(crate) listen: IpAddr,
    /// QUIC congestion control: bbr or cubic [default: the subject's own]
    #[arg(long, value_name = "NAME", value_parser = congestion)]
    pub(crate) congestion: Option<Congestion>,
    /// Bytes of one stream that may be unread [default: the subject's own]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1024..))]
    pub(crate) window: Option<u32>,
    /// What both sides meet through: a relay proxy for plain-h2, another udp-echo for udp-echo
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) through: Option<SocketAddr>,
    /// What the far node said when it was ready; only node
    #[arg(long, value_name = "READY", hide = true)]
    pub(crate) peer: Option<String>,
    /// A ticket of the hub that both nodes join, instead of knowing each other's address
    #[arg(long, value_name = "TICKET")]
    pub(crate) hub: Option<String>,
    /// Measure only on this path: direct or relay
    #[arg(long, value_name = "PATH", value_parser = path)]
    pub(crate) path: Option<Path>,
    /// Connections of a warm tunnel, waited for before work begins; only sessions [default: the node's own]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(Pool::MAX)))]
    pub(crate) pool: Option<u32>,
    /// How callouts travel: json, msgpack or grpc; only callout
    #[arg(long, value_name = "WIRE", default_value = "msgpack", value_parser = wire)]
    pub(crate) callout: Wire,
}

fn wire(text: &str) -> Result<Wire, String> {
    let known = Wire::ALL.into_iter().find(|wire| wire.word() == text);
    known.ok_or_else(|| "expected json, msgpack or grpc".into())
}

fn carrier(text: &str) -> Result<Carrier, String> {
    match text {
        "quic" => Ok(Carrier::Quic),
        "h2" => Ok(Carrier::H2),
        "ws" => Ok(Carrier::Ws),
        "auto" => Ok(Carrier::Auto),
        _ => Err("expected quic, h2, ws or auto".into()),
    }
}

fn congestion(text: &str) -> Result<Congestion, String> {
    match text {
        "bbr" => Ok(Congestion::Bbr),
        "cubic" => Ok(Congestion::Cubic),
        _ => Err("expected bbr or cubic".into()),
    }
}

fn path(text: &str) -> Result<Path, String> {
    match text {
        "direct" => Ok(Path::Direct),
        "relay" => Ok(Path::Relay),
        _ => Err("expected direct or relay".into()),
    }
}

fn subject(text: &str) -> Result<Subject, String> {
    Subject::named(text).ok_or_else(|| {
        let names = Subject::ALL.map(Subject::name).join(", ");
        format!("expected one of {names}")
    })
}

fn foreign(text: &str) -> Result<Foreign, String> {
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
    let foreign = Foreign {
        name: name.trim().to_owned(),
        serve: words(serve),
        load: words(load),
    };
    if foreign.name.is_empty() || foreign.serve.is_empty() || foreign.load.is_empty() {
        return Err("a name and two commands are needed: NAME=SERVE,LOAD".into());
    }
    if Subject::ALL.iter().any(|ours| ours.word() == foreign.name) {
        return Err(format!(
            "`{}` is the name of a subject of ours",
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
