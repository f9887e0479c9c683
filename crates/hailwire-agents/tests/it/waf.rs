//! The firewall with its built-in rules, over a corpus of attacks and one of ordinary requests.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use bytes::Bytes;
use hailwire_agents::waf::{Waf, WafSettings};
use hailwire_callout::{
    Decision, Response,
    event::{BodyChunk, Metadata, RequestHeaders},
};

const HOSTILE: &str = include_str!("../corpus/hostile.txt");
const BENIGN: &str = include_str!("../corpus/benign.txt");

/// One request of a corpus.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) class: String,
    pub(crate) line: String,
    pub(crate) uri: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Option<Vec<u8>>,
}

impl Request {
    fn head(&self) -> RequestHeaders {
        let metadata = Metadata {
            correlation_id: "c",
            client_ip: "192.0.2.1",
            protocol: "HTTP/1.1",
            ..Metadata::default()
        };
        let length = self.body.as_ref().map(|body| body.len().to_string());
        let mut headers = vec![("host", "example.com")];
        headers.extend(
            self.headers
                .iter()
                .map(|(name, value)| (&name[..], &value[..])),
        );
        headers.extend(length.as_deref().map(|length| ("content-length", length)));
        let method = if self.body.is_some() { "POST" } else { "GET" };
        RequestHeaders::new(&metadata, method, &self.uri, headers)
    }
}

/// A corpus as requests: each value of a field as query, form, JSON, multipart part and cookie.
fn requests(corpus: &str) -> Vec<Request> {
    let mut section: Vec<&str> = Vec::new();
    let mut requests = Vec::new();
    for line in corpus.lines() {
        if line.is_empty() || line.starts_with("# ") {
            continue;
        }
        if let Some(inside) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']'))
            && ["arg", "name", "uri", "header", "body"].contains(&inside.split(' ').next().unwrap())
        {
            section = inside.split(' ').collect();
            continue;
        }
        let make = |place: &str,
                    uri: String,
                    headers: Vec<(String, String)>,
                    body: Option<Vec<u8>>| Request {
            class: format!("{} in {place}", section.last().unwrap()),
            line: line.to_owned(),
            uri,
            headers,
            body,
        };
        let typed = |kind: &str| vec![("content-type".to_owned(), kind.to_owned())];
        match section[0] {
            "arg" => {
                let value = encode(line);
                requests.push(make("query", format!("/?id=7&q={value}"), vec![], None));
                let form = format!("id=7&q={value}&z=1").into_bytes();
                requests.push(make(
                    "form",
                    "/".into(),
                    typed("application/x-www-form-urlencoded"),
                    Some(form),
                ));
                let json = serde_json::json!({"id": 7, "q": {"x": [line]}}).to_string();
                requests.push(make(
                    "json",
                    "/".into(),
                    typed("application/json"),
                    Some(json.into()),
                ));
                let part = format!(
                    "--b0\r\nContent-Disposition: form-data; name=\"id\"\r\n\r\n7\r\n--b0\r\nContent-Disposition: form-data; name=\"q\"\r\n\r\n{line}\r\n--b0--\r\n"
                );
                requests.push(make(
                    "multipart",
                    "/".into(),
                    typed("multipart/form-data; boundary=b0"),
                    Some(part.into()),
                ));
                requests.push(make(
                    "cookie",
                    "/".into(),
                    vec![("cookie".into(), format!("a=1; q={value}"))],
                    None,
                ));
            }
            "name" => {
                let name = encode(line);
                requests.push(make("query name", format!("/?{name}=1"), vec![], None));
                requests.push(make(
                    "form name",
                    "/".into(),
                    typed("application/x-www-form-urlencoded"),
                    Some(format!("{name}=1").into()),
                ));
            }
            "uri" => requests.push(make("target", line.to_owned(), vec![], None)),
            "header" => {
                let body = (section[1] == "content-type").then(|| b"x".to_vec());
                requests.push(make(
                    "header",
                    "/".into(),
                    vec![(section[1].to_owned(), line.to_owned())],
                    body,
                ));
            }
            "body" => requests.push(make(
                "body",
                "/".into(),
                typed(section[1]),
                Some(line.into()),
            )),
            other => panic!("{other}"),
        }
    }
    requests
}

