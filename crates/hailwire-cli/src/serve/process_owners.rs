//! Which process belongs to which call.
//!
//! A process that a program starts may leave its process group and its session, and its parent may end.
//! It remains a descendant of `hail serve`, which is a child subreaper (`prctl(2)`): a process whose parent ends becomes a child of `hail serve`, an *orphan*. Orphans are told apart by the mark that each call
//! puts into its program's environment and that children inherit. One without a readable mark, because it
//! cleared its environment or is being executed just now, may belong to any call that was active when it was first seen, and is ended with the last of these.
//!
//! It only decides; [`processes`](super::processes) lists processes, [`reaper`](super::reaper) ends them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, hash_map::Entry},
    sync::atomic::{AtomicU64, Ordering},
};

/// A call's number in this process.
pub(crate) type CallMark = u64;

/// The last number in use: a mark remains in environments after its call has ended.
static LAST_MARK: AtomicU64 = AtomicU64::new(0);

/// A process as it was observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ObservedProcess {
    pub(crate) pid: i32,
    /// When it started, in the kernel's ticks: together with `pid` it identifies a process.
    pub(crate) start: u64,
    pub(crate) parent: i32,
    /// Its process group.
    pub(crate) group: i32,
    /// It is a zombie: it has ended and its parent has not collected it.
    pub(crate) ended: bool,
}

/// The mark in a process's environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessMark {
    /// One of this `hail serve`.
    By(CallMark),
    /// No mark, or no readable one.
    No,
}

/// The processes of each call.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ProcessesByCall {
    /// The processes of a call, its program first.
    pub(crate) of: BTreeMap<CallMark, Vec<ObservedProcess>>,
    /// The processes of calls that have ended.
    pub(crate) unowned: Vec<ObservedProcess>,
    /// Orphans that have ended and have to be collected.
    pub(crate) ended: Vec<i32>,
}

/// The active calls, and the calls that orphans may belong to.
#[derive(Debug)]
pub(crate) struct ProcessOwners {
    /// With the process id of the call's program, from its start until it was collected.
    living: BTreeMap<CallMark, Option<i32>>,
    /// The calls that an orphan may belong to.
    strays: HashMap<(i32, u64), BTreeSet<CallMark>>,
    /// Whether every child of this process belongs to a call.
    all_ours: bool,
}

