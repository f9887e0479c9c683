//! Cases about attaching: the preface, the greeting, the registration, and what the peer does where it is turned away.

use hailwire_wire::{
    Code, Status,
    frame::FrameKind,
    header::{self, Hello},
};

use crate::{
    case::{Case, CaseGroup},
    failure::{Outcome, holds, same},
    link::LinkEnd,
    node::node_hello,
    stage::Stage,
};

pub(super) fn group() -> CaseGroup {
    CaseGroup {
        title: "Attaching",
        cases: vec![
            Case::new(
                "attach",
                "preface as client, `HELLO` on the first stream with version 1, `REGISTER` of `peer` without `max_concurrency`; both canonical, and critical is the priority of the control stream",
                |stage| Box::pin(attach(stage)),
            ),
            Case::new(
                "greeting-byte-by-byte",
                "a preface and a greeting that come one byte at a time",
                |stage| Box::pin(greeting_byte_by_byte(stage)),
            ),
            Case::new(
                "preface-of-a-later-minor-version",
                "a higher minor version and another reserved byte are accepted",
                |stage| Box::pin(later_minor_version(stage)),
            ),
            Case::new(
                "preface-with-another-magic",
                "the byte stream is ended without CLOSE, and the peer says so",
                |stage| Box::pin(another_magic(stage)),
            ),
            Case::new(
                "preface-of-another-major-version",
                "the byte stream is ended without CLOSE, and the error names both versions",
                |stage| Box::pin(another_major_version(stage)),
            ),
            Case::new(
                "preface-of-its-own-role",
                "a node that says to be the client is refused",
                |stage| Box::pin(own_role(stage)),
            ),
            Case::new(
                "hello-without-a-common-version",
                "CLOSE with `failed_precondition` and a reason that names both lists; `error: failed_precondition: …`",
                |stage| Box::pin(no_common_version(stage)),
            ),
            Case::new(
                "hello-with-several-versions",
                "the version that both lists hold is spoken",
                |stage| Box::pin(several_versions(stage)),
            ),
            Case::new(
                "hello-from-the-future",
                "unknown keys, features, and a long name in `HELLO` change nothing",
                |stage| Box::pin(hello_from_the_future(stage)),
            ),
            Case::new(
                "hello-malformed",
                "a `HELLO` that is no map closes the connection with `invalid_argument`",
                |stage| Box::pin(malformed_hello(stage)),
            ),
            Case::new(
                "turned-away-by-close",
                "a CLOSE in place of the greeting: its code and reason are told",
                |stage| Box::pin(turned_away(stage)),
            ),
            Case::new(
                "no-node",
                "where nobody listens the peer says so and exits with 1",
                |stage| Box::pin(no_node(stage)),
            ),
            Case::new(
                "registration-refused",
                "`END(already_exists)` in place of `HEAD`: `error: already_exists: …` and exit code 1",
                |stage| Box::pin(registration_refused(stage)),
            ),
            Case::new(
                "registration-accepted-from-the-future",
                "unknown frames and unknown keys on the registration's stream change nothing",
                |stage| Box::pin(registration_from_the_future(stage)),
            ),
        ],
    }
}

async fn attach(stage: &mut Stage) -> Outcome {
    let mut node = stage.attach().await?;
    same("the stream of HELLO", 1, node.control)?;
    same("max_concurrency", 0, node.register.max_concurrency)?;
    same(
        "versions",
        vec![header::VERSION],
        node.hello.versions.clone(),
    )?;
    let priorities = node.link.stream(node.control)?.priorities();
    same("the priority of the control stream", vec![3], priorities)?;
    node.still_works().await
}

async fn greeting_byte_by_byte(stage: &mut Stage) -> Outcome {
    let mut link = stage.accept().await?;
    for byte in hailwire_wire::mux::preface(hailwire_wire::mux::MuxRole::Server) {
        link.raw(&[byte]);
        link.flush().await?;
    }
    link.greeted().await?;
    let (control, _) = link.hello().await?;
    let hello = header::encode(&node_hello());
    let mut bytes = header_prefix(FrameKind::HELLO, hello.len());
    bytes.extend_from_slice(&hello);
    for byte in bytes {
        link.data_now(control, &[byte], false);
        link.flush().await?;
    }
    let (registration, _) = link.registration().await?;
    link.put(registration, FrameKind::HEAD, &[0x80]);
    link.flush().await
}

fn header_prefix(kind: FrameKind, len: usize) -> Vec<u8> {
    hailwire_wire::frame::prefix(kind, len).to_vec()
}

async fn later_minor_version(stage: &mut Stage) -> Outcome {
    let mut link = stage.accept().await?;
    link.raw(b"hailmux/\x01\x07S\x99");
    link.greeted().await?;
    let (control, _) = link.hello().await?;
    link.put(control, FrameKind::HELLO, &header::encode(&node_hello()));
    link.registration().await?;
    Ok(())
}

/// Sends a preface that is to be refused, and returns what the peer says.
async fn refused_preface(stage: &mut Stage, preface: &[u8]) -> Outcome<String> {
    let mut link = stage.accept().await?;
    link.raw(preface);
    link.awaits("the end of the byte stream");
    same("the end", LinkEnd::Gone, link.ended().await?)?;
    stage.turned_away(None).await
}

