//! Carries a suite out: networks, processes, repeats A B A B, and the folder.
//!
//! Every contest starts its parties anew. In each repeat every entry has its turn, so that whatever
//! disturbs the machine disturbs all alike; repeat 0 is the warm-up. A party that fails takes its cell
//! out with what it said, and nobody else's. When the run is told to stop, what was measured stays, every
//! cell that is left gets that as its reason, and the folder is finished.

mod network;
mod party;
mod profile;
mod progress;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::{Duration, Instant},
};

pub use self::{network::NETWORKS, progress::Progress};

use self::{network::Networks, party::Party};
use crate::{
    BenchError,
    folder::Folder,
    measure::process::{self, Usage},
    result::{Cell, Line},
    subject::Subject,
    suite::{Contest, Entry, Order, PRIORITIES, Reading, Step, Who, steps},
    work::{Measured, Start, Work},
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

/// Expected seconds to start two parties and to end them.
const START_S: f64 = 0.12;

/// Expected seconds to start one more node in a loading process.
const NODE_S: f64 = 0.015;

struct Run<'a, F> {
    order: &'a Order,
    settings: &'a Settings,
    folder: Folder,
    networks: Networks,
    progress: Progress,
    begun: Instant,
    tell: F,
    skipped: usize,
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
    let steps = by_network(steps(order));
    let whole = expected(&steps);
    let mut run = Run {
        order,
        settings,
        folder: Folder::create(&settings.out)?,
        networks: Networks::default(),
        progress: Progress::new(whole),
        begun: Instant::now(),
        tell,
        skipped: 0,
    };
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

fn expected(steps: &[Step]) -> f64 {
    let networks: BTreeSet<&str> = steps.iter().filter_map(Step::network).collect();
    steps.iter().map(expected_s).sum::<f64>() + networks.into_iter().map(network_s).sum::<f64>()
}

fn expected_s(step: &Step) -> f64 {
    let Step::Contest(contest) = step else {
        return 0.0;
    };
    let rtt = network::rtt_s(contest.network);
    let one = |entry: &Entry| {
        let work = turn_s(entry, rtt);
        let repeats = f64::from(contest.repeats);
        match contest.reading {
            Reading::Memory => (START_S + work) * repeats,
            _ => START_S + work * (repeats + f64::from(u8::from(contest.warm_up))),
        }
    };
    contest.entries.iter().map(one).sum()
}

/// Expected seconds of one turn, with what is prepared before the clock runs.
fn turn_s(entry: &Entry, rtt: f64) -> f64 {
    let node = match entry.who {
        Who::Ours(Subject::Session(_), _) => NODE_S,
        _ => 0.0,
    };
    let prepared = match entry.work {
        Work::Establish {
            agents,
            connections,
            start,
            ..
        } => {
            let count = f64::from(if connections == 0 { agents } else { 1 });
            // What is to be resumed has to have met before.
            let met = if start == Start::Cold {
                0.0
            } else {
                4.0 * rtt + count * 0.001
            };
            count * node + met
        }
        Work::Dispatch { agents, start, .. } if start != Start::Warm => f64::from(agents) * node,
        Work::Hold {
            agents,
            connections: 0,
            ..
        } => f64::from(agents) * (node + 3.0 * rtt),
        _ => 0.0,
    };
    prepared + entry.work.estimate_s(rtt)
}

/// Expected seconds until a network is up.
fn network_s(name: &str) -> f64 {
    if name == "loopback" {
        0.0
    } else {
        network::UP_S
    }
}

/// Two processes at work.
struct Pair {
    server: Party,
    client: Party,
    helper: Option<Party>,
}

impl Pair {
    fn usage(&self) -> [Usage; 2] {
        [
            process::usage(self.client.pid()),
            process::usage(self.server.pid()),
        ]
    }

    async fn end(self) {
        self.client.end().await;
        self.server.end().await;
        if let Some(helper) = self.helper {
            helper.end().await;
        }
    }
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
        let asked = &self.order.networks;
        if !asked.is_empty() && !asked.iter().any(|name| name == contest.network) {
            let reason = format!("not asked for: it runs on the network {}", contest.network);
            return self.skip_all(step, &reason);
        }
        self.say(&format!("{} {}", contest.table, contest.row));
        if !self.networks.is_up(contest.network) {
            self.say(&format!("the network {}", contest.network));
            self.progress.done(network_s(contest.network));
        }
        if let Err(reason) = self.networks.up(contest.network, &mut self.folder) {
            self.progress.done(expected_s(step));
            return self.skip_all(step, &reason);
        }
        match contest.reading {
            Reading::Memory => self.memory(contest).await?,
            _ => self.interleaved(contest).await?,
        }
        // Every cell has a line or has been given a reason; whatever slipped through has one now.
        self.skip_all(step, "it gave no figures")
    }

    fn say(&mut self, what: &str) {
        let left = self.progress.left(self.begun.elapsed());
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
            match self.pair(contest, entry).await {
                Ok(pair) => pairs.push((entry, Some(pair))),
                Err(error) => {
                    self.skip_entry(contest, entry, &error.told())?;
                    pairs.push((entry, None));
                }
            }
            self.progress.done(START_S);
        }
        let rtt = network::rtt_s(contest.network);
        for repeat in u32::from(!contest.warm_up)..=contest.repeats {
            let mut first_rate = None;
            for (entry, pair) in &mut pairs {
                self.say(&format!(
                    "{} {}: {}",
                    contest.table, contest.row, entry.subject
                ));
                let expected = turn_s(entry, rtt);
                let Some(running) = pair else {
                    self.progress.done(expected);
                    continue;
                };
                let done = if contest.reading == Reading::Profile {
                    profile::measure(running, &entry.work, repeat, self.folder.dir()).await
                } else {
                    measure(running, &entry.work).await
                };
                self.progress.done(expected);
                match done {
                    Ok(mut measured) => {
                        if contest.reading == Reading::Pools {
                            measured = pooled(measured, &entry.work, &mut first_rate);
                        }
                        self.keep(contest, entry, repeat, &measured)?;
                    }
                    Err(error) => {
                        self.skip_entry(contest, entry, &error.told())?;
                        *pair = None;
                    }
                }
            }
        }
        for (_, pair) in pairs {
            if let Some(pair) = pair {
                pair.end().await;
            }
        }
        Ok(())
    }

    /// New processes for each repeat: memory that was freed is not given back.
    async fn memory(&mut self, contest: &Contest) -> Result<(), BenchError> {
        let rtt = network::rtt_s(contest.network);
        for repeat in 1..=contest.repeats {
            for entry in &contest.entries {
                self.say(&format!(
                    "{} {}: {}",
                    contest.table, contest.row, entry.subject
                ));
                let done = self.held(contest, entry).await;
                self.progress.done(START_S + turn_s(entry, rtt));
                match done {
                    Ok(measured) => self.keep(contest, entry, repeat, &measured)?,
                    Err(error) => self.skip_entry(contest, entry, &error.told())?,
                }
            }
        }
        Ok(())
    }

    async fn held(&mut self, contest: &Contest, entry: &Entry) -> Result<Measured, BenchError> {
        let mut pair = self.pair(contest, entry).await?;
        let idle = pair.usage();
        let mut measured = pair.client.ask(&entry.work).await?;
        let held = pair.usage();
        let pids = [pair.client.pid(), pair.server.pid()];
        let mut added = 0.0;
        for (i, who) in ["client", "server"].into_iter().enumerate() {
            let above = held[i].rss_bytes as f64 - idle[i].rss_bytes as f64;
            added += above.max(0.0);
            measured = measured
                .with(&format!("{who}_idle_rss_bytes"), idle[i].rss_bytes as f64)
                .with(&format!("{who}_rss_bytes"), held[i].rss_bytes as f64)
                .with(
                    &format!("{who}_peak_rss_bytes"),
                    held[i].peak_rss_bytes as f64,
                )
                .with(
                    &format!("{who}_pss_bytes"),
                    process::pss_bytes(pids[i]) as f64,
                )
                .with(&format!("{who}_added_rss_bytes"), above.max(0.0));
        }
        pair.end().await;
        Ok(measured.with("added_rss_bytes", added))
    }

    async fn pair(&mut self, contest: &Contest, entry: &Entry) -> Result<Pair, BenchError> {
        let up = self.networks.up(contest.network, &mut self.folder);
        let network = up.map_err(BenchError::Wrong)?;
        let listen = network.address("b")?.to_string();
        let words = |part: &str, own: &[&str], options: &[String]| {
            let program = self.settings.program.display().to_string();
            let mut words: Vec<String> = vec![program];
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
            Who::Foreign(foreign) => filled(&foreign.serve, "{listen}", &listen),
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
                if !load.iter().any(|word| word.contains("{address}")) {
                    load.push("{address}".to_owned());
                }
                filled(&load, "{address}", &server.said("address"))
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

/// Has work done, and reads what both processes used for it.
async fn measure(pair: &mut Pair, work: &Work) -> Result<Measured, BenchError> {
    process::reset_peak(pair.client.pid());
    process::reset_peak(pair.server.pid());
    let (before, begun) = (pair.usage(), Instant::now());
    let mut measured = pair.client.ask(work).await?;
    let (after, wall) = (pair.usage(), begun.elapsed().as_secs_f64());
    let mut both = 0.0;
    for (i, who) in ["client", "server"].into_iter().enumerate() {
        let cpu = after[i].cpu.saturating_sub(before[i].cpu).as_secs_f64();
        both += cpu;
        measured = measured.with(&format!("{who}_cpu_s"), cpu).with(
            &format!("{who}_peak_rss_bytes"),
            after[i].peak_rss_bytes as f64,
        );
    }
    measured = measured
        .with("cpu_s", both)
        .with("cpu_percent", both / wall * 100.0);
    let (count, bytes) = (measured.figure("count"), measured.figure("bytes"));
    if count > 0.0 {
        measured = measured.with("cpu_us_per_message", both * 1e6 / count);
    }
    let moved = match work {
        Work::Rate { bytes, .. } => count * *bytes as f64,
        _ => bytes,
    };
    if moved > 0.0 {
        measured = measured.with("cpu_ns_per_byte", both * 1e9 / moved);
    }
    Ok(measured)
}

/// The rate against the first entry's, and the share of messages that found a connection up.
fn pooled(measured: Measured, work: &Work, first: &mut Option<f64>) -> Measured {
    let rate = measured.figure("messages_per_s");
    let base = *first.get_or_insert(rate);
    let connections = match work {
        Work::Rate {
            agents,
            connections: 0,
            ..
        } => f64::from(*agents),
        Work::Rate { connections, .. } => f64::from(*connections),
        _ => 0.0,
    };
    let count = measured.figure("count");
    let reused = (count - connections).max(0.0) / count.max(1.0) * 100.0;
    measured
        .with("gain_percent", (rate / base - 1.0) * 100.0)
        .with("reuse_percent", reused)
}

/// The figures whose names begin with `word_`, without it.
fn prefixed(figures: &BTreeMap<String, f64>, word: &str) -> BTreeMap<String, f64> {
    let rest = |name: &str| Some(name.strip_prefix(word)?.strip_prefix('_')?.to_owned());
    figures
        .iter()
        .filter_map(|(name, value)| Some((rest(name)?, *value)))
        .collect()
}

fn filled(words: &[String], place: &str, with: &str) -> Vec<String> {
    words.iter().map(|word| word.replace(place, with)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::Suite;

    #[test]
    fn a_pool_is_compared_with_a_connection_for_each_agent() {
        let work = |connections| Work::Rate {
            in_flight: 1,
            seconds: 1.0,
            bytes: 1,
            agents: 10,
            connections,
        };
        let rate = |rate: f64| {
            Measured::default()
                .with("messages_per_s", rate)
                .with("count", 100.0)
        };
        let mut first = None;
        let alone = pooled(rate(100.0), &work(0), &mut first);
        assert_eq!(alone.figure("gain_percent"), 0.0);
        assert_eq!(alone.figure("reuse_percent"), 90.0);
        let shared = pooled(rate(125.0), &work(2), &mut first);
        assert_eq!(shared.figure("gain_percent"), 25.0);
        assert_eq!(shared.figure("reuse_percent"), 98.0);
    }

    #[test]
    fn quick_suites_are_expected_to_take_under_ten_minutes_and_smoke_under_one() {
        let mut too_long = false;
        for (suite, most) in [
            (Suite::Smoke, 60.0),
            (Suite::Coordination, 600.0),
            (Suite::Overlay, 600.0),
        ] {
            let order = Order {
                suite,
                size: crate::suite::Size::Quick,
                networks: Vec::new(),
                carriers: Vec::new(),
                repeats: None,
                foreign: Vec::new(),
            };
            let steps = steps(&order);
            let expected = expected(&steps);
            for step in &steps {
                if let Step::Contest(contest) = step {
                    let seconds = expected_s(step);
                    println!("{} {}: {seconds:.0} s", contest.table, contest.row);
                }
            }
            println!("{suite:?}: {expected:.0} s");
            too_long |= expected > most;
        }
        assert!(!too_long);
    }

    #[test]
    fn figures_of_a_priority_are_found_by_its_word() {
        let figures = BTreeMap::from([
            ("high_p50_us".to_owned(), 1.0),
            ("highest_p50_us".to_owned(), 2.0),
            ("low_p50_us".to_owned(), 3.0),
        ]);
        let high = prefixed(&figures, "high");
        assert_eq!(high, BTreeMap::from([("p50_us".to_owned(), 1.0)]));
    }
}
