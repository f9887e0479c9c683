//! Carries a suite out: networks, processes, repeats A B A B, and the folder.
//!
//! Every contest starts its parties anew. In each repeat every entry has its turn, so that whatever
//! disturbs the machine disturbs all alike; repeat 0 is the warm-up. A party that fails takes its cell
//! out with what it said, and nobody else's. When the run is told to stop, what was measured stays, every
//! cell that is left gets that as its reason, and the folder is finished. Where the time of each row went
//! is kept too, beside what was expected (`estimate`), and the time left learns from it (`progress`).

mod estimate;
mod network;
mod party;
mod profile;
mod progress;
mod turn;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    time::{Duration, Instant},
};

pub use self::{network::NETWORKS, progress::Progress};

use self::{
    network::Networks,
    party::Party,
    turn::{Pair, added, emptied, measure, pooled, prefixed},
};
use crate::{
    BenchError,
    folder::Folder,
    result::{Cell, Line, Part, Spent, Timing},
    subject::Subject,
    suite::{Contest, Entry, Order, PRIORITIES, Reading, Step, Who, steps},
    work::Measured,
};

/// What a run needs besides its order.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This program, which is also run as `PROGRAM bench subject …`.
    pub program: PathBuf,
    /// Where results go.
    pub out: PathBuf,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Repeats that were kept, warm-ups too.
    pub lines: usize,
    /// Cells without one.
    pub skipped: usize,
    /// Whether it was told to stop before its end.
    pub interrupted: bool,
}

struct Run<'a, F> {
    order: &'a Order,
    settings: &'a Settings,
    folder: Folder,
    networks: Networks,
    progress: Progress,
    tell: F,
    skipped: usize,
    /// Of the row that is being measured.
    timing: Option<Timing>,
}

/// How long a run is expected to take, on two cores.
#[must_use]
pub fn expected(order: &Order) -> Duration {
    Duration::from_secs_f64(estimate::of_all(&asked_for(order).0).sum())
}

/// The steps of an order by network, and those on networks that were not asked for.
fn asked_for(order: &Order) -> (Vec<Step>, Vec<Step>) {
    let asked = &order.networks;
    let is_asked = |step: &Step| match step {
        Step::Skip(..) => true,
        Step::Contest(contest) => {
            asked.is_empty() || asked.iter().any(|name| name == contest.network)
        }
    };
    let (asked, others): (Vec<Step>, Vec<Step>) = steps(order).into_iter().partition(is_asked);
    (by_network(asked), others)
}

