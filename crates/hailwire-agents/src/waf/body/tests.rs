use super::*;

/// Everything that a body gives, a line for each value.
fn given(content_type: &str, pieces: &[&[u8]]) -> Vec<String> {
    let mut lines = Vec::new();
    let mut body = Body::of(Some(content_type).filter(|kind| !kind.is_empty()));
    let mut sink = |value: Value<'_>| {
        let name = String::from_utf8_lossy(value.name);
        let bytes = String::from_utf8_lossy(value.bytes);
        lines.push(format!("{:?} {name}={bytes}", value.variable));
    };
    for piece in pieces {
        body.feed(piece, &mut sink);
    }
    body.finish(&mut sink);
    lines
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
        "FilesTmpContent f=<?php",
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
    let lines = given("text/xml", &[b"<a b=\"1\" c='2>'>\n text <d/>more</a>"]);
    let values: Vec<&str> = lines
        .iter()
        .filter_map(|l| l.strip_prefix("Xml ="))
        .collect();
    assert_eq!(values, ["1", "2>", "text ", "more"]);
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
    assert_eq!(kinds(b"a=b"), ["ArgsPostNames", "ArgsPost"]);
    assert_eq!(kinds(b"plain words"), ["RequestBody", "ArgsPost"]);
    assert_eq!(
        kinds(b"<?xml version='1.0'?><a>x</a>").last().unwrap(),
        "RequestBody"
    );
    assert_eq!(kinds(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"), ["RequestBody"]);
}

#[test]
fn a_long_value_comes_in_windows_that_overlap() {
    let text: Vec<u8> = (0..100_000_u32).map(|n| b'a' + (n % 26) as u8).collect();
    for size in [1, 7, 4_096, 100_000] {
        let mut windows = Windows::default();
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
    ];
    let words: [&[u8]; 24] = [
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
    for round in 0..3_000 {
        let text: Vec<u8> = (0..1 + next(40))
            .flat_map(|_| words[next(24)].to_vec())
            .collect();
        let content_type = types[round % types.len()];
        let whole = given(content_type, &[&text]);
        let mut pieces = Vec::new();
        let mut rest = &text[..];
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(1 + next(rest.len()));
            pieces.push(piece);
            rest = after;
        }
        assert_eq!(
            given(content_type, &pieces),
            whole,
            "{content_type} {pieces:?}"
        );
    }
}
