use bytes::Bytes;
use hailwire_callout::event::Metadata;

use super::*;

fn waf(settings: WafSettings) -> Waf {
    Waf::new(settings).unwrap()
}

fn head(id: &str, method: &str, uri: &str, headers: &[(&str, &str)]) -> RequestHeaders {
    let metadata = hailwire_callout::event::Metadata {
        correlation_id: id,
        ..Metadata::default()
    };
    let host = [("host", "example.com")];
    RequestHeaders::new(
        &metadata,
        method,
        uri,
        host.into_iter().chain(headers.iter().copied()),
    )
}

fn chunk(id: &str, data: &[u8], last: bool) -> BodyChunk {
    BodyChunk {
        correlation_id: id.into(),
        data: Bytes::copy_from_slice(data),
        is_last: last,
        total_size: None,
        index: 0,
        transferred: 0,
    }
}

fn passes(response: &Response) -> bool {
    response.decision == Decision::Allow
}

const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");

#[test]
fn a_small_body_is_held_until_it_is_judged_and_a_large_one_streams_until_an_attack() {
    let waf = waf(WafSettings::default());
    let now = Instant::now();
    let long = [FORM, ("content-length", "9999999")];
    assert!(passes(&waf.head(&head("c", "POST", "/", &long), now)));
    let prose = b"a=word+after+word&".repeat(100);
    let mut seen = 0;
    while seen < 20 * WINDOW {
        let response = waf.chunk(&chunk("c", &prose, false), now);
        seen += prose.len();
        assert!(passes(&response), "{response:?}");
        assert_eq!(response.needs_more, seen < WINDOW);
    }
    let response = waf.chunk(&chunk("c", b"q=1'+or+'1'='1&b=", false), now);
    assert!(!passes(&response), "{response:?}");
}

#[test]
fn a_body_is_blocked_as_soon_as_the_field_with_the_attack_has_ended() {
    let waf = waf(WafSettings::default());
    let now = Instant::now();
    let response = waf.head(
        &head("c", "POST", "/", &[FORM, ("content-length", "99999")]),
        now,
    );
    assert!(passes(&response) && response.needs_more);
    let response = waf.chunk(&chunk("c", b"a=1&q=1'+or+'1'=", false), now);
    assert!(passes(&response) && response.needs_more, "it has not ended");
    let response = waf.chunk(&chunk("c", b"'1&b=", false), now);
    assert!(!passes(&response) && !response.needs_more, "{response:?}");
    assert_eq!(response.audit.tags, ["attack-sqli"]);
    assert_eq!(response.audit.reason_codes, ["ATTACK_SQLI"]);
    assert!(!response.audit.rule_ids.is_empty() && response.audit.confidence >= Some(0.5));
    let under_way = waf.chunk(&chunk("c", b"harmless", false), now);
    assert!(!passes(&under_way), "what was blocked stays blocked");
    assert_eq!((waf.blocked(), waf.reading()), (1, 1));
    assert!(!passes(&waf.chunk(&chunk("c", b"", true), now)));
    assert_eq!((waf.blocked(), waf.reading()), (1, 0));
}

#[test]
fn a_large_body_is_read_in_bounded_memory_and_an_attack_deep_within_is_found() {
    let waf = waf(WafSettings::default());
    let now = Instant::now();
    for kind in [
        "application/json",
        "application/x-www-form-urlencoded",
        "text/plain",
    ] {
        let _ = waf.head(&head("c", "POST", "/", &[("content-type", kind)]), now);
        let begin: &[u8] = if kind.ends_with("json") {
            b"{\"a\":\""
        } else {
            b"a="
        };
        assert!(passes(&waf.chunk(&chunk("c", begin, false), now)));
        let filler = b"plain words of no meaning ".repeat(400);
        for _ in 0..200 {
            assert!(
                passes(&waf.chunk(&chunk("c", &filler, false), now)),
                "{kind}"
            );
        }
        let mut response = waf.chunk(&chunk("c", b" <script>alert(1)</script> ", false), now);
        let mut more = 0;
        while passes(&response) {
            response = waf.chunk(&chunk("c", &filler, false), now);
            more += filler.len();
            assert!(more <= 2 * WINDOW, "{kind}: found late");
        }
        waf.cancelled("c", CancelReason::Timeout);
        assert_eq!(waf.reading(), 0);
    }
}