pub(crate) fn encode(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
                out.push(char::from(byte));
            }
            _ => out += &format!("%{byte:02X}"),
        }
    }
    out
}

pub(crate) fn waf() -> Waf {
    Waf::new(WafSettings::default()).unwrap()
}

/// The decision on a request whose body arrives in these chunks.
fn decide(waf: &Waf, request: &Request, chunks: &[&[u8]]) -> Response {
    let now = Instant::now();
    let mut response = waf.head(&request.head(), now);
    for (index, data) in (0_u32..).zip(chunks) {
        if response.decision != Decision::Allow {
            break;
        }
        let chunk = BodyChunk {
            correlation_id: "c".into(),
            data: Bytes::copy_from_slice(data),
            is_last: index as usize + 1 == chunks.len(),
            total_size: None,
            index,
            transferred: 0,
        };
        response = waf.chunk(&chunk, now);
    }
    response
}

pub(crate) fn whole(waf: &Waf, request: &Request) -> Response {
    match &request.body {
        Some(body) => decide(waf, request, &[body]),
        None => decide(waf, request, &[]),
    }
}

#[test]
fn at_least_95_percent_of_the_attacks_are_blocked_at_each_position() {
    let waf = waf();
    assert!(
        waf.report().skipped.is_empty(),
        "{:?}",
        waf.report().skipped
    );
    let mut places: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let mut classes: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let mut missed = Vec::new();
    let all = requests(HOSTILE);
    for request in &all {
        let blocked = whole(&waf, request).decision != Decision::Allow;
        let (class, place) = request.class.split_once(" in ").unwrap();
        for (map, key) in [(&mut places, place), (&mut classes, class)] {
            let entry = map.entry(key.to_owned()).or_default();
            entry.0 += usize::from(blocked);
            entry.1 += 1;
        }
        if !blocked {
            missed.push(format!("{}: {}", request.class, request.line));
        }
    }
    let payloads: BTreeSet<&str> = all.iter().map(|request| request.line.as_str()).collect();
    let payloads = payloads.len();
    println!(
        "{payloads} lines, {} requests, {} missed",
        all.len(),
        missed.len()
    );
    println!("by place {places:?}\nby class {classes:?}");
    println!("missed:\n{}", missed.join("\n"));
    assert!(payloads >= 150);
    for (place, (blocked, of)) in places {
        assert!(blocked * 100 >= of * 95, "{place}: {blocked} of {of}");
    }
}

#[test]
fn everyday_requests_pass() {
    let waf = waf();
    let mut wrong = Vec::new();
    let all = requests(BENIGN);
    for request in &all {
        let response = whole(&waf, request);
        if response.decision != Decision::Allow {
            wrong.push(format!(
                "{}: {} by {:?}",
                request.class, request.line, response.audit.rule_ids
            ));
        }
    }
    println!("{} requests", all.len());
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        all.len(),
        wrong.join("\n")
    );
}

/// The rules that matched, whatever the order.
fn matched(response: &Response) -> (bool, BTreeSet<String>) {
    let ids = response.audit.rule_ids.iter().cloned().collect();
    (response.decision == Decision::Allow, ids)
}

