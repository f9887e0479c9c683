use super::*;

/// Everything that a body gives, a line for each value, and what it leaves unread.
fn given(content_type: &str, pieces: &[&[u8]]) -> Vec<String> {
    let mut lines = Vec::new();
    let mut body = BodyReader::for_content_types([content_type].into_iter());
    let mut sink = |value: InspectedValue<'_>| {
        let name = String::from_utf8_lossy(value.name);
        let bytes = String::from_utf8_lossy(value.bytes);
        lines.push(format!("{:?} {name}={bytes}", value.variable));
    };
    for piece in pieces {
        body.feed(piece, &mut sink);
    }
    body.finish(&mut sink);
    lines.extend(body.unread().iter().map(|kind| format!("unread {kind}")));
    lines
}

/// The values of XML, and what is unread.
fn xml(text: &[u8]) -> Vec<String> {
    let lines = given("text/xml", &[text]);
    let some = lines
        .iter()
        .filter_map(|line| line.strip_prefix("Xml =").or(line.strip_prefix("unread ")));
    some.map(str::to_owned).collect()
}

#[test]
fn a_form_is_its_fields() {
    let lines = given(
        "application/x-www-form-urlencoded",
        &[b"a=1+2&b%3d=%27x%zz%4&&c"],
    );
    let expected = [
        "ArgsPostNames a=a",
        "ArgsPost a=1 2",
        "ArgsPostNames b==b=",
        "ArgsPost b==\'x%zz%4",
        "ArgsPostNames c=c",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn json_is_its_names_and_texts_with_escapes_undone() {
    let text = br#"{"a\u0062": ["x\"\n", 1, true, {"c": "\ud83d\ude00\u003c"}], "d": 1 or 1=1 }"#;
    let expected = [
        "ArgsPostNames ab=ab",
        "ArgsPost ab=x\"\n",
        "ArgsPostNames c=c",
        "ArgsPost c=\u{1f600}<",
        "ArgsPostNames d=d",
        "ArgsPost d=1 or 1=1 ",
    ];
    assert_eq!(given("application/json", &[text]), expected);
}

#[test]
fn multipart_is_its_fields_files_and_heads() {
    let text = b"--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nx\r\n--c\r\n--b\r\ncontent-disposition: form-data; name=f; filename=\"x\\\".php\"\r\nContent-Type: text/plain\r\n\r\n<?php\r\n--b--\r\nafter";
    let expected = [
        "MultipartPartHeaders =Content-Disposition: form-data; name=\"a\"",
        "ArgsPostNames =a",
        "ArgsPost a=x\r\n--c",
        "MultipartPartHeaders =content-disposition: form-data; name=f; filename=\"x\\\".php\"",
        "ArgsPostNames =f",
        "Files f=x\".php",
        "FilesNames =f",
        "MultipartPartHeaders =Content-Type: text/plain",
        // What the backslash does is not the same everywhere.
        "ArgsPost f=<?php",
        "FilesTmpContent f=<?php",
        "ArgsPost f=after",
    ];
    assert_eq!(
        given("multipart/form-data; boundary=\"b\"", &[text]),
        expected
    );
}

#[test]
fn a_multipart_body_that_is_none_is_an_error() {
    let error = "ReqbodyError =1".to_owned();
    for (content_type, text) in [
        ("multipart/form-data", &b"x"[..]),
        ("multipart/form-data; boundary=b", b"no delimiter"),
        (
            "multipart/form-data; boundary=b",
            b"--b\r\nX: y\r\n\r\nnever ends",
        ),
    ] {
        assert_eq!(
            given(content_type, &[text]).last(),
            Some(&error),
            "{content_type}"
        );
    }
}

#[test]
fn xml_is_its_text_and_attributes() {
    assert_eq!(
        xml(b"<a b=\"1\" c='2>' d=3>\n text <d/>more</a>"),
        ["1", "2>", "3", "text ", "more", "text more"]
    );
}

#[test]
fn the_text_of_an_element_is_joined_as_a_parser_joins_it() {
    for (text, expected) in [
        ("<a>1<![CDATA[2 & <b> ]] ]]>3</a>", vec!["12 & <b> ]] 3"]),
        ("<a>x<!-- - -- <b c='d'> -->y<?p q?>z</a>", vec!["xyz"]),
        (
            "<a>&#x27;&#39;&#0000039;&#X27;&lt;&gt;&amp;&quot;&apos;</a>",
            vec!["''''<>&\"'"],
        ),
        ("<a>&amp;lt;&#38;lt;</a>", vec!["&lt;&lt;"]),
        (
            "<a>&none; & x &#; &#xzz; &#99999999999;</a>",
            vec!["&none; & x &#; &#xzz; \u{fffd}"],
        ),
        ("<a b='&#39;x&quot;'/>", vec!["'x\""]),
        ("<a><![CDATA[never ends ]", vec!["never ends ]"]),
        ("<a>1 < 2 <", vec!["1 < 2 <"]),
        ("<a>x<b>y</b>z</a>", vec!["x", "y", "z", "xyz"]),
        ("<a> <b>y</b> <b>z</b> </a>", vec!["y", "z"]),
        ("<a><b>y<c/>z</b></a>", vec!["y", "z", "yz"]),
    ] {
        assert_eq!(xml(text.as_bytes()), expected, "{text}");
    }
}

#[test]
fn what_a_dtd_declares_is_unread_and_its_literals_are_given() {
    let text = b"<!DOCTYPE a [<!-- ']> --><!ENTITY x \"1' or 1\"><?p ']>?>]><a>&x;</a>";
    assert_eq!(xml(text), ["1' or 1", "&x;", "xml-dtd"]);
    let text = b"<!DOCTYPE a PUBLIC \"x\" \"y\"><a>&x;</a>";
    assert_eq!(xml(text), ["x", "y", "&x;", "xml-dtd"]);
    let text = b"<!DOCTYPE a PUBLIC \"x\" \"y\"><a>&lt;</a>";
    assert_eq!(xml(text), ["x", "y", "<"]);
    assert_eq!(xml(b"<a>&x;</a>"), ["&x;"], "nobody declares it");
    let text = b"<?xml version=\"1.0\" encoding='utf-7'?><a>b</a>";
    assert_eq!(xml(text), ["b", "charset"]);
}

#[test]
fn elements_within_one_another_cost_no_more_than_a_share_of_what_was_read() {
    let mut text = "<a>x".repeat(250);
    text += &"words and words ".repeat(60);
    text += &"y</a>".repeat(250);
    let text = text.repeat(20);
    let mut bytes = 0;
    let mut body = BodyReader::for_content_types(["text/xml"].into_iter());
    body.feed(text.as_bytes(), &mut |value| bytes += value.bytes.len());
    body.finish(&mut |value| bytes += value.bytes.len());
    let read = text.len();
    assert!(bytes <= 4 * read + (64 << 10), "{bytes} of {read}");
    assert!(body.unread().has(UnreadKind::XmlNesting));
}

#[test]
fn text_in_utf_16_is_read_whatever_its_order() {
    let xml = "<?xml version=\"1.0\" encoding=\"UTF-16\"?><a>x' \u{1f600}</a>";
    let json = "{\"a\":\"x' \u{1f600}\"}";
    for big in [false, true] {
        let wide = |text: &str| -> Vec<u8> {
            let unit = |unit: u16| {
                if big {
                    unit.to_be_bytes()
                } else {
                    unit.to_le_bytes()
                }
            };
            text.encode_utf16().flat_map(unit).collect()
        };
        for mark in ["", "\u{feff}"] {
            let lines = given("text/xml", &[&wide(&format!("{mark}{xml}"))]);
            assert!(lines.contains(&"Xml =x' \u{1f600}".to_owned()), "{lines:?}");
            assert!(
                !lines.iter().any(|line| line.starts_with("unread")),
                "{lines:?}"
            );
            let text = wide(&format!("{mark}{json}"));
            let lines = given("application/json; charset=utf-16", &[&text]);
            assert_eq!(lines, ["ArgsPostNames a=a", "ArgsPost a=x' \u{1f600}"]);
        }
    }
    let wider: Vec<u8> = json
        .chars()
        .flat_map(|c| u32::from(c).to_be_bytes())
        .collect();
    assert!(given("application/json", &[&wider]).contains(&"unread charset".to_owned()));
}

/// What a multipart body gives that has parts with these heads, and a text of JSON in each.
fn parts(heads: &[&str]) -> Vec<String> {
    let part = |head: &&str| format!("--b\r\n{head}\r\n\r\n{PART}\r\n");
    let text = heads.iter().map(part).collect::<String>() + "--b--\r\n";
    let lines = given("multipart/form-data; boundary=b", &[text.as_bytes()]);
    let head = |line: &String| line.starts_with("MultipartPartHeaders");
    lines.into_iter().filter(|line| !head(line)).collect()
}

const PART: &str = "{\"k\":\"\\u0078\"}";

#[test]
fn a_part_is_a_file_only_where_no_server_takes_it_for_a_field() {
    let field = |lines: &[String]| {
        let field = |line: &String| line.starts_with("ArgsPost ") && line.ends_with(PART);
        lines.iter().any(field)
    };
    for head in [
        "Content-Disposition: form-data; name=q",
        "Content-Disposition: form-data; name=q; filename=\"\"",
        "Content-Disposition: form-data; name=q; filename*=UTF-8''x",
        "Content-Disposition: form-data; name=\"q;filename=x\"",
        "Content-Disposition: form-data; name=\"a\\\"; filename=\\\"b\"",
        "Content-Disposition: form-data; name=q;\r\n filename=x",
    ] {
        assert!(field(&parts(&[head])), "{head}");
    }
    let file = parts(&["Content-Disposition: form-data; name=q; filename=\"C:\\x.json\""]);
    assert!(!field(&file), "{file:?}");
    assert!(
        file.contains(&format!("FilesTmpContent q={PART}")),
        "{file:?}"
    );
}

#[test]
fn a_part_is_read_by_what_it_says_or_looks_like() {
    let inner = "ArgsPost k=x".to_owned();
    for head in [
        "Content-Disposition: form-data; name=q",
        "Content-Disposition: form-data; name=q\r\nContent-Type: application/json",
        "Content-Disposition: form-data; name=q; filename=blob\r\nContent-Type: application/json",
    ] {
        assert!(parts(&[head]).contains(&inner), "{head}");
    }
    let has = |head: &str, line: &str| {
        let lines = parts(&[&format!("Content-Disposition: form-data; name=q{head}")]);
        assert!(lines.contains(&line.to_owned()), "{head}: {lines:?}");
    };
    for (head, unread) in [
        ("Content-Transfer-Encoding: base64", "part-encoding"),
        ("Content-Transfer-Encoding: x-unknown", "part-encoding"),
        ("Content-Type: multipart/mixed; boundary=c", "part-encoding"),
        ("Content-Type: text/plain; charset=utf-7", "charset"),
        (
            "Content-Type: text/plain\r\nContent-Type: application/json",
            "content-type",
        ),
    ] {
        has(&format!("\r\n{head}"), &format!("unread {unread}"));
    }
    has("; filename*=UTF-8''%27x", "Files q=UTF-8''%27x");
    has("; filename*=UTF-8''%27x", "Files q=UTF-8'''x");
    has("; filename=\"=?utf-8?B?eA==?=\"", "unread part-encoding");
}

#[test]
fn what_servers_end_differently_is_an_error() {
    let error = "ReqbodyError =1".to_owned();
    let field = "Content-Disposition: form-data; name=q";
    let head = format!("{field}\r\n\r\n");
    for text in [
        format!("--b\r\n{head}x\n--b--\r\n"),
        format!("--b\r\n{head}x\r\n--bc\r\ny\r\n--b--\r\n"),
        format!("--b\r\n{head}x\r\n--b--c\r\n"),
        format!("--b\r\n{head}x\r\n--b"),
        "--b\r\nX: y\r\n\r\nx\r\n--b--\r\n".to_owned(),
        format!("--b\r\n{field}\r\nno field\r\n\r\nx\r\n--b--\r\n"),
        format!("--b\r\n{field}\r\n{field}\r\n\r\nx\r\n--b--\r\n"),
    ] {
        let lines = given("multipart/form-data; boundary=b", &[text.as_bytes()]);
        assert!(lines.contains(&error), "{text:?}: {lines:?}");
    }
    let text = format!("before\r\n--b\r\n{head}x\r\n--b-- \r\nafter");
    let lines = given("multipart/form-data; boundary=b", &[text.as_bytes()]);
    assert!(!lines.contains(&error), "{lines:?}");
    assert_eq!(lines.first().unwrap(), "ArgsPost =before");
    assert_eq!(lines.last().unwrap(), "ArgsPost q=after");
}

#[test]
fn what_a_body_looks_like_is_read_besides_what_it_says() {
    let has = |kind: &str, text: &str, line: &str| {
        let lines = given(kind, &[text.as_bytes()]);
        assert!(lines.contains(&line.to_owned()), "{kind} {text}: {lines:?}");
    };
    let form = "application/x-www-form-urlencoded";
    has(form, " {\"a\":\"\\u0062\"}", "ArgsPost a=b");
    has(form, "<a>b<!-- -->c</a>", "Xml =bc");
    has(form, "\u{feff} <a>b<!-- -->c</a>", "Xml =bc");
    has("", "\u{feff}a=%62", "ArgsPost \u{feff}a=b");
    has(
        form,
        "x=\u{feff}{\"a\":\"\\u0062\"}",
        "ArgsPost x=\u{feff}{\"a\":\"\\u0062\"}",
    );
    has("application/json", "\u{feff}<a>b<!-- -->c</a>", "Xml =bc");
    has("text/xml", "{\"a\":\"\\u0062\"}", "ArgsPost a=b");
    has("text/xml", "a=%62", "ArgsPost a=b");
    has("text/plain", "<a>b<!-- -->c</a>", "Xml =bc");
    has("text/plain", "a=b&c", "ArgsPost =a=b&c");
    has("", "\0\x01\x02\x03", "unread binary");
    has("text/plain; boundary", "x", "unread content-type");
}

#[test]
fn a_body_that_does_not_say_what_it_is_is_looked_at() {
    let kinds = |text: &[u8]| {
        let lines = given("application/octet-stream", &[text]);
        lines
            .iter()
            .map(|l| l.split(' ').next().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        kinds(b" {\"a\": \"b\"}"),
        ["ArgsPostNames", "ArgsPost", "RequestBody", "ArgsPost"]
    );
    assert_eq!(
        kinds(b"a=b"),
        ["ArgsPostNames", "ArgsPost", "RequestBody", "ArgsPost"]
    );
    assert_eq!(kinds(b"plain words"), ["RequestBody", "ArgsPost"]);
    assert_eq!(
        kinds(b"<?xml version='1.0'?><a>x</a>"),
        ["Xml", "RequestBody"]
    );
    assert_eq!(
        kinds(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"),
        ["RequestBody", "unread"]
    );
}

#[test]
fn a_long_value_comes_in_windows_that_overlap() {
    let text: Vec<u8> = (0..100_000_u32).map(|n| b'a' + (n % 26) as u8).collect();
    for size in [1, 7, 4_096, 100_000] {
        let mut windows = WindowBuffer::default();
        let mut seen = Vec::new();
        for piece in text.chunks(size) {
            windows.push(piece, |bytes, first| seen.push((bytes.to_vec(), first)));
        }
        assert!(windows.held.capacity() <= WINDOW);
        windows.end(|bytes, first| seen.push((bytes.to_vec(), first)));
        let firsts: Vec<bool> = seen.iter().map(|(_, first)| *first).collect();
        assert_eq!(firsts, [true, false, false, false]);
        let mut at = 0;
        for (bytes, _) in &seen {
            assert_eq!(bytes, &text[at..(at + WINDOW).min(text.len())]);
            at += WINDOW - OVERLAP;
        }
    }
}

#[test]
fn what_lies_before_text_of_its_own_is_given_alike_however_it_is_cut() {
    let before = "<b>1</b>".to_owned() + &" ".repeat(3 * OVERLAP);
    let nested = "<a>x<b/>".repeat(40) + &"y".repeat(40 * OVERLAP);
    for text in [format!("<a>{before}2</a>"), nested] {
        let whole = given("text/xml", &[text.as_bytes()]);
        for size in [1, 1_000, 2 * OVERLAP] {
            let pieces: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
            // The body as it is comes in between.
            let sorted = |mut lines: Vec<String>| {
                lines.sort();
                lines
            };
            assert!(
                sorted(given("text/xml", &pieces)) == sorted(whole.clone()),
                "in pieces of {size}: {}…",
                &text[..40]
            );
        }
    }
}

#[test]
fn what_is_given_does_not_depend_on_the_cuts() {
    let mut random = rand_pcg::Pcg32::new(7, 11);
    let mut next = move |below: usize| {
        use rand_pcg::rand_core::Rng as _;
        random.next_u32() as usize % below
    };
    let types = [
        "application/x-www-form-urlencoded",
        "application/json",
        "multipart/form-data; boundary=b",
        "text/xml",
        "",
        "application/json; charset=utf-16",
    ];
    let words: [&[u8]; 44] = [
        UTF8_BOM,
        b"<!-- ",
        b"-->",
        b"<![CDATA[",
        b"]]>",
        b"]",
        b"<?xml encoding='utf-7'",
        b"?>",
        b"<!DOCTYPE a ",
        b"[",
        b"<!ENTITY x \"",
        b"&#x2",
        b"7;",
        b"&amp",
        b";",
        b"<a>",
        b"</a>",
        b"<b/>",
        b"=",
        b"Content-Type: application/json\r\n",
        b"\r\n--b",
        b"\r\n",
        b"--b--",
        b"--",
        b"\n--b\r\n",
        b"a=b",
        b"&",
        b"%27",
        b"%",
        b"\\u00",
        b"\\",
        b"\"",
        b"{",
        b"}",
        b":",
        b",",
        b"<a b='",
        b"'>",
        b"Content-Disposition: form-data; name=x\r\n\r\n",
        b"; filename=y",
        b" ",
        b"text",
        b"\0",
        b"\xff",
    ];
    for round in 0..6_000 {
        let mut text = Vec::new();
        // A mark of UTF-8 is one only where the text begins.
        if next(8) == 0 {
            text.extend_from_slice(UTF8_BOM);
        }
        for _ in 0..1 + next(40) {
            let word = words[next(words.len())];
            // At times as much of one thing as no buffer holds.
            let times = if next(400) == 0 {
                next(3 * WINDOW) / word.len()
            } else {
                1
            };
            text.extend_from_slice(&word.repeat(times));
        }
        let content_type = types[round % types.len()];
        let sorted = |mut lines: Vec<String>| {
            // Of two readers, each gives what it has when it has it.
            lines.sort();
            lines
        };
        let whole = sorted(given(content_type, &[&text]));
        let mut pieces = Vec::new();
        let mut rest = &text[..];
        let most = [1 + text.len() / 500, text.len()][next(2)];
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(1 + next(most.min(rest.len())));
            pieces.push(piece);
            rest = after;
        }
        assert_eq!(
            sorted(given(content_type, &pieces)),
            whole,
            "round {round}: {content_type} {} bytes in {} pieces",
            text.len(),
            pieces.len()
        );
    }
}