#[test]
fn the_state_of_a_request_ends_with_its_body_its_completion_or_a_cancel() {
    let waf = waf(WafSettings {
        requests: 16,
        ..WafSettings::default()
    });
    let now = Instant::now();
    let begin = |id: &str| waf.head(&head(id, "POST", "/", &[FORM]), now);
    let _ = begin("a");
    let _ = waf.chunk(&chunk("a", b"x=1", true), now);
    assert_eq!(waf.reading(), 0);
    let _ = begin("b");
    waf.cancelled("b", CancelReason::ClientDisconnect);
    assert_eq!(waf.reading(), 0);
    let _ = waf.head(&head("c", "GET", "/", &[]), now);
    assert_eq!(waf.reading(), 0, "no body is expected");
    let answers: Vec<Response> = (0..1_000).map(|n| begin(&n.to_string())).collect();
    assert_eq!(waf.reading(), 16);
    let full = answers
        .iter()
        .filter(|a| matches!(a.decision, Decision::Block { status: 503, .. }));
    assert_eq!(full.count(), 984, "a body that nobody reads does not pass");
    let later = now + WafSettings::default().idle;
    assert!(
        passes(&waf.head(&head("d", "POST", "/", &[FORM]), later)),
        "idle entries are evicted"
    );
}

#[test]
fn observing_blocks_nothing_and_says_what_it_would_have() {
    let waf = waf(WafSettings {
        block: false,
        ..WafSettings::default()
    });
    let response = waf.head(
        &head("c", "GET", "/?q=%3Cscript%3Ealert(1)%3C/script%3E", &[]),
        Instant::now(),
    );
    assert!(passes(&response));
    assert!(response.audit.tags.contains(&"attack-xss".to_owned()));
    assert_eq!(waf.blocked(), 0);
}

#[test]
fn a_higher_threshold_wants_more_rules_to_match() {
    let attack = head(
        "c",
        "GET",
        "/?q=1%27%20UNION%20SELECT%20null,null,null--&r=<script>alert(1)</script>",
        &[],
    );
    let low = waf(WafSettings::default()).head(&attack, Instant::now());
    let high = waf(WafSettings {
        threshold: 1_000,
        ..WafSettings::default()
    })
    .head(&attack, Instant::now());
    assert!(!passes(&low) && passes(&high));
    assert!(
        high.audit.rule_ids.len() > low.audit.rule_ids.len(),
        "it goes on to look"
    );
}

#[test]
fn a_websocket_message_is_read_over_its_frames() {
    let waf = waf(WafSettings::default());
    let now = Instant::now();
    let frame = |opcode, data: &[u8], fin, client_to_server| WebSocketFrame {
        correlation_id: "c".into(),
        opcode,
        data: Bytes::copy_from_slice(data),
        fin,
        client_to_server,
        ..WebSocketFrame::default()
    };
    let first = waf.frame(&frame(Opcode::Text, b"{\"q\":\"<scr", false, true), now);
    assert_eq!(first, Response::allow());
    let closed = waf.frame(
        &frame(
            Opcode::Continuation,
            b"ipt>alert(1)</script>\"}",
            true,
            true,
        ),
        now,
    );
    assert!(matches!(
        closed.websocket,
        Some(WebSocketDecision::Close { code: 1008, .. })
    ));
    let answer = waf.frame(
        &frame(Opcode::Text, b"<script>alert(1)</script>", true, false),
        now,
    );
    assert_eq!(
        answer,
        Response::allow(),
        "what the server sends is not looked at"
    );
    assert_eq!(waf.reading(), 0);
}

