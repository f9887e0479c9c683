//! `hail lab`: networks to test in.

use std::{
    ffi::OsStr,
    fmt::Write as _,
    os::unix::process::CommandExt as _,
    process::{Child, Command},
};

use hailwire_kdl::FileError;
use hailwire_lab::{
    Topology, TopologyError,
    check::{NetworkReport, PathReport},
    real::{self, EnclosureHandle, LabError, NamespaceNetwork},
    topology::BUILT_IN,
};
use hailwire_terminal::{
    child,
    failure::CommandFailure,
    output::Output,
    table::{TableStyle, TextTable},
};
use serde::Serialize;

use crate::args::lab;

/// A topology in a list.
#[derive(Debug, Serialize)]
struct TopologyRow {
    name: String,
    hosts: Vec<String>,
    about: String,
}

/// Prints the built-in topologies.
pub(super) fn list(output: Output) -> Result<(), CommandFailure> {
    let row = |(name, _): &(&str, &str)| {
        let topology = Topology::named(name).map_err(|error| caused(&error))?;
        Ok(TopologyRow {
            hosts: topology
                .hosts()
                .map(|(_, host)| host.name.clone())
                .collect(),
            name: topology.name,
            about: topology.about,
        })
    };
    let rows: Vec<TopologyRow> = BUILT_IN
        .iter()
        .map(row)
        .collect::<Result<_, CommandFailure>>()?;
    let table = |rows: &[TopologyRow]| {
        let mut table = TextTable::new(["TOPOLOGY", "HOSTS", "ABOUT"]);
        for row in rows {
            table.row([row.name.clone(), row.hosts.join(" "), row.about.clone()]);
        }
        table
    };
    output.rows(&rows, table, "no topologies")
}

/// Prints a topology as a file.
pub(super) fn show(output: Output, name: &str) -> Result<(), CommandFailure> {
    let topology = find(name)?;
    output.value(&topology, |_| {
        let ready = BUILT_IN.iter().find(|(ready, _)| *ready == name);
        match ready {
            Some((_, text)) => (*text).to_owned(),
            None => std::fs::read_to_string(name).unwrap_or_default(),
        }
    })
}

/// Measures a network and fails where it differs from its label.
pub(super) async fn check(output: Output, name: String) -> Result<(), CommandFailure> {
    let topology = find(&name)?;
    reach()?;
    // The check runs in threads of its own; Ctrl-C ends the process, and with it the network.
    let measured = tokio::task::spawn_blocking(move || {
        let network = NamespaceNetwork::up(&topology)?;
        hailwire_lab::check(&network)
    });
    let checked = measured
        .await
        .map_err(CommandFailure::general)?
        .map_err(|error| lab_failed(&error))?;
    output.value(&checked, for_people)?;
    match checked.within {
        true => Ok(()),
        false => Err(CommandFailure::general(format!(
            "the network `{name}` does not match its topology"
        ))
        .hint("a busy machine adds delay; try again when it is idle")),
    }
}

/// Runs a program in a host and exits with its exit code.
pub(super) async fn run(args: lab::LabRunArgs) -> Result<(), CommandFailure> {
    let topology = find(&args.topology)?;
    reach()?;
    let network =
        NamespaceNetwork::seeded(&topology, args.seed).map_err(|error| lab_failed(&error))?;
    let runtime = tokio::runtime::Handle::current();
    let (enclosure, started) = network
        .enclosed(|inside| {
            let _runtime = runtime.enter();
            start(&network, inside, &args)
        })
        .map_err(|error| lab_failed(&error))?;
    let (others, mut child) = started?;
    let status = child::wait(&mut child).await?;
    enclosure
        .end(others)
        .map_err(|error| CommandFailure::io("cannot end a program", &error))?;
    child::passed_on(status)
}

/// Starts the shell commands of `--with`, then the program.
fn start(
    network: &NamespaceNetwork,
    inside: &EnclosureHandle<'_>,
    args: &lab::LabRunArgs,
) -> Result<(Vec<Child>, tokio::process::Child), CommandFailure> {
    let mut others = Vec::new();
    for with in &args.with {
        let mut command = in_host(network, inside, &with.host, "sh".as_ref())?;
        let started = command
            .args(["-c", &with.command])
            .process_group(0)
            .stdin(std::process::Stdio::null())
            .spawn();
        others.push(started.map_err(|error| CommandFailure::io("cannot start `sh`", &error))?);
    }
    let (program, program_args) = args
        .program
        .split_first()
        .ok_or_else(|| CommandFailure::usage("no program was given"))?;
    let mut command = in_host(network, inside, &args.host, program)?;
    command.args(program_args);
    let child = tokio::process::Command::from(command)
        .spawn()
        .map_err(|error| CommandFailure::io("cannot start the program", &error))?;
    Ok((others, child))
}