/// Runs a suite. `tell` is told what is being done, which share of the whole is behind, and the time
/// left. When `stop` resolves, the folder is finished with what there is.
///
/// # Errors
///
/// The folder cannot be written. What cannot be measured is not an error but a cell with a reason.
pub async fn run(
    order: &Order,
    settings: &Settings,
    stop: impl Future<Output = ()>,
    tell: impl FnMut(&str, f64, Duration),
) -> Result<Ended, BenchError> {
    let (steps, others) = asked_for(order);
    let mut run = Run {
        order,
        settings,
        folder: Folder::create(&settings.out)?,
        networks: Networks::default(),
        progress: Progress::new(estimate::of_all(&steps)),
        tell,
        skipped: 0,
        timing: None,
    };
    for step in &others {
        let network = step.network().unwrap_or_default();
        run.skip_all(
            step,
            &format!("not asked for: it runs on the network {network}"),
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
    let ended = Ended {
        lines: run.folder.lines().len(),
        skipped: run.skipped,
        interrupted,
    };
    run.folder.finish(interrupted)?;
    Ok(ended)
}

/// Contests of one network stand together, so that it is brought up once.
fn by_network(steps: Vec<Step>) -> Vec<Step> {
    let mut order: Vec<&'static str> = vec!["loopback"];
    for step in &steps {
        if let Step::Contest(contest) = step
            && !order.contains(&contest.network)
        {
            order.push(contest.network);
        }
    }
    let mut steps = steps;
    steps.sort_by_key(|step| match step {
        Step::Skip(..) => 0,
        Step::Contest(contest) => {
            1 + order
                .iter()
                .position(|name| *name == contest.network)
                .unwrap_or(0)
        }
    });
    steps
}

impl<F: FnMut(&str, f64, Duration)> Run<'_, F> {
    async fn step(&mut self, step: &Step) -> Result<(), BenchError> {
        let contest = match step {
            Step::Skip(cell, reason) => {
                self.skipped += 1;
                return self.folder.skip(cell.clone(), reason);
            }
            Step::Contest(contest) => contest,
        };
        let expected = estimate::of(contest);
        self.timing = Some(Timing {
            suite: self.order.suite.name().to_owned(),
            table: contest.table.to_owned(),
            row: contest.row.clone(),
            network: contest.network.to_owned(),
            took: Spent::default(),
            expected,
            killed: 0,
        });
        if let Err(reason) = self.network(contest.network) {
            for part in Part::ALL {
                self.progress.spared(part, expected.of(part));
            }
            self.timing = None;
            return self.skip_all(step, &reason);
        }
        match contest.reading {
            Reading::Memory => self.memory(contest).await?,
            _ => self.interleaved(contest).await?,
        }
        self.keep_timing()?;
        // Every cell has a line or has been given a reason; whatever slipped through has one now.
        self.skip_all(step, "it gave no figures")
    }

    /// Sees to it that a network is up and was believed.
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
        self.took(Part::Network, expected, begun);
        up
    }

    /// A part of the row that is being measured is behind.
    fn took(&mut self, part: Part, expected: f64, begun: Instant) {
        let took = begun.elapsed().as_secs_f64();
        self.progress.done(part, expected, took);
        if let Some(timing) = &mut self.timing {
            timing.took.add(part, took);
        }
    }

    /// Keeps where the time of a row went, as far as it came.
    fn keep_timing(&mut self) -> Result<(), BenchError> {
        match self.timing.take() {
            Some(timing) => self.folder.timing(timing),
            None => Ok(()),
        }
    }

    /// Ends the parties of an entry.
    async fn end(&mut self, pair: Pair) {
        let begun = Instant::now();
        let killed = pair.end().await;
        if let Some(timing) = &mut self.timing {
            timing.killed += killed;
        }
        self.took(Part::Stop, estimate::of_stop(), begun);
    }

    fn say(&mut self, what: &str) {
        let left = self.progress.left();
        (self.tell)(what, self.progress.share(), left);
    }

    /// Gives every cell of a step that has no line a reason.
    fn skip_all(&mut self, step: &Step, reason: &str) -> Result<(), BenchError> {
        match step {
            Step::Skip(cell, own) => {
                if !self.folder.has(cell) {
                    self.skipped += 1;
                }
                self.folder.skip(cell.clone(), own)
            }
            Step::Contest(contest) => {
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
        entry: &Entry,
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
                    self.skip_entry(contest, entry, &error.told())?;
                    pairs.push((entry, None));
                }
            }
            self.took(Part::Start, estimate::of_start(entry), begun);
        }
        let rtt = network::rtt_s(contest.network);
        for repeat in u32::from(!contest.warm_up)..=contest.repeats {
            let part = if repeat == 0 {
                Part::WarmUp
            } else {
                Part::Work
            };
            let mut first_rate = None;
            for (entry, pair) in &mut pairs {
                self.say(&format!(
                    "{} {}: {}",
                    contest.table, contest.row, entry.subject
                ));
                let work = match part {
                    Part::WarmUp => entry.work.warm_up(),
                    _ => entry.work.clone(),
                };
                let expected = estimate::of_turn(entry, &work, rtt);
                let Some(running) = pair else {
                    self.progress.spared(part, expected);
                    continue;
                };
                let begun = Instant::now();
                let done = if contest.reading == Reading::Profile {
                    profile::measure(running, &work, repeat, self.folder.dir()).await
                } else {
                    measure(running, &work, contest.network).await
                };
                emptied(running, &work).await;
                self.took(part, expected, begun);
                match done {
                    Ok(mut measured) => {
                        if contest.reading == Reading::Pools {
                            measured = pooled(measured, &entry.work, &mut first_rate);
                        }
                        self.keep(contest, entry, repeat, &measured)?;
                    }
                    Err(error) => {
                        self.skip_entry(contest, entry, &error.told())?;
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
                None => self.progress.spared(Part::Stop, estimate::of_stop()),
            }
        }
        Ok(())
    }

    /// New processes for each repeat: memory that was freed is not given back.
    async fn memory(&mut self, contest: &Contest) -> Result<(), BenchError> {
        let rtt = network::rtt_s(contest.network);
        let mut failed = vec![false; contest.entries.len()];
        for repeat in 1..=contest.repeats {
            for (entry, failed) in contest.entries.iter().zip(&mut failed) {
                if *failed {
                    let turn = estimate::of_turn(entry, &entry.work, rtt);
                    self.progress.spared(Part::Work, turn);
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
                        self.skip_entry(contest, entry, &error.told())?;
                    }
                }
            }
        }
        Ok(())
    }

    async fn held(
        &mut self,
        contest: &Contest,
        entry: &Entry,
        rtt: f64,
    ) -> Result<Measured, BenchError> {
        let begun = Instant::now();
        let pair = self.pair(contest, entry).await;
        self.took(Part::Start, estimate::of_start(entry), begun);
        let mut pair = pair?;
        let begun = Instant::now();
        let measured = added(&mut pair, &entry.work).await;
        self.took(
            Part::Work,
            estimate::of_turn(entry, &entry.work, rtt),
            begun,
        );
        self.end(pair).await;
        measured
    }

    async fn pair(&mut self, contest: &Contest, entry: &Entry) -> Result<Pair, BenchError> {
        let up = self.networks.up(contest.network, &mut self.folder);
        let network = up.map_err(BenchError::Wrong)?;
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
            let party = Party::start(&subject.name(), network.command("hub", &command)?).await?;
            told = party.said(if subject == Subject::Hub {
                "ticket"
            } else {
                "address"
            });
            helper = Some(party);
        }
        let serve = match &entry.who {
            Who::Ours(subject, options) => {
                let options = filled(options, "{helper}", &told);
                words("serve", &[&subject.name(), "--listen", &listen], &options)
            }
            Who::Foreign(foreign) => {
                let serve = filled(&foreign.serve, "{listen}", &listen);
                filled(&serve, "{hail}", &program)
            }
        };
        let name = |part: &str| format!("{}, {part}", entry.subject);
        let server = Party::start(&name("serving"), network.command("b", &serve)?).await?;
        let load = match &entry.who {
            Who::Ours(subject, options) => {
                let ready = server.ready.to_string();
                let options = filled(options, "{helper}", &told);
                words("load", &[&subject.name(), &ready], &options)
            }
            Who::Foreign(foreign) => {
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
        let client = Party::start(&name("loading"), network.command("a", &load)?).await?;
        Ok(Pair {
            server,
            client,
            helper,
        })
    }

    fn keep(
        &mut self,
        contest: &Contest,
        entry: &Entry,
        repeat: u32,
        measured: &Measured,
    ) -> Result<(), BenchError> {
        for cell in contest.cells(self.order.suite.name(), entry) {
            let figures = match contest.reading {
                Reading::Priorities if PRIORITIES.contains(&cell.row.as_str()) => {
                    prefixed(&measured.figures, &cell.row)
                }
                Reading::Profile => match measured.figures.get(&cell.row) {
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
        entry: &Entry,
        repeat: u32,
        cell: Cell,
        figures: BTreeMap<String, f64>,
        measured: &Measured,
    ) -> Result<(), BenchError> {
        // A curve is drawn from the counted repeats only, and is most of a line's size.
        let distribution = if repeat == 0 {
            Vec::new()
        } else {
            measured.distribution.clone()
        };
        self.folder.keep(Line {
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

fn filled(words: &[String], place: &str, with: &str) -> Vec<String> {
    words.iter().map(|word| word.replace(place, with)).collect()
}