#[test]
fn a_directory_of_rules_is_used_as_far_as_it_is_understood() {
    let dir = tempfile::tempdir().unwrap();
    let rules = "SecRule ARGS \"@pmFromFile words.data\" \"id:1,phase:2,deny,status:418,msg:'a word'\"\n\
        SecRule ARGS \"@rx x\" \"id:2,phase:2,block,severity:'CRITICAL',tag:'paranoia-level/2'\"\n\
        SecRule TX:X \"@eq 1\" \"id:3,phase:2,deny\"\n\
        SecRule ARGS \"@streq removed\" \"id:4,phase:2,deny\"\nSecRuleRemoveById 4\n\
        SecRuleUpdateTargetById 1 \"!ARGS:free\"\n";
    std::fs::write(dir.path().join("a.conf"), rules).unwrap();
    std::fs::write(dir.path().join("words.data"), "# none\nforbidden\n").unwrap();
    let load = |paranoia| {
        waf(WafSettings {
            rules: Some(dir.path().to_owned()),
            paranoia,
            ..WafSettings::default()
        })
    };
    let one = load(1);
    let report = one.report();
    assert_eq!(
        (report.used, report.above_paranoia, report.skipped.len()),
        (1, 1, 1)
    );
    assert_eq!(report.reasons().keys().collect::<Vec<_>>(), ["variable TX"]);
    let get = |waf: &Waf, uri: &str| waf.head(&head("c", "GET", uri, &[]), Instant::now());
    assert!(matches!(
        get(&one, "/?a=Forbidden").decision,
        Decision::Block { status: 418, .. }
    ));
    assert!(passes(&get(&one, "/?a=x")) && !passes(&get(&load(2), "/?a=x")));
    assert!(passes(&get(&one, "/?a=removed")));
    assert!(passes(&get(&one, "/?free=Forbidden")), "an exception");
    let none = RuleSet::load(&dir.path().join("absent"), 1);
    assert!(matches!(none, Err(RulesError::Read { .. })));
    std::fs::write(dir.path().join("a.conf"), "SecAction \"id:1\"").unwrap();
    assert!(matches!(
        RuleSet::load(dir.path(), 1),
        Err(RulesError::Empty { skipped: 1, .. })
    ));
}

fn of_rules(text: &str) -> (tempfile::TempDir, Waf) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.conf"), text).unwrap();
    let settings = WafSettings {
        rules: Some(dir.path().to_owned()),
        ..WafSettings::default()
    };
    (dir, waf(settings))
}

#[test]
fn a_chain_matches_when_all_its_links_do_wherever_they_look() {
    let (_dir, waf) = of_rules(
        "SecRule ARGS_NAMES \"@streq session\" \"id:1,phase:2,block,severity:'CRITICAL',t:lowercase,chain\"\n\
         SecRule REQUEST_HEADERS:Referer \"@rx ^https://(.*?)/\" \"capture,chain\"\n\
         SecRule TX:1 \"!@endsWith %{request_headers.host}\" \"\"\n\
         SecRule REQUEST_METHOD \"@streq PUT\" \"id:2,phase:2,deny,chain\"\n\
         SecRule &REQUEST_HEADERS:X-Reason \"@eq 0\" \"chain\"\n\
         SecRule ARGS:q \"@contains x\" \"\"\n",
    );
    assert_eq!((waf.report().used, waf.report().skipped.len()), (2, 0));
    let now = Instant::now();
    let elsewhere = ("referer", "https://evil.example/a");
    let here = ("referer", "https://www.example.com/a");
    for (uri, headers, pass) in [
        ("/?Session=1", &[elsewhere][..], false),
        ("/?session=1", &[here], true),
        ("/?session=1", &[], true),
        ("/?other=1", &[elsewhere], true),
    ] {
        let response = waf.head(&head("c", "GET", uri, headers), now);
        assert_eq!(passes(&response), pass, "{uri} {headers:?}");
        if !pass {
            assert_eq!(response.audit.rule_ids, ["1"]);
        }
    }
    // One link matches at the head and another deep in the body.
    for (reason, method, body, pass) in [
        (None, "PUT", "a=1&q=yx", false),
        (None, "PUT", "a=x&q=y", true),
        (None, "POST", "q=x", true),
        (Some(("x-reason", "y")), "PUT", "q=x", true),
    ] {
        let headers: Vec<_> = [FORM].into_iter().chain(reason).collect();
        assert!(passes(&waf.head(&head("c", method, "/", &headers), now)));
        let half = body.len() / 2;
        let first = waf.chunk(&chunk("c", &body.as_bytes()[..half], false), now);
        let last = waf.chunk(&chunk("c", &body.as_bytes()[half..], true), now);
        assert!(passes(&first));
        assert_eq!(passes(&last), pass, "{method} {body} {reason:?}");
    }
}

