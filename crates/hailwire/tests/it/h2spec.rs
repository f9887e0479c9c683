//! The HTTP/2 of a node's port under h2spec, whose cases follow RFC 9113's predecessor (RFC 7540) and RFC 7541
//! section by section.
//!
//! `peers/install h2spec` installs it; `./x test` does so, and names it in the environment.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use hailwire::{DataDir, Node, admin, admin::method};

use crate::{
    fixtures::identity,
    h2_bridge::{self, Bridge},
    test_node::config,
};

/// Cases that fail at a path where nothing is, and why that is as it should be.
const EXPECTED: &[(&str, &str)] = &[
    (
        "generic/2: Sends a WINDOW_UPDATE frame on half-closed (remote) stream",
        NO_BODY,
    ),
    (
        "generic/2: Sends a PRIORITY frame on half-closed (remote) stream",
        NO_BODY,
    ),
    (
        "http2/5.1.2: Sends HEADERS frames that causes their advertised concurrent stream limit to be exceeded",
        "each stream is answered and over before the next one comes; the bound is reached by \
         more_streams_than_the_bound_are_refused_and_the_rest_goes_on",
    ),
];

/// Cases that are left out, because they look into the body of an answer.
const LEFT_OUT: &[(&str, &str)] = &[
    (
        "http2/6.5.3: Sends multiple values of SETTINGS_INITIAL_WINDOW_SIZE",
        NO_BODY,
    ),
    (
        "http2/6.9.1: Sends SETTINGS frame to set the initial window size to 1 and sends HEADERS frame",
        NO_BODY,
    ),
    (
        "http2/6.9.2: Changes SETTINGS_INITIAL_WINDOW_SIZE after sending HEADERS frame",
        NO_BODY,
    ),
    (
        "http2/6.9.2: Sends a SETTINGS frame for window size to be negative",
        NO_BODY,
    ),
];

const NO_BODY: &str = "a request that is none of ours is answered 404 at once, without a body";

/// Cases that a path where nothing is answers before they have sent all, so that they pass or fail by chance. They
/// are asked where streams are, and must pass.
const OF_STREAMS: &[(&str, &str)] = &[
    (
        "http2/5.1/8",
        "http2/5.1: closed: Sends a DATA frame after sending RST_STREAM frame",
    ),
    (
        "http2/5.1/9",
        "http2/5.1: closed: Sends a HEADERS frame after sending RST_STREAM frame",
    ),
    (
        "http2/8.1.2.1/3",
        "http2/8.1.2.1: Sends a HEADERS frame that contains a pseudo-header field as trailers",
    ),
    (
        "http2/8.1/1",
        "http2/8.1: Sends a second HEADERS frame without the END_STREAM flag",
    ),
    (
        "http2/8.1.2.6/2",
        "http2/8.1.2.6: Sends a HEADERS frame with the &#34;content-length&#34; header field which does not equal \
         the sum of the multiple DATA frames payload length",
    ),
    (
        "http2/8.1.2.6/1",
        "http2/8.1.2.6: Sends a HEADERS frame with the &#34;content-length&#34; header field which does not equal \
         the DATA frame payload length",
    ),
];

/// Where a node takes streams.
const STREAMS: &str = "/hailwire/stream";

/// The program, where it is installed.
fn program() -> Option<PathBuf> {
    let named = std::env::var_os("HAILWIRE_H2SPEC").map(PathBuf::from);
    let installed = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../target/peers/h2spec-2.2.1/h2spec"
    );
    named
        .into_iter()
        .chain([PathBuf::from(installed)])
        .find(|path| path.is_file())
}

/// How often a case is asked that fails without a reason. A node answers at once that nothing is at a path, and
/// where the answer overtakes the frames of a case, that case fails by chance; a violation fails each time.
const TRIES: usize = 5;

/// A case that failed.
#[derive(Debug)]
struct Failed {
    name: String,
    /// By which h2spec is asked for it alone.
    number: String,
    /// What was expected and seen.
    seen: String,
}

/// What became of the cases.
struct Report {
    all: BTreeSet<String>,
    failed: Vec<Failed>,
    left_out: Vec<String>,
}

/// Reads the report, which has an element for each case.
fn read(report: &str) -> Report {
    let mut read = Report {
        all: BTreeSet::new(),
        failed: Vec::new(),
        left_out: Vec::new(),
    };
    let mut in_package = BTreeMap::new();
    for case in report.split("<testcase ").skip(1) {
        let case = case.split("</testcase>").next().unwrap();
        let attribute = |name: &str| {
            let value = case.split(&format!("{name}=\"")).nth(1).unwrap();
            value.split('"').next().unwrap().to_owned()
        };
        let package = attribute("package");
        let name = format!("{package}: {}", attribute("classname"));
        let number: &mut usize = in_package.entry(package.clone()).or_default();
        *number += 1;
        if case.contains("<failure") || case.contains("<error") {
            read.failed.push(Failed {
                name: name.clone(),
                number: format!("{package}/{number}"),
                seen: case.to_owned(),
            });
        } else if case.contains("<skipped") {
            read.left_out.push(name.clone());
        }
        assert!(read.all.insert(name.clone()), "{name} is there twice");
    }
    read
}

