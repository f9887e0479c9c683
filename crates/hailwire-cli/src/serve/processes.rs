//! The processes of this machine from `/proc` (`proc(5)`), and signals to them.

use std::{fs, io, path::Path};

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process, pidfd_open,
    pidfd_send_signal, waitid, waitpid,
};

use super::process_owners::{CallMark, ObservedProcess, ProcessMark};

/// The variable that marks a call's processes: the number of the `hail serve` that they belong to, a
/// dash, and that of the call.
pub(crate) const CALL_MARK_VARIABLE: &str = "HAIL_CALL";

/// The variable with the process id of the guard, for the guarded process.
pub(crate) const GUARDED_BY: &str = "HAIL_GUARDED_BY";

/// Most bytes of an environment that are read to find the mark.
const MAX_ENVIRONMENT: u64 = 1024 * 1024;

/// All visible processes. The list is not atomic: processes start and end meanwhile.
///
/// # Errors
///
/// There is no `/proc`.
pub(crate) fn all() -> io::Result<Vec<ObservedProcess>> {
    let numbers = fs::read_dir("/proc")?.flatten().filter_map(|entry| {
        let name = entry.file_name();
        name.to_str()?.parse().ok()
    });
    Ok(numbers.filter_map(seen).collect())
}

/// A process; `None` once it is gone.
fn seen(pid: i32) -> Option<ObservedProcess> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse(pid, &stat)
}

/// The name, in brackets, may hold anything; the fields after it have fixed positions.
fn parse(pid: i32, stat: &str) -> Option<ObservedProcess> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    // The 22nd field of all, of which the 5th was just read.
    let start = fields.nth(16)?.parse().ok()?;
    Some(ObservedProcess {
        pid,
        start,
        parent,
        group,
        ended: matches!(state, "Z" | "X"),
    })
}

/// The mark for the programs of a call.
pub(crate) fn mark(mark: CallMark) -> String {
    format!("{}-{mark}", std::process::id())
}

/// The mark in a process's environment.
pub(crate) fn mark_of(process: &ObservedProcess) -> ProcessMark {
    use io::Read as _;

    let mut environment = Vec::new();
    let path = format!("/proc/{}/environ", process.pid);
    let read = fs::File::open(Path::new(&path))
        .and_then(|file| file.take(MAX_ENVIRONMENT).read_to_end(&mut environment));
    match read {
        Ok(_) => marked(&environment, std::process::id()),
        Err(_) => ProcessMark::No,
    }
}

/// A mark of another `hail serve` belongs to a call that has ended: its processes become children of this one only after its end.
fn marked(environment: &[u8], me: u32) -> ProcessMark {
    let begin = format!("{CALL_MARK_VARIABLE}=");
    let value = environment
        .split(|byte| *byte == 0)
        .find_map(|variable| variable.strip_prefix(begin.as_bytes()))
        .and_then(|value| std::str::from_utf8(value).ok());
    let Some((of, call)) = value.and_then(|value| value.split_once('-')) else {
        return ProcessMark::No;
    };
    match (of.parse() == Ok(me), call.parse()) {
        (true, Ok(call)) => ProcessMark::By(call),
        (false, Ok(_)) => ProcessMark::By(CallMark::MAX),
        (_, Err(_)) => ProcessMark::No,
    }
}

/// Sends a signal to exactly this process, not to another that reused its process id.
pub(crate) fn signal(process: &ObservedProcess, signal: Signal) {
    let Some(pid) = Pid::from_raw(process.pid) else {
        return;
    };
    let held = pidfd_open(pid, PidfdFlags::empty());
    if seen(process.pid).is_none_or(|now| now.start != process.start) {
        return;
    }
    // It fails only for a process that has ended, as intended, or that may no longer be signalled.
    let _ = match held {
        Ok(held) => pidfd_send_signal(held, signal),
        // Before Linux 5.3.
        Err(_) => kill_process(pid, signal),
    };
}

/// Collects a child that has ended, which frees its process id.
pub(crate) fn collect(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = waitpid(Some(pid), WaitOptions::NOHANG);
    }
}

/// Whether this process has no child at all, not even a zombie.
pub(crate) fn has_no_child() -> bool {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(
        waitid(WaitId::All, look),
        Err(error) if error == rustix::io::Errno::CHILD
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_whatever_its_name_is() {
        let fields = "S 7 6 1 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 4711 1 1 1";
        for name in ["sh", "a) b", ") S 1 2", "x (y"] {
            let process = parse(9, &format!("9 ({name}) {fields}")).unwrap();
            assert_eq!(
                (process.parent, process.group, process.start),
                (7, 6, 4711),
                "{name}"
            );
            assert!(!process.ended);
        }
        assert!(parse(9, "9 (sh) Z 7").is_none());
        let me = i32::try_from(std::process::id()).unwrap();
        let parent = i32::try_from(std::os::unix::process::parent_id()).unwrap();
        let all = all().unwrap();
        assert!(all.iter().any(|p| (p.pid, p.parent) == (me, parent)));
    }

    #[test]
    fn a_mark_is_found_among_other_variables_and_only_whole() {
        let marked = |text: &str| marked(text.as_bytes(), 12);
        assert_eq!(marked("A=b\0HAIL_CALL=12-7\0C=d\0"), ProcessMark::By(7));
        assert_eq!(marked("HAIL_CALL=12-7"), ProcessMark::By(7));
        assert_eq!(marked("HAIL_CALL=13-7"), ProcessMark::By(CallMark::MAX));
        for other in [
            "",
            "XHAIL_CALL=12-7",
            "A=HAIL_CALL=12-7",
            "HAIL_CALL=12",
            "HAIL_CALL=12-x",
        ] {
            assert_eq!(marked(other), ProcessMark::No, "{other}");
        }
    }
}