impl ProcessOwners {
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
        let mark = LAST_MARK.fetch_add(1, Ordering::Relaxed) + 1;
        self.living.insert(mark, None);
        mark
    }

    /// Its program was started.
    pub(crate) fn started(&mut self, mark: CallMark, pid: i32) {
        self.living.insert(mark, Some(pid));
    }

    /// Its program has ended and was collected: its process id may be reused.
    pub(crate) fn collected(&mut self, mark: CallMark) {
        if let Some(program) = self.living.get_mut(&mark) {
            *program = None;
        }
    }

    /// None of its processes is left.
    pub(crate) fn over(&mut self, mark: CallMark) {
        self.living.remove(&mark);
    }

    /// Whether the last scan found orphans that may have no owner by now.
    pub(crate) fn has_strays(&self) -> bool {
        !self.strays.is_empty()
    }

    /// Assigns every descendant of the process `me` to its call. `mark_of` is called for orphans that
    /// were not seen before.
    pub(crate) fn assign(
        &mut self,
        me: i32,
        seen: &[ObservedProcess],
        mark_of: impl Fn(&ObservedProcess) -> ProcessMark,
    ) -> ProcessesByCall {
        let mut children: HashMap<i32, Vec<ObservedProcess>> = HashMap::new();
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
        let mut by_call = ProcessesByCall::default();
        for child in mine {
            if let Some(mark) = programs.get(&child.pid) {
                let tree = by_call.of.entry(*mark).or_default();
                descend(child, &children, tree);
            } else if child.ended && self.all_ours {
                by_call.ended.push(child.pid);
            } else if !child.ended
                && let Some(owner) = self.owner(&child, &mark_of)
            {
                let tree = match owner {
                    Some(mark) => by_call.of.entry(mark).or_default(),
                    None => &mut by_call.unowned,
                };
                descend(child, &children, tree);
            }
        }
        by_call
    }

    /// The call that an orphan belongs to; `Some(None)` if that has ended, `None` while several are possible.
    fn owner(
        &mut self,
        stray: &ObservedProcess,
        mark_of: impl Fn(&ObservedProcess) -> ProcessMark,
    ) -> Option<Option<CallMark>> {
        let living = &self.living;
        let owners = match self.strays.entry((stray.pid, stray.start)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let owners = match mark_of(stray) {
                    ProcessMark::By(mark) if self.all_ours || living.contains_key(&mark) => {
                        BTreeSet::from([mark])
                    }
                    ProcessMark::No if self.all_ours => living.keys().copied().collect(),
                    ProcessMark::By(_) | ProcessMark::No => return None,
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
fn descend(
    top: ObservedProcess,
    children: &HashMap<i32, Vec<ObservedProcess>>,
    tree: &mut Vec<ObservedProcess>,
) {
    // The snapshot is not atomic, so a reused process id could form a cycle.
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

    fn process(pid: i32, parent: i32) -> ObservedProcess {
        ObservedProcess {
            pid,
            start: 1,
            parent,
            group: pid,
            ended: false,
        }
    }

    fn pids(processes: &[ObservedProcess]) -> Vec<i32> {
        processes.iter().map(|p| p.pid).collect()
    }

    fn unmarked(_: &ObservedProcess) -> ProcessMark {
        ProcessMark::No
    }

    #[test]
    fn a_call_owns_what_descends_from_its_program() {
        let mut owners = ProcessOwners::new(true);
        let (a, b) = (owners.begin(), owners.begin());
        owners.started(a, 20);
        owners.started(b, 30);
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
        let by_call = owners.assign(ME, &seen, unmarked);
        assert_eq!(pids(&by_call.of[&a]), [20, 21, 22]);
        assert_eq!(pids(&by_call.of[&b]), [30]);
        assert!(by_call.unowned.is_empty() && by_call.ended.is_empty());
    }

    #[test]
    fn a_stray_belongs_to_the_call_whose_mark_it_bears() {
        let mut owners = ProcessOwners::new(true);
        let (a, b) = (owners.begin(), owners.begin());
        owners.started(a, 20);
        let seen = [
            process(20, ME),
            process(41, ME),
            process(42, 41),
            process(50, ME),
        ];
        let mark_of =
            |p: &ObservedProcess| ProcessMark::By(if p.pid == 41 { b } else { CallMark::MAX });
        let by_call = owners.assign(ME, &seen, mark_of);
        assert_eq!(pids(&by_call.of[&a]), [20]);
        assert_eq!(pids(&by_call.of[&b]), [41, 42]);
        assert_eq!(pids(&by_call.unowned), [50]);
    }

    #[test]
    fn a_stray_without_a_mark_ends_with_the_last_call_that_may_have_started_it() {
        let mut owners = ProcessOwners::new(true);
        let (a, b) = (owners.begin(), owners.begin());
        let seen = [process(41, ME)];
        assert_eq!(
            owners.assign(ME, &seen, unmarked),
            ProcessesByCall::default()
        );
        // It existed before this call, which therefore cannot have started it.
        let later = owners.begin();
        owners.over(a);
        let by_call = owners.assign(ME, &seen, unmarked);
        assert_eq!(pids(&by_call.of[&b]), [41]);
        owners.over(b);
        assert_eq!(pids(&owners.assign(ME, &seen, unmarked).unowned), [41]);
        assert!(!owners.assign(ME, &seen, unmarked).of.contains_key(&later));
        // Another process with the same process id is another orphan.
        let anew = ObservedProcess {
            start: 2,
            ..process(41, ME)
        };
        assert_eq!(pids(&owners.assign(ME, &[anew], unmarked).of[&later]), [41]);
    }

    #[test]
    fn only_strays_that_have_ended_are_collected() {
        let mut owners = ProcessOwners::new(true);
        let a = owners.begin();
        owners.started(a, 20);
        let ended = |pid, parent| ObservedProcess {
            ended: true,
            ..process(pid, parent)
        };
        let seen = [ended(20, ME), ended(41, ME), ended(42, 20)];
        assert_eq!(owners.assign(ME, &seen, unmarked).ended, [41]);
        owners.collected(a);
        assert_eq!(owners.assign(ME, &seen, unmarked).ended, [20, 41]);
    }

    #[test]
    fn where_others_start_processes_too_only_marked_ones_are_touched() {
        let mut owners = ProcessOwners::new(false);
        let a = owners.begin();
        let seen = [process(41, ME), process(42, ME)];
        let mark_of = |p: &ObservedProcess| match p.pid {
            41 => ProcessMark::By(a),
            _ => ProcessMark::No,
        };
        let by_call = owners.assign(ME, &seen, mark_of);
        assert_eq!(pids(&by_call.of[&a]), [41]);
        assert!(by_call.unowned.is_empty());
    }

    #[test]
    fn numbers_that_close_a_circle_end_the_walk() {
        let mut owners = ProcessOwners::new(true);
        let a = owners.begin();
        owners.started(a, 20);
        let seen = [process(20, ME), process(21, 20), process(20, 21)];
        assert_eq!(pids(&owners.assign(ME, &seen, unmarked).of[&a]), [20, 21]);
    }
}
