//! Runs a suite: networks, processes, repeats A B A B, and the folder.
//!
//! Every contest starts new processes. Each repeat measures every entry once, so that a disturbance of the
//! machine affects all alike; repeat 0 is the warm-up. When a process fails, only its own cell is skipped, with its error as the reason. When the run is stopped, what was measured is kept, every remaining cell gets that as its reason, and the folder is finished. Where the time of each row went
//! is kept too, with what was expected (`estimate`), and corrects the time left (`progress`).

mod estimate;
mod network;
mod process_pair;
mod profile;
mod progress;
mod subject_process;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    time::{Duration, Instant},
};

pub use self::{network::NETWORKS, progress::RunProgress};

use self::{
    network::ContestNetworks,
    process_pair::{ProcessPair, added, emptied, measure, pooled, prefixed},
    subject_process::SubjectProcess,
};
use crate::{
    BenchError,
    result::{CellId, MeasuredRepeat, PhaseSeconds, RowTiming, RunPhase},
    run_folder::RunFolder,
    subject::Subject,
    suite::{
        Contest, Contestant, FigureReading, PRIORITIES, Participant, SuiteOrder, SuiteStep, steps,
    },
    work::MeasuredWork,
};

/// The settings of a run besides its order.
#[derive(Clone, Debug)]
pub struct RunSettings {
    /// This program, which is also run as `PROGRAM bench subject …`.
    pub program: PathBuf,
    /// Where results go.
    pub out: PathBuf,
}

/// The outcome of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunOutcome {
    /// Repeats that were kept, warm-ups too.
    pub lines: usize,
    /// Cells without one.
    pub skipped: usize,
    /// Whether it was stopped before its end.
    pub interrupted: bool,
}

struct SuiteRun<'a, F> {
    order: &'a SuiteOrder,
    settings: &'a RunSettings,
    folder: RunFolder,
    networks: ContestNetworks,
    progress: RunProgress,
    tell: F,
    skipped: usize,
    /// The time spent on the row that is being measured.
    timing: Option<RowTiming>,
}

/// How long a run is expected to take, on two cores.
#[must_use]
pub fn expected(order: &SuiteOrder) -> Duration {
    Duration::from_secs_f64(estimate::of_all(&asked_for(order).0).sum())
}

/// The steps of an order by network, and those on networks that were not selected.
fn asked_for(order: &SuiteOrder) -> (Vec<SuiteStep>, Vec<SuiteStep>) {
    let asked = &order.networks;
    let is_asked = |step: &SuiteStep| match step {
        SuiteStep::Skip(..) => true,
        SuiteStep::Contest(contest) => {
            asked.is_empty() || asked.iter().any(|name| name == contest.network)
        }
    };
    let (asked, others): (Vec<SuiteStep>, Vec<SuiteStep>) =
        steps(order).into_iter().partition(is_asked);
    (by_network(asked), others)
}

/// Runs a suite. `tell` is called with the current step, the share of the work that is done, and the
/// time left. When `stop` resolves, the folder is finished with what there is.
///
/// # Errors
///
/// The folder cannot be written. What cannot be measured is not an error but a cell with a reason.
pub async fn run(
    order: &SuiteOrder,
    settings: &RunSettings,
    stop: impl Future<Output = ()>,
    tell: impl FnMut(&str, f64, Duration),
) -> Result<RunOutcome, BenchError> {
    let (steps, others) = asked_for(order);
    let mut run = SuiteRun {
        order,
        settings,
        folder: RunFolder::create(&settings.out)?,
        networks: ContestNetworks::default(),
        progress: RunProgress::new(estimate::of_all(&steps)),
        tell,
        skipped: 0,
        timing: None,
    };
    for step in &others {
        let network = step.network().unwrap_or_default();
        run.skip_all(
            step,
            &format!("not selected: it runs on the network {network}"),
        )?;
    }
    let mut stop = std::pin::pin!(stop);
    let mut interrupted = false;
    for step in &steps {
        if !interrupted {
            tokio::select! {
                biased;
                () = &mut stop => interrupted = true,
                done = run.step(step) => done?,
            }
        }
        if interrupted {
            run.keep_timing()?;
            run.skip_all(step, "the run was interrupted")?;
        }
    }
    let ended = RunOutcome {
        lines: run.folder.lines().len(),
        skipped: run.skipped,
        interrupted,
    };
    run.folder.finish(interrupted)?;
    Ok(ended)
}