#[test]
fn a_link_sees_what_the_one_before_it_matched_captured_and_set() {
    let (_dir, waf) = of_rules(
        "SecRule ARGS:a \"@rx ([a-z]+)=([a-z]+)\" \"id:1,deny,capture,t:lowercase,chain\"\n\
         SecRule TX:1 \"@streq %{TX.2}\" \"t:none\"\n\
         SecRule ARGS:b \"@pm evil bad\" \"id:2,deny,chain\"\n\
         SecRule MATCHED_VARS \"!@rx ^good\" \"chain\"\n\
         SecRule MATCHED_VAR_NAME \"@streq b\" \"\"\n\
         SecRule REQUEST_BASENAME \"@rx \\.([^.]+)$\" \"id:3,deny,capture,setvar:'tx.extension=.%{tx.1}/',chain\"\n\
         SecRule TX:EXTENSION \"@within %{tx.restricted}\" \"t:lowercase\"\n\
         SecAction \"id:4,pass,nolog,setvar:'tx.restricted=.bak/ .sql/'\"\n\
         SecRule REQUEST_METHOD \"!@within %{tx.methods}\" \"id:5,deny\"\n\
         SecRule &TX:methods \"@eq 0\" \"id:6,pass,nolog,setvar:'tx.methods=GET POST'\"\n",
    );
    assert_eq!((waf.report().used, &waf.report().skipped[..]), (4, &[][..]));
    let now = Instant::now();
    for (method, uri, id) in [
        ("GET", "/?a=x+one=One+y", Some("1")),
        ("GET", "/?a=one=two", None),
        ("GET", "/?b=so+bad", Some("2")),
        ("GET", "/?b=good+or+bad", None),
        ("GET", "/?c=bad", None),
        ("GET", "/dump.SQL", Some("3")),
        ("GET", "/dump.sq", None),
        ("DELETE", "/", Some("5")),
    ] {
        let response = waf.head(&head("c", method, uri, &[]), now);
        let ids: Vec<&str> = response.audit.rule_ids.iter().map(String::as_str).collect();
        assert_eq!(ids, id.into_iter().collect::<Vec<_>>(), "{method} {uri}");
    }
}

#[test]
fn what_a_later_transformation_makes_is_looked_for_all_the_same() {
    let rules = "SecRule ARGS \"@contains <\" \"id:1,deny,t:lowercase,t:removeNulls,t:jsDecode\"\n\
        SecRule ARGS \"@contains (\" \"id:2,deny,t:removeWhitespace,t:urlDecodeUni,t:trim,t:htmlEntityDecode\"\n\
        SecRule ARGS \"!@rx x\" \"id:3,deny,t:removeWhitespace\"\n";
    let (_dir, short) = of_rules(rules);
    let (_dir, plain) = of_rules(rules);
    let plain = plain.without_shortcuts();
    for (uri, id) in [
        ("/?q=xA%5Cx3c", Some("1")),
        ("/?q=x+%2526%2523x28;", Some("2")),
        ("/?q=+", Some("3")),
        ("/?q=+x", None),
    ] {
        let get = head("c", "GET", uri, &[]);
        let ids = |waf: &Waf| waf.head(&get, Instant::now()).audit.rule_ids;
        assert_eq!(ids(&short), ids(&plain), "{uri}");
        assert_eq!(ids(&short).first().map(String::as_str), id, "{uri}");
    }
}

#[test]
fn the_length_of_a_body_is_known_as_it_grows() {
    let (_dir, waf) = of_rules(
        "SecRule REQUEST_BODY_LENGTH \"@gt 5\" \"id:1,deny,chain\"\n\
         SecRule &REQUEST_HEADERS:Content-Type \"@eq 0\" \"\"\n\
         SecRule REQUEST_BODY_LENGTH \"@lt 5\" \"id:2,deny\"\n",
    );
    assert_eq!(
        waf.report().reasons().keys().collect::<Vec<_>>(),
        ["variable REQUEST_BODY_LENGTH"]
    );
    let now = Instant::now();
    let length = ("content-length", "8");
    assert!(passes(&waf.head(&head("c", "POST", "/", &[length]), now)));
    assert!(passes(&waf.chunk(&chunk("c", b"12345", false), now)));
    assert!(!passes(&waf.chunk(&chunk("c", b"678", true), now)));
    let _ = waf.head(&head("c", "POST", "/", &[length, FORM]), now);
    assert!(passes(&waf.chunk(&chunk("c", b"12345678", true), now)));
}