#[test]
fn shortcuts_change_no_decision() {
    // Beyond any threshold, every rule looks at everything.
    for threshold in [WafSettings::default().threshold, u32::MAX] {
        let make = || {
            Waf::new(WafSettings {
                threshold,
                paranoia: 4,
                ..WafSettings::default()
            })
            .unwrap()
        };
        let (short, plain) = (make(), make().without_shortcuts());
        let mut random = rand_pcg::Pcg32::new(11, 13);
        let mut next = |below: usize| {
            use rand_pcg::rand_core::Rng as _;
            random.next_u32() as usize % below
        };
        let mut all: Vec<Request> = requests(HOSTILE);
        all.extend(requests(BENIGN));
        // Fragments of them, recombined and encoded in other ways.
        let lines: Vec<String> = all.iter().map(|request| request.line.clone()).collect();
        for _ in 0..3_000 {
            let mut line = String::new();
            for _ in 0..1 + next(3) {
                let other: Vec<char> = lines[next(lines.len())].chars().collect();
                let from = next(other.len());
                let to = from + 1 + next(other.len() - from);
                line.extend(&other[from..to]);
                line.push_str(["", " ", "%20", "+", "/**/", "\0", "\n", "&#39;", "\\x27"][next(9)]);
            }
            if next(3) == 0 {
                line = line.to_uppercase();
            }
            if next(4) == 0 {
                line = encode(&line);
            }
            all.push(Request {
                class: String::new(),
                uri: format!("/?q={}", encode(&line)),
                headers: vec![],
                body: None,
                line,
            });
        }
        let differ = |request: &&Request| {
            matched(&whole(&short, request)) != matched(&whole(&plain, request))
        };
        let differ: Vec<&Request> = all.iter().filter(differ).collect();
        assert!(differ.is_empty(), "{}: {:?}", differ.len(), differ.first());
    }
}

#[test]
fn the_decision_is_the_same_however_a_body_is_divided() {
    let waf = waf();
    let corpora = requests(HOSTILE).into_iter().chain(requests(BENIGN));
    let mut cuts = 0;
    for request in corpora {
        let Some(body) = &request.body else {
            continue;
        };
        let expected = whole(&waf, &request);
        for at in 0..=body.len() {
            let (one, two) = body.split_at(at);
            let cut = decide(&waf, &request, &[one, two]);
            assert_eq!(cut.decision, expected.decision, "cut at {at}: {request:?}");
            cuts += 1;
        }
        let bytes: Vec<&[u8]> = body.chunks(1).collect();
        let cut = decide(&waf, &request, &bytes);
        assert_eq!(cut.decision, expected.decision, "byte by byte: {request:?}");
    }
    println!("{cuts} cuts");
    assert_eq!(waf.reading(), 0, "nothing is left behind");
}

#[test]
fn no_repetitive_value_takes_long() {
    // A threshold that is not reached makes every rule look at everything.
    let waf = Waf::new(WafSettings {
        threshold: u32::MAX,
        ..WafSettings::default()
    })
    .unwrap();
    let mut slowest = (std::time::Duration::ZERO, "");
    let words = [
        "<",
        "<!--",
        "<a ",
        "<a b=",
        "'",
        "\"",
        "`",
        "/*",
        "--",
        "$$",
        "$a$",
        "@",
        "(",
        "((1",
        "1 or ",
        "' or ",
        "union ",
        "union select ",
        "%25",
        "%",
        "\\",
        "\\x",
        "&#",
        "&#x3c",
        "../",
        "..;/",
        "[",
        "[]",
        "{{",
        "${",
        "${a",
        "a=",
        ";cat ",
        ";",
        "|",
        "\n",
        "on",
        "onx=",
        "<?php ",
        "java",
        "select ",
        "char(1,",
        "0x0",
        "1,",
        "null,",
        "=",
        "- ",
        "+",
        "!",
        "e1",
        "q'",
        "x'0",
        "\0",
        "\u{e9}",
        "concat(",
        "case when ",
        "<!entity ",
        "&a;",
        "<!doctype ",
        "<style ",
        "%a in (",
        "\u{ff1c}",
    ];
    for word in words {
        let value = word.repeat((60 << 10) / word.len());
        let json = serde_json::json!({ "q": value }).to_string().into_bytes();
        let form = format!("q={}", encode(&value)).into_bytes();
        for (kind, body) in [
            ("application/json", json),
            ("application/x-www-form-urlencoded", form),
        ] {
            let headers = vec![("content-type".to_owned(), kind.to_owned())];
            let request = Request {
                class: String::new(),
                line: String::new(),
                uri: "/".into(),
                headers,
                body: Some(body),
            };
            let begun = Instant::now();
            let _ = whole(&waf, &request);
            slowest = slowest.max((begun.elapsed(), word));
        }
    }
    println!("the slowest: {slowest:?}");
    assert!(slowest.0 < std::time::Duration::from_secs(5), "{slowest:?}");
}
