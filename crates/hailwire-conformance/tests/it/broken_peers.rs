//! Peers that are broken on purpose: the driver notices, and says what came.

use crate::{driver_with, example, lines};

/// What is broken, and a part of what the driver says of it.
const BROKEN: [(&str, &str); 17] = [
    (
        "it ends at once",
        "expected the peer to connect, came its end with exit status: 0",
    ),
    ("it says to be the server", "both sides took the same role"),
    (
        "it skips a stream",
        "a frame for stream 3, which does not exist; next is 1",
    ),
    (
        "it writes a default",
        "expected the canonical bytes of REGISTER",
    ),
    (
        "it writes a long form",
        "expected the canonical bytes of REGISTER",
    ),
    ("it sends beyond its credit", "of which 16380 were granted"),
    ("it changes a byte", "expected a call afterwards to echo"),
    ("it grants too much", "a window of"),
    ("it grants too many streams", "4097 streams granted at once"),
    (
        "it writes to a stream that is not there",
        "a frame for stream 4, which does not exist",
    ),
    ("it says HEAD last", "HEAD after DATA"),
    ("it resets", "expected END, came RESET with aborted"),
    ("it leaves END out", "expected END, came FIN without it"),
    (
        "it writes a status that is too long",
        "a status whose message has 2000 bytes",
    ),
    ("it says more after END", "expected FIN after END"),
    ("it ends inside a frame", "the stream ended inside a frame"),
    (
        "it writes after FIN",
        "DATA on stream 2 after its direction ended",
    ),
];

/// What is said of a peer that attaches, answers a call, and may break a rule by it.
fn attached(broken: &str) -> Option<String> {
    // Where nothing is granted meanwhile.
    let case = match broken {
        "it sends beyond its credit" => "credit-of-an-answer",
        _ => "attach",
    };
    let arguments = ["--json", "--case", case, "--", &example("raw_peer")];
    let output = driver_with(&arguments, &[("HAIL_BROKEN", broken)]);
    let mut lines = lines(&output);
    assert_eq!(lines.len(), 1, "{output:?}");
    assert_eq!(
        output.status.code(),
        Some(i32::from(lines[0].failure.is_some()))
    );
    lines.remove(0).failure
}

#[test]
fn a_peer_that_breaks_a_rule_fails_with_what_it_broke() {
    assert_eq!(attached(""), None, "the peer that breaks nothing");
    for (broken, told) in BROKEN {
        let failure = attached(broken).unwrap_or_else(|| panic!("{broken}: nothing was noticed"));
        assert!(failure.contains(told), "{broken}: {failure}");
    }
}

#[test]
fn a_case_that_does_not_exist_is_refused() {
    let output = driver_with(&["--case", "no-such-case", "--", "true"], &[]);
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("there is no case `no-such-case`"),
        "{stderr}"
    );
}