async fn another_magic(stage: &mut Stage) -> Outcome {
    let message = refused_preface(stage, b"HTTP/1.1 400 Bad Request\r\n").await?;
    holds("a message", !message.is_empty(), message)
}

async fn another_major_version(stage: &mut Stage) -> Outcome {
    let message = refused_preface(stage, b"hailmux/\x02\x00S\x00").await?;
    let both = message.contains('2') && message.contains('1');
    holds("a message that names both versions, 2 and 1", both, message)
}

async fn own_role(stage: &mut Stage) -> Outcome {
    let message = refused_preface(stage, b"hailmux/\x01\x00C\x00").await?;
    holds("a message", !message.is_empty(), message)
}

async fn no_common_version(stage: &mut Stage) -> Outcome {
    let mut link = stage.accept().await?;
    let hello = Hello {
        versions: vec![2],
        ..node_hello()
    };
    link.greet(&hello).await?;
    link.awaits("CLOSE with failed_precondition");
    match link.ended().await? {
        LinkEnd::Closed { code, reason } => {
            same("the code of CLOSE", Code::FailedPrecondition, code)?;
            let both = reason.contains("[2]") && reason.contains("[1]");
            holds("a reason that names [2] and [1]", both, reason)?;
        }
        LinkEnd::Gone => return same("the end", "CLOSE", "the end of the byte stream"),
    }
    let message = stage.turned_away(Some(Code::FailedPrecondition)).await?;
    let both = message.contains("[2]") && message.contains("[1]");
    holds("a message that names [2] and [1]", both, message)
}

async fn several_versions(stage: &mut Stage) -> Outcome {
    let hello = Hello {
        versions: vec![9, 1, 65_535],
        ..node_hello()
    };
    let mut node = stage.accept().await?.accept_peer(&hello).await?;
    node.still_works().await
}

async fn hello_from_the_future(stage: &mut Stage) -> Outcome {
    let hello = Hello {
        name: "n".repeat(300),
        software: "s".repeat(2_000),
        instance: u64::MAX,
        features: (0..200).map(|i| format!("feature-{i}")).collect(),
        ..node_hello()
    };
    let mut bytes = header::encode(&hello);
    // One key more, of a value that nobody knows.
    if let Some(first) = bytes.first_mut() {
        *first += 1;
    }
    bytes.extend_from_slice(b"\xa6future\x93\x01\x81\xa1a\xc3\xc4\x01\x00");
    let mut link = stage.accept().await?;
    link.preface();
    link.greeted().await?;
    let (control, _) = link.hello().await?;
    link.put(control, FrameKind::HELLO, &bytes);
    link.registration().await?;
    Ok(())
}

async fn malformed_hello(stage: &mut Stage) -> Outcome {
    let mut link = stage.accept().await?;
    link.preface();
    link.greeted().await?;
    let (control, _) = link.hello().await?;
    link.put(control, FrameKind::HELLO, b"\x93\x01\x02\x03");
    link.awaits("CLOSE with invalid_argument");
    match link.ended().await? {
        LinkEnd::Closed { code, .. } => same("the code of CLOSE", Code::InvalidArgument, code)?,
        LinkEnd::Gone => return same("the end", "CLOSE", "the end of the byte stream"),
    }
    stage.turned_away(None).await?;
    Ok(())
}

async fn turned_away(stage: &mut Stage) -> Outcome {
    let mut link = stage.accept().await?;
    link.preface();
    link.close(Code::PermissionDenied, "not on a sunday");
    link.greeted().await?;
    // The peer may be gone before all is written.
    let _ = link.flush().await;
    let message = stage.turned_away(Some(Code::PermissionDenied)).await?;
    holds(
        "the reason of CLOSE",
        message.contains("not on a sunday"),
        message,
    )
}

async fn no_node(stage: &mut Stage) -> Outcome {
    stage
        .stop_listening()
        .map_err(crate::failure::Failure::driver)?;
    stage.start()?;
    let message = stage.turned_away(None).await?;
    holds("a message", !message.is_empty(), message)
}

async fn registration_refused(stage: &mut Stage) -> Outcome {
    let mut link = stage.accept().await?;
    link.greet(&node_hello()).await?;
    let (registration, _) = link.registration().await?;
    let status = Status::new(Code::AlreadyExists, "the name is taken").with_hint("take another");
    link.put(registration, FrameKind::END, &header::encode(&status));
    link.finish(registration);
    link.awaits("the peer to leave");
    link.ended().await?;
    let message = stage.turned_away(Some(Code::AlreadyExists)).await?;
    holds(
        "the message of END",
        message.contains("the name is taken"),
        message,
    )
}

async fn registration_from_the_future(stage: &mut Stage) -> Outcome {
    let mut link = stage.accept().await?;
    link.greet(&node_hello()).await?;
    let (id, _) = link.registration().await?;
    link.put(id, FrameKind(0x7f), &vec![7; 100_000]);
    link.put(id, FrameKind(0x00), b"");
    link.put(id, FrameKind::HEAD, b"\x81\xa6number\x07");
    link.put(id, FrameKind(0x2f), b"later");
    let id = link.open(hailwire_wire::Priority::Medium).await?;
    let call = crate::node::to_peer("echo");
    link.put(id, FrameKind::CALL, &header::encode(&call));
    link.finish(id);
    link.awaits("the answer of echo");
    link.answer(id).await?.success()?;
    Ok(())
}