#[test]
fn a_detector_that_breaks_has_not_found_the_value_harmless() {
    assert!(operator::true_on_panic(|| panic!(
        "as a broken library does"
    )));
}

/// Header fields, a body, and the kind of content in it that is not read.
type UnreadCase = (
    &'static [(&'static str, &'static str)],
    &'static [u8],
    UnreadKind,
);

const UNREAD: [UnreadCase; 8] = [
    (&[("content-encoding", "gzip")], b"\x1f\x8b", UnreadKind::ContentEncoding),
    (&[("transfer-encoding", "gzip, chunked")], b"\x1f\x8b", UnreadKind::ContentEncoding),
    (
        &[("content-type", "text/plain; charset=utf-7")],
        b"x",
        UnreadKind::Charset,
    ),
    (
        &[("content-type", "text/plain"), ("content-type", "text/xml")],
        b"x",
        UnreadKind::ContentType,
    ),
    (
        &[("content-type", "multipart/form-data; boundary=b")],
        b"--b\r\nContent-Disposition: form-data; name=a\r\nContent-Transfer-Encoding: base64\r\n\r\neA==\r\n--b--\r\n",
        UnreadKind::PartEncoding,
    ),
    (
        &[("content-type", "text/xml")],
        b"<!DOCTYPE a [<?x?>]><a/>",
        UnreadKind::XmlDtd,
    ),
    (
        &[("content-type", "text/xml")],
        b"<?xml version='1.0' encoding='ebcdic-cp-us'?><a/>",
        UnreadKind::Charset,
    ),
    (
        &[("content-type", "image/png")],
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
        UnreadKind::Binary,
    ),
];

fn post(waf: &Waf, headers: &[(&str, &str)], body: &[u8]) -> Response {
    let now = Instant::now();
    let response = waf.head(&head("c", "POST", "/", headers), now);
    if passes(&response) {
        waf.chunk(&chunk("c", body, true), now)
    } else {
        response
    }
}

#[test]
fn what_is_not_read_is_said_counted_and_blocked_unless_the_operator_lets_it_pass() {
    for (headers, body, kind) in UNREAD {
        let blocking = waf(WafSettings::default());
        let letting = waf(WafSettings {
            may_be_unread: UnreadSet::ALL,
            ..WafSettings::default()
        });
        let strict = waf(WafSettings {
            may_be_unread: UnreadSet::default(),
            ..WafSettings::default()
        });
        for (waf, pass) in [
            (&blocking, kind == UnreadKind::Binary),
            (&letting, true),
            (&strict, false),
        ] {
            let response = post(waf, headers, body);
            assert_eq!(passes(&response), pass, "{kind}: {response:?}");
            let tag = format!("unread:{kind}");
            assert!(response.audit.tags.contains(&tag), "{kind}: {response:?}");
            let code = tag.to_uppercase().replace([':', '-'], "_");
            assert!(response.audit.reason_codes.contains(&code), "{response:?}");
            let counts = UnreadKind::ALL.map(|any| waf.unread(any));
            assert_eq!(counts.iter().sum::<u64>(), 1, "{kind} {counts:?}");
            assert_eq!(waf.unread(kind), 1);
        }
    }
}

#[test]
fn what_is_read_is_not_said_to_be_unread() {
    let waf = waf(WafSettings::default());
    for (headers, body) in [
        (&[FORM][..], &b"a=b"[..]),
        (
            &[("content-type", "application/json; charset=utf-8")],
            b"{}",
        ),
        (
            &[("content-type", "text/xml; charset=ISO-8859-1")],
            b"<a>b</a>",
        ),
        (&[("content-encoding", "identity"), FORM], b"a=b"),
        (&[("transfer-encoding", "chunked"), FORM], b"a=b"),
    ] {
        assert_eq!(post(&waf, headers, body), Response::allow());
    }
}