/// A command with the addresses of the hosts in its environment; this thread enters the host that it is for.
fn in_host(
    network: &NamespaceNetwork,
    inside: &EnclosureHandle<'_>,
    host: &str,
    program: &OsStr,
) -> Result<Command, CommandFailure> {
    // Its error also lists the hosts that exist.
    network.address(host).map_err(|error| lab_failed(&error))?;
    inside
        .enter(host)
        .map_err(|error| CommandFailure::io(format!("cannot enter the host `{host}`"), &error))?;
    let mut command = Command::new(program);
    for (other, path) in inside.namespace_paths() {
        let address = network.address(other).map_err(|error| lab_failed(&error))?;
        let name = other.to_uppercase().replace('-', "_");
        command.env(format!("LAB_{name}"), address.to_string());
        command.env(format!("LAB_NS_{name}"), path);
    }
    Ok(command)
}

fn find(name: &str) -> Result<Topology, CommandFailure> {
    Topology::find(name).map_err(|error| match &error {
        TopologyError::File(error @ FileError::Read { .. }) => CommandFailure::file(error),
        _ => CommandFailure::usage(&error).hint(error.hint()),
    })
}

/// Enters a place where networks can be created: here as root, or else a user namespace.
fn reach() -> Result<(), CommandFailure> {
    let Err(reason) = real::available() else {
        return Ok(());
    };
    let reason = match rustix::process::geteuid().is_root() {
        true => reason,
        false => format!("{reason}; {}", real::in_user_namespace()),
    };
    Err(lab_failed(&LabError::Unavailable(reason)))
}

fn lab_failed(error: &LabError) -> CommandFailure {
    match error {
        LabError::NoHost { .. } => CommandFailure::usage(error),
        LabError::Unavailable(_) => {
            caused(error).hint("run as root; `hail lab list` and `show` need no rights")
        }
        LabError::Failed { .. } => caused(error),
    }
}

fn caused(error: &dyn std::error::Error) -> CommandFailure {
    CommandFailure::caused(hailwire_wire::Code::Unknown, error)
}

fn for_people(checked: &NetworkReport) -> String {
    let mut table = TextTable::new([
        "PATH",
        "OVER",
        ">RTT",
        ">LOSS OUT",
        ">LOSS BACK",
        ">OUT",
        ">BACK",
    ]);
    for path in &checked.paths {
        rows(path, &mut table);
    }
    let mut out = table.render(TableStyle::default());
    for path in &checked.paths {
        for fault in &path.faults {
            let _ = writeln!(out, "{} → {}: {fault}", path.from, path.to);
        }
    }
    out
}

fn rows(path: &PathReport, table: &mut TextTable) {
    let name = format!("{} → {}", path.from, path.to);
    let rtt = |ms: f64| format!("{ms:.2} ms");
    let loss = |share: f64| format!("{:.2} %", share * 100.0);
    let rate =
        |rate: Option<f64>| rate.map_or_else(String::new, |r| format!("{:.1} Mbit/s", r / 1e6));
    let label = &path.label;
    table.row([
        name,
        "label".into(),
        rtt(label.rtt.as_secs_f64() * 1000.0),
        loss(label.loss_out),
        loss(label.loss_back),
        rate(label.rate.map(|r| r as f64)),
        rate(path.label_rate_back.map(|r| r as f64)),
    ]);
    let nothing = || "nothing".to_owned();
    table.row(match &path.udp {
        Some(udp) => [
            String::new(),
            "UDP".into(),
            rtt(udp.rtt_ms),
            loss(udp.loss_out),
            loss(udp.loss_back),
            rate(udp.rate_out),
            rate(udp.rate_back),
        ],
        None => [
            String::new(),
            "UDP".into(),
            nothing(),
            nothing(),
            nothing(),
            nothing(),
            nothing(),
        ],
    });
    table.row(match &path.tcp {
        Some(tcp) => [
            String::new(),
            "TCP".into(),
            rtt(tcp.rtt_ms),
            String::new(),
            String::new(),
            rate(Some(tcp.rate_out)),
            rate(Some(tcp.rate_back)),
        ],
        None => [
            String::new(),
            "TCP".into(),
            nothing(),
            nothing(),
            nothing(),
            nothing(),
            nothing(),
        ],
    });
}
