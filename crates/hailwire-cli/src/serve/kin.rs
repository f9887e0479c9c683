//! Which process belongs to which call.
//!
//! What a program starts may leave its process group and its session, and its own parent may end. It
//! cannot leave the process that it descends from: `hail serve` is a child subreaper (`prctl(2)`), so whatever
//! loses its parent becomes a child of `hail serve`, a *stray*. Strays are told apart by the mark that each call
//! puts into its program's environment and that children inherit. One without a readable mark, because it
//! cleared its environment or is being executed just now, may belong to any call that was under way when it was first
//! seen, and is ended with the last of these.
//!
//! Decides only; [`processes`](super::processes) looks, [`reaper`](super::reaper) acts.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, hash_map::Entry},
    sync::atomic::{AtomicU64, Ordering},
};

/// A call's number in this process.
pub(crate) type CallMark = u64;

/// The last number that was given: marks outlive whoever gave them, in environments.
static LAST: AtomicU64 = AtomicU64::new(0);

/// A process as it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    /// When it started, in the kernel's ticks: with `pid` it names a process for ever.
    pub(crate) start: u64,
    pub(crate) parent: i32,
    /// Its process group.
    pub(crate) group: i32,
    /// It has ended and its parent has not collected it.
    pub(crate) ended: bool,
}

/// The mark in a process's environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marked {
    /// One of this `hail serve`.
    By(CallMark),
    /// None, or none that can be read.
    No,
}

/// What there is of each call.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sorted {
    /// Everything that runs for a call, its program first.
    pub(crate) of: BTreeMap<CallMark, Vec<Process>>,
    /// What runs for calls that are over.
    pub(crate) nobodys: Vec<Process>,
    /// Strays that have ended and want collecting.
    pub(crate) ended: Vec<i32>,
}

/// The calls under way, and whose strays are.
#[derive(Debug)]
pub(crate) struct Kin {
    /// With the number of the call's program, from its start until it was collected.
    living: BTreeMap<CallMark, Option<i32>>,
    /// The calls that a stray may belong to.
    strays: HashMap<(i32, u64), BTreeSet<CallMark>>,
    /// Whether every child of this process is of a call.
    all_ours: bool,
}

impl Kin {
    /// Without calls. Unless `all_ours`, children without the mark of a call are left alone.
    pub(crate) fn new(all_ours: bool) -> Self {
        Self {
            living: BTreeMap::new(),
            strays: HashMap::new(),
            all_ours,
        }
    }

    /// A call begins.
    pub(crate) fn begin(&mut self) -> CallMark {
        let mark = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        self.living.insert(mark, None);
        mark
    }

    /// Its program was started.
    pub(crate) fn started(&mut self, mark: CallMark, pid: i32) {
        self.living.insert(mark, Some(pid));
    }

    /// Its program has ended and was collected: the number may be given to another.
    pub(crate) fn collected(&mut self, mark: CallMark) {
        if let Some(program) = self.living.get_mut(&mark) {
            *program = None;
        }
    }

    /// Nothing is left of it.
    pub(crate) fn over(&mut self, mark: CallMark) {
        self.living.remove(&mark);
    }

    /// Whether there were strays at the last look that may be nobody's by now.
    pub(crate) fn has_strays(&self) -> bool {
        !self.strays.is_empty()
    }

    /// Sorts everything that descends from the process `me`. `mark_of` is asked about strays that were not
    /// seen before.
    pub(crate) fn sort(
        &mut self,
        me: i32,
        seen: &[Process],
        mark_of: impl Fn(&Process) -> Marked,
    ) -> Sorted {
        let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
        for process in seen {
            children.entry(process.parent).or_default().push(*process);
        }
        let programs: HashMap<i32, CallMark> = self
            .living
            .iter()
            .filter_map(|(mark, pid)| pid.map(|pid| (pid, *mark)))
            .collect();
        let mine = children.get(&me).cloned().unwrap_or_default();
        let present: HashSet<(i32, u64)> = mine.iter().map(|p| (p.pid, p.start)).collect();
        self.strays.retain(|stray, _| present.contains(stray));
        let mut sorted = Sorted::default();
        for child in mine {
            if let Some(mark) = programs.get(&child.pid) {
                let tree = sorted.of.entry(*mark).or_default();
                descend(child, &children, tree);
            } else if child.ended && self.all_ours {
                sorted.ended.push(child.pid);
            } else if !child.ended
                && let Some(owner) = self.owner(&child, &mark_of)
            {
                let tree = match owner {
                    Some(mark) => sorted.of.entry(mark).or_default(),
                    None => &mut sorted.nobodys,
                };
                descend(child, &children, tree);
            }
        }
        sorted
    }

    /// The one call that a stray belongs to; `Some(None)` where that is over, `None` while there are several.
    fn owner(
        &mut self,
        stray: &Process,
        mark_of: impl Fn(&Process) -> Marked,
    ) -> Option<Option<CallMark>> {
        let living = &self.living;
        let owners = match self.strays.entry((stray.pid, stray.start)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let owners = match mark_of(stray) {
                    Marked::By(mark) if self.all_ours || living.contains_key(&mark) => {
                        BTreeSet::from([mark])
                    }
                    Marked::No if self.all_ours => living.keys().copied().collect(),
                    Marked::By(_) | Marked::No => return None,
                };
                new.insert(owners)
            }
        };
        owners.retain(|mark| living.contains_key(mark));
        match owners.len() {
            0 => Some(None),
            1 => Some(owners.first().copied()),
            _ => None,
        }
    }
}