/// Runs cases against a port.
async fn run(program: PathBuf, cases: Vec<String>, path: &'static str, port: u16) -> Report {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.xml");
    let mut command = Command::new(program);
    command
        .args(cases)
        .args(["--strict", "--timeout", "5", "--host", "127.0.0.1"])
        .args(["--path", path, "--port", &port.to_string()])
        .arg("--junit-report")
        .arg(&file);
    let ran = tokio::task::spawn_blocking(move || command.output()).await;
    let ran = ran.unwrap().unwrap();
    // It quotes bytes as they come.
    let report = std::fs::read(&file);
    let report = report.unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    read(&String::from_utf8_lossy(&report))
}

/// A node, and a bridge by which h2spec is a peer of it.
async fn bridged() -> (Node, Bridge, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config("alice");
    config.listen.tcp = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    let node = Node::builder()
        .data_dir(DataDir::new(folder.path()))
        .config(config)
        .start()
        .await
        .unwrap();
    let (id, identity) = identity();
    let trust = admin::TrustAdd {
        id,
        alias: String::new(),
        allow: Vec::new(),
        offer: Vec::new(),
        addresses: Vec::new(),
        tcp: Vec::new(),
    };
    let client = node.client();
    let _: admin::TrustedPeer = client.admin(method::TRUST_ADD, &trust).await.unwrap();
    let place = h2_bridge::Node {
        id: node.id(),
        tcp: node.tcp_sockets()[0],
    };
    let bridge = Bridge::to(place, identity).await;
    (node, bridge, folder)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_of_a_node_conforms_to_its_standards_but_for_cases_with_a_reason() {
    let Some(program) = program() else {
        return hailwire_skip::skipped("h2spec is not installed (peers/install h2spec)");
    };
    let (_node, bridge, _folder) = bridged().await;
    let port = bridge.address.port();

    let all = ["generic", "http2", "hpack"].map(str::to_owned).to_vec();
    let report = run(program.clone(), all, "/", port).await;
    assert!(report.all.len() > 140, "{} cases", report.all.len());
    let none = String::new();
    let left_out = report.left_out.iter().map(|case| (case, &none));
    assert_listed("are left out", left_out, LEFT_OUT);
    let mut failed = Vec::new();
    for case in report.failed {
        let asked_elsewhere = OF_STREAMS.iter().any(|(_, name)| *name == case.name);
        let expected = EXPECTED.iter().any(|(name, _)| *name == case.name);
        if expected || !asked_elsewhere && fails_again(&program, &case, "/", port).await {
            failed.push(case);
        }
    }
    let failed = failed.iter().map(|case| (&case.name, &case.seen));
    assert_listed("fail", failed, EXPECTED);

    let some = OF_STREAMS.iter().map(|(number, _)| (*number).to_owned());
    let report = run(program.clone(), some.collect(), STREAMS, port).await;
    let asked: BTreeSet<&str> = OF_STREAMS.iter().map(|(_, name)| *name).collect();
    assert_eq!(
        report
            .all
            .iter()
            .map(String::as_str)
            .collect::<BTreeSet<_>>(),
        asked
    );
    for case in report.failed {
        let (number, _) = OF_STREAMS
            .iter()
            .find(|(_, name)| *name == case.name)
            .unwrap();
        let case = Failed {
            number: (*number).to_owned(),
            ..case
        };
        assert!(
            !fails_again(&program, &case, STREAMS, port).await,
            "{case:#?}"
        );
    }
}

/// Whether a case that failed does so each time.
async fn fails_again(program: &Path, case: &Failed, path: &'static str, port: u16) -> bool {
    for _ in 1..TRIES {
        let report = run(program.to_owned(), vec![case.number.clone()], path, port).await;
        assert_eq!(report.all, BTreeSet::from([case.name.clone()]));
        if report.failed.is_empty() {
            return false;
        }
    }
    true
}

/// Every case is on the list, and every case of the list is there.
fn assert_listed<'a>(
    what: &str,
    cases: impl Iterator<Item = (&'a String, &'a String)>,
    list: &[(&str, &str)],
) {
    let cases: Vec<_> = cases.collect();
    let listed = |case: &str| list.iter().any(|(name, _)| *name == case);
    let new: Vec<_> = cases.iter().filter(|(case, _)| !listed(case)).collect();
    assert!(new.is_empty(), "these {what}, without a reason: {new:#?}");
    let there = |name: &str| cases.iter().any(|(case, _)| *case == name);
    let old: Vec<_> = list.iter().filter(|(name, _)| !there(name)).collect();
    assert!(old.is_empty(), "these do not, by now: {old:#?}");
}