/// Contests of one network stand together, so that it is brought up once.
fn by_network(steps: Vec<SuiteStep>) -> Vec<SuiteStep> {
    let mut order: Vec<&'static str> = vec!["loopback"];
    for step in &steps {
        if let SuiteStep::Contest(contest) = step
            && !order.contains(&contest.network)
        {
            order.push(contest.network);
        }
    }
    let mut steps = steps;
    steps.sort_by_key(|step| match step {
        SuiteStep::Skip(..) => 0,
        SuiteStep::Contest(contest) => {
            1 + order
                .iter()
                .position(|name| *name == contest.network)
                .unwrap_or(0)
        }
    });
    steps
}

impl<F: FnMut(&str, f64, Duration)> SuiteRun<'_, F> {
    async fn step(&mut self, step: &SuiteStep) -> Result<(), BenchError> {
        let contest = match step {
            SuiteStep::Skip(cell, reason) => {
                self.skipped += 1;
                return self.folder.skip(cell.clone(), reason);
            }
            SuiteStep::Contest(contest) => contest,
        };
        let expected = estimate::of(contest);
        self.timing = Some(RowTiming {
            suite: self.order.suite.name().to_owned(),
            table: contest.table.to_owned(),
            row: contest.row.clone(),
            network: contest.network.to_owned(),
            took: PhaseSeconds::default(),
            expected,
            killed: 0,
        });
        if let Err(reason) = self.network(contest.network) {
            for phase in RunPhase::ALL {
                self.progress.spared(phase, expected.of(phase));
            }
            self.timing = None;
            return self.skip_all(step, &reason);
        }
        match contest.reading {
            FigureReading::Memory => self.memory(contest).await?,
            _ => self.interleaved(contest).await?,
        }
        self.keep_timing()?;
        // Every cell should have a line or a reason by now; any other gets this reason.
        self.skip_all(step, "it gave no figures")
    }

    /// Brings a network up, and checks it.
    fn network(&mut self, name: &'static str) -> Result<(), String> {
        if self.networks.is_known(name) {
            return self.networks.up(name, &mut self.folder).map(drop);
        }
        self.say(&format!("the network {name}"));
        let begun = Instant::now();
        let up = self.networks.up(name, &mut self.folder).map(drop);
        let expected = estimate::of_network(name);
        if let Some(timing) = &mut self.timing {
            timing.expected.network_s = expected;
        }
        self.took(RunPhase::Network, expected, begun);
        up
    }

    /// A phase of the row that is being measured has ended.
    fn took(&mut self, phase: RunPhase, expected: f64, begun: Instant) {
        let took = begun.elapsed().as_secs_f64();
        self.progress.done(phase, expected, took);
        if let Some(timing) = &mut self.timing {
            timing.took.add(phase, took);
        }
    }

    /// Writes the timing of a row, also of an unfinished one.
    fn keep_timing(&mut self) -> Result<(), BenchError> {
        match self.timing.take() {
            Some(timing) => self.folder.timing(timing),
            None => Ok(()),
        }
    }

    /// Stops the processes of an entry.
    async fn end(&mut self, pair: ProcessPair) {
        let begun = Instant::now();
        let killed = pair.end().await;
        if let Some(timing) = &mut self.timing {
            timing.killed += killed;
        }
        self.took(RunPhase::Stop, estimate::of_stop(), begun);
    }

    fn say(&mut self, what: &str) {
        let left = self.progress.left();
        (self.tell)(what, self.progress.share(), left);
    }

    /// Gives every cell of a step that has no line a reason.
    fn skip_all(&mut self, step: &SuiteStep, reason: &str) -> Result<(), BenchError> {
        match step {
            SuiteStep::Skip(cell, own) => {
                if !self.folder.has(cell) {
                    self.skipped += 1;
                }
                self.folder.skip(cell.clone(), own)
            }
            SuiteStep::Contest(contest) => {
                for entry in &contest.entries {
                    self.skip_entry(contest, entry, reason)?;
                }
                Ok(())
            }
        }
    }

    fn skip_entry(
        &mut self,
        contest: &Contest,
        entry: &Contestant,
        reason: &str,
    ) -> Result<(), BenchError> {
        for cell in contest.cells(self.order.suite.name(), entry) {
            if !self.folder.has(&cell) {
                self.skipped += 1;
                self.folder.skip(cell, reason)?;
            }
        }
        Ok(())
    }

    /// Entries in turn, repeat by repeat.
    async fn interleaved(&mut self, contest: &Contest) -> Result<(), BenchError> {
        let mut pairs = Vec::new();
        for entry in &contest.entries {
            let begun = Instant::now();
            match self.pair(contest, entry).await {
                Ok(pair) => pairs.push((entry, Some(pair))),
                Err(error) => {
                    self.skip_entry(contest, entry, &error.with_cause())?;
                    pairs.push((entry, None));
                }
            }
            self.took(RunPhase::Start, estimate::of_start(entry), begun);
        }
        let rtt = network::rtt_s(contest.network);
        for repeat in u32::from(!contest.warm_up)..=contest.repeats {
            let phase = if repeat == 0 {
                RunPhase::WarmUp
            } else {
                RunPhase::Work
            };
            let mut first_rate = None;
            for (entry, pair) in &mut pairs {
                self.say(&format!(
                    "{} {}: {}",
                    contest.table, contest.row, entry.subject
                ));
                let work = match phase {
                    RunPhase::WarmUp => entry.work.warm_up(),
                    _ => entry.work.clone(),
                };
                let expected = estimate::of_repeat(entry, &work, rtt);
                let Some(running) = pair else {
                    self.progress.spared(phase, expected);
                    continue;
                };
                let begun = Instant::now();
                let done = if contest.reading == FigureReading::Profile {
                    profile::measure(running, &work, repeat, self.folder.dir()).await
                } else {
                    measure(running, &work, contest.network).await
                };
                emptied(running, &work).await;
                self.took(phase, expected, begun);
                match done {
                    Ok(mut measured) => {
                        if contest.reading == FigureReading::Pools {
                            measured = pooled(measured, &entry.work, &mut first_rate);
                        }
                        self.keep(contest, entry, repeat, &measured)?;
                    }
                    Err(error) => {
                        self.skip_entry(contest, entry, &error.with_cause())?;
                        if let Some(failed) = pair.take() {
                            self.end(failed).await;
                        }
                    }
                }
            }
        }
        for (_, pair) in pairs {
            match pair {
                Some(pair) => self.end(pair).await,
                None => self.progress.spared(RunPhase::Stop, estimate::of_stop()),
            }
        }
        Ok(())
    }

    /// New processes for each repeat, since freed memory is not returned to the system.
    async fn memory(&mut self, contest: &Contest) -> Result<(), BenchError> {
        let rtt = network::rtt_s(contest.network);
        let mut failed = vec![false; contest.entries.len()];
        for repeat in 1..=contest.repeats {
            for (entry, failed) in contest.entries.iter().zip(&mut failed) {
                if *failed {
                    let expected = estimate::of_repeat(entry, &entry.work, rtt);
                    self.progress.spared(RunPhase::Work, expected);
                    continue;
                }
                self.say(&format!(
                    "{} {}: {}",
                    contest.table, contest.row, entry.subject
                ));
                let done = self.held(contest, entry, rtt).await;
                match done {
                    Ok(measured) => self.keep(contest, entry, repeat, &measured)?,
                    Err(error) => {
                        *failed = true;
                        self.skip_entry(contest, entry, &error.with_cause())?;
                    }
                }
            }
        }
        Ok(())
    }

    async fn held(
        &mut self,
        contest: &Contest,
        entry: &Contestant,
        rtt: f64,
    ) -> Result<MeasuredWork, BenchError> {
        let begun = Instant::now();
        let pair = self.pair(contest, entry).await;
        self.took(RunPhase::Start, estimate::of_start(entry), begun);
        let mut pair = pair?;
        let begun = Instant::now();
        let measured = added(&mut pair, &entry.work).await;
        self.took(
            RunPhase::Work,
            estimate::of_repeat(entry, &entry.work, rtt),
            begun,
        );
        self.end(pair).await;
        measured
    }

    async fn pair(
        &mut self,
        contest: &Contest,
        entry: &Contestant,
    ) -> Result<ProcessPair, BenchError> {
        let up = self.networks.up(contest.network, &mut self.folder);
        let network = up.map_err(BenchError::Invalid)?;
        let listen = network.address("b")?.to_string();
        let program = self.settings.program.display().to_string();
        let words = |part: &str, own: &[&str], options: &[String]| {
            let mut words: Vec<String> = vec![program.clone()];
            words.extend(["bench", "subject", part].map(ToString::to_string));
            words.extend(own.iter().map(ToString::to_string));
            words.extend(options.iter().cloned());
            words
        };
        let mut helper = None;
        let mut told = String::new();
        if let Some(subject) = entry.helper {
            let at = network.address("hub")?.to_string();
            let command = words("serve", &[&subject.name(), "--listen", &at], &[]);
            let process =
                SubjectProcess::start(&subject.name(), network.command("hub", &command)?).await?;
            told = process.said(if subject == Subject::Hub {
                "ticket"
            } else {
                "address"
            });
            helper = Some(process);
        }
        let mut node = None;
        let mut data = String::new();
        if let Participant::Attached(_) = entry.participant {
            let own = [&*Subject::Node.name(), "--listen", &listen];
            let command = network.command("b", &words("serve", &own, &[]))?;
            let process = SubjectProcess::start(&Subject::Node.name(), command).await?;
            data = process.said("data");
            node = Some(process);
        }
        let on = |host: &str, words: &[String]| -> Result<std::process::Command, BenchError> {
            let mut command = network.command(host, words)?;
            if !data.is_empty() {
                command.env("HAIL_DATA", &data);
            }
            Ok(command)
        };
        let serve = match &entry.participant {
            Participant::Ours(subject, options) => {
                let options = filled(options, "{helper}", &told);
                words("serve", &[&subject.name(), "--listen", &listen], &options)
            }
            Participant::Foreign(foreign) | Participant::Attached(foreign) => {
                let serve = filled(&foreign.serve, "{listen}", &listen);
                filled(&serve, "{hail}", &program)
            }
        };
        let name = |part: &str| format!("{}, {part}", entry.subject);
        let server = match SubjectProcess::start(&name("serving"), on("b", &serve)?).await {
            Ok(server) => server,
            Err(error) => {
                end([node, helper]).await;
                return Err(error);
            }
        };
        let load = match &entry.participant {
            Participant::Ours(subject, options) => {
                let ready = server.ready.to_string();
                let options = filled(options, "{helper}", &told);
                words("load", &[&subject.name(), &ready], &options)
            }
            Participant::Foreign(foreign) | Participant::Attached(foreign) => {
                let mut load = foreign.load.clone();
                let names = |word: &String| word.contains("{address}") || word.contains("{ready}");
                let address = server.said("address");
                if !address.is_empty() && !load.iter().any(names) {
                    load.push("{address}".to_owned());
                }
                let load = filled(&load, "{hail}", &program);
                let load = filled(&load, "{ready}", &server.ready.to_string());
                filled(&load, "{address}", &address)
            }
        };
        let client = match SubjectProcess::start(&name("loading"), on("a", &load)?).await {
            Ok(client) => client,
            Err(error) => {
                end([Some(server), node, helper]).await;
                return Err(error);
            }
        };
        let versions = client.said("versions");
        if !versions.is_empty() {
            self.folder.program(&entry.subject, versions);
        }
        Ok(ProcessPair {
            server,
            client,
            node,
            helper,
        })
    }

    fn keep(
        &mut self,
        contest: &Contest,
        entry: &Contestant,
        repeat: u32,
        measured: &MeasuredWork,
    ) -> Result<(), BenchError> {
        for cell in contest.cells(self.order.suite.name(), entry) {
            let figures = match contest.reading {
                FigureReading::Priorities if PRIORITIES.contains(&cell.row.as_str()) => {
                    prefixed(&measured.figures, &cell.row)
                }
                FigureReading::Profile => match measured.figures.get(&cell.row) {
                    Some(share) => BTreeMap::from([("share_percent".to_owned(), *share)]),
                    None => continue,
                },
                _ => measured.figures.clone(),
            };
            self.keep_line(contest, entry, repeat, cell, figures, measured)?;
        }
        Ok(())
    }

    fn keep_line(
        &mut self,
        contest: &Contest,
        entry: &Contestant,
        repeat: u32,
        cell: CellId,
        figures: BTreeMap<String, f64>,
        measured: &MeasuredWork,
    ) -> Result<(), BenchError> {
        // A curve is drawn from the counted repeats only, and is most of a line's size.
        let distribution = if repeat == 0 {
            Vec::new()
        } else {
            measured.distribution.clone()
        };
        self.folder.keep(MeasuredRepeat {
            cell,
            network: contest.network.to_owned(),
            // The only repeat of a profile counts.
            repeat,
            figures,
            distribution,
            asked: entry.work.asked(),
        })
    }
}

/// Ends in order what was started before something that did not start: a process that is killed leaves its folder.
async fn end<const N: usize>(started: [Option<SubjectProcess>; N]) {
    for process in started.into_iter().flatten() {
        process.end().await;
    }
}

fn filled(words: &[String], place: &str, with: &str) -> Vec<String> {
    words.iter().map(|word| word.replace(place, with)).collect()
}