/// Adds `top` and everything below it, parents before children.
fn descend(top: Process, children: &HashMap<i32, Vec<Process>>, tree: &mut Vec<Process>) {
    // The snapshot is not of one instant, so a number that was given anew could close a circle.
    let mut met = HashSet::from([top.pid]);
    let mut next = tree.len();
    tree.push(top);
    while let Some(process) = tree.get(next).copied() {
        next += 1;
        for child in children.get(&process.pid).into_iter().flatten() {
            if met.insert(child.pid) {
                tree.push(*child);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: i32 = 10;

    fn process(pid: i32, parent: i32) -> Process {
        Process {
            pid,
            start: 1,
            parent,
            group: pid,
            ended: false,
        }
    }

    fn pids(processes: &[Process]) -> Vec<i32> {
        processes.iter().map(|p| p.pid).collect()
    }

    fn unmarked(_: &Process) -> Marked {
        Marked::No
    }

    #[test]
    fn a_call_owns_what_descends_from_its_program() {
        let mut kin = Kin::new(true);
        let (a, b) = (kin.begin(), kin.begin());
        kin.started(a, 20);
        kin.started(b, 30);
        let seen = [
            (1, 0),
            (ME, 1),
            (20, ME),
            (21, 20),
            (22, 21),
            (30, ME),
            (99, 1),
        ];
        let seen = seen.map(|(pid, parent)| process(pid, parent));
        let sorted = kin.sort(ME, &seen, unmarked);
        assert_eq!(pids(&sorted.of[&a]), [20, 21, 22]);
        assert_eq!(pids(&sorted.of[&b]), [30]);
        assert!(sorted.nobodys.is_empty() && sorted.ended.is_empty());
    }

    #[test]
    fn a_stray_belongs_to_the_call_whose_mark_it_bears() {
        let mut kin = Kin::new(true);
        let (a, b) = (kin.begin(), kin.begin());
        kin.started(a, 20);
        let seen = [
            process(20, ME),
            process(41, ME),
            process(42, 41),
            process(50, ME),
        ];
        let mark_of = |p: &Process| Marked::By(if p.pid == 41 { b } else { CallMark::MAX });
        let sorted = kin.sort(ME, &seen, mark_of);
        assert_eq!(pids(&sorted.of[&a]), [20]);
        assert_eq!(pids(&sorted.of[&b]), [41, 42]);
        assert_eq!(pids(&sorted.nobodys), [50]);
    }

    #[test]
    fn a_stray_without_a_mark_ends_with_the_last_call_that_may_have_started_it() {
        let mut kin = Kin::new(true);
        let (a, b) = (kin.begin(), kin.begin());
        let seen = [process(41, ME)];
        assert_eq!(kin.sort(ME, &seen, unmarked), Sorted::default());
        // It was there before this call, which therefore cannot have started it.
        let later = kin.begin();
        kin.over(a);
        let sorted = kin.sort(ME, &seen, unmarked);
        assert_eq!(pids(&sorted.of[&b]), [41]);
        kin.over(b);
        assert_eq!(pids(&kin.sort(ME, &seen, unmarked).nobodys), [41]);
        assert!(!kin.sort(ME, &seen, unmarked).of.contains_key(&later));
        // Another process that was given its number is another stray.
        let anew = Process {
            start: 2,
            ..process(41, ME)
        };
        assert_eq!(pids(&kin.sort(ME, &[anew], unmarked).of[&later]), [41]);
    }

    #[test]
    fn only_strays_that_have_ended_are_collected() {
        let mut kin = Kin::new(true);
        let a = kin.begin();
        kin.started(a, 20);
        let ended = |pid, parent| Process {
            ended: true,
            ..process(pid, parent)
        };
        let seen = [ended(20, ME), ended(41, ME), ended(42, 20)];
        assert_eq!(kin.sort(ME, &seen, unmarked).ended, [41]);
        kin.collected(a);
        assert_eq!(kin.sort(ME, &seen, unmarked).ended, [20, 41]);
    }

    #[test]
    fn where_others_start_processes_too_only_marked_ones_are_touched() {
        let mut kin = Kin::new(false);
        let a = kin.begin();
        let seen = [process(41, ME), process(42, ME)];
        let mark_of = |p: &Process| match p.pid {
            41 => Marked::By(a),
            _ => Marked::No,
        };
        let sorted = kin.sort(ME, &seen, mark_of);
        assert_eq!(pids(&sorted.of[&a]), [41]);
        assert!(sorted.nobodys.is_empty());
    }

    #[test]
    fn numbers_that_close_a_circle_end_the_walk() {
        let mut kin = Kin::new(true);
        let a = kin.begin();
        kin.started(a, 20);
        let seen = [process(20, ME), process(21, 20), process(20, 21)];
        assert_eq!(pids(&kin.sort(ME, &seen, unmarked).of[&a]), [20, 21]);
    }
}
