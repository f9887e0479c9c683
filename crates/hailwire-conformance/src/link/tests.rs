//! The rules of the link: each frame that breaks one is refused, and what keeps them is not.

use bytes::{Bytes, BytesMut};
use hailwire_wire::{
    Code, Priority,
    limits::{MUX_MAX_STREAMS, MUX_STREAM_WINDOW},
    mux::{MuxFrame, MuxRole, preface},
};
use tokio::{io::AsyncWriteExt as _, net::UnixStream};

use super::{Awaited, DirectionEnd, Link, LinkEnd, StreamEvent};

const MEDIUM: Priority = Priority::Medium;

fn data(stream: u64, len: usize, fin: bool) -> MuxFrame {
    MuxFrame::Data {
        stream,
        priority: MEDIUM,
        fin,
        body: Bytes::from(vec![0x7f; len]),
    }
}

fn window(stream: u64, credit: u32) -> MuxFrame {
    MuxFrame::Window {
        stream,
        priority: MEDIUM,
        credit,
    }
}

/// A link on which the node opened `streams` streams, and whose peer sent these frames and left.
async fn link_after(streams: usize, frames: &[MuxFrame]) -> (Link, Result<LinkEnd, String>) {
    let (node, mut peer) = UnixStream::pair().unwrap();
    let mut link = Link::new(node, Awaited::default());
    for _ in 0..streams {
        link.open_now(MEDIUM);
    }
    let mut bytes = BytesMut::from(&preface(MuxRole::Client)[..]);
    frames.iter().for_each(|frame| frame.encode(&mut bytes));
    let writing = tokio::spawn(async move {
        // The link may have had enough.
        let _ = peer.write_all(&bytes).await;
    });
    let ended = link.ended().await.map_err(|failure| failure.to_string());
    writing.await.unwrap();
    (link, ended)
}

async fn refused(streams: usize, frames: &[MuxFrame]) -> String {
    link_after(streams, frames)
        .await
        .1
        .expect_err("a broken rule")
}

#[tokio::test]
async fn bytes_beyond_what_was_granted_are_refused() {
    let told = refused(0, &[data(1, 16_384, false), data(1, 1, false)]).await;
    assert!(
        told.contains("1 bytes on stream 1, of which 0 were granted"),
        "{told}"
    );
    let (link, ended) = link_after(0, &[data(1, 16_384, true), data(3, 0, false)]).await;
    assert_eq!(ended, Ok(LinkEnd::Gone));
    assert_eq!(link.stream(1).unwrap().received(), 16_384);
    assert_eq!(link.peer_streams(), 2);
}

#[tokio::test]
async fn frames_of_streams_that_cannot_exist_are_refused() {
    for stream in [0, 2, 3, 99] {
        let told = refused(0, &[data(stream, 0, false)]).await;
        assert!(
            told.contains(&format!("stream {stream}, which does not exist")),
            "{told}"
        );
    }
    let (_, ended) = link_after(1, &[data(2, 5, false), data(1, 5, false)]).await;
    assert_eq!(ended, Ok(LinkEnd::Gone));
}

#[tokio::test]
async fn bytes_after_the_end_of_their_direction_are_refused() {
    let told = refused(0, &[data(1, 1, true), data(1, 0, false)]).await;
    assert!(
        told.contains("DATA on stream 1 after its direction ended"),
        "{told}"
    );
    let reset = MuxFrame::Reset {
        stream: 1,
        priority: MEDIUM,
        code: Code::Aborted,
    };
    let told = refused(0, &[reset.clone(), data(1, 0, true)]).await;
    assert!(told.contains("after its direction ended"), "{told}");
    let (link, _) = link_after(0, &[reset]).await;
    let end = link.stream(1).unwrap().end();
    assert_eq!(end, Some(DirectionEnd::Reset(Code::Aborted)));
}

#[tokio::test]
async fn more_streams_than_were_granted_are_refused() {
    let frames: Vec<MuxFrame> = (0..=MUX_MAX_STREAMS as u64)
        .map(|number| data(2 * number + 1, 0, false))
        .collect();
    let told = refused(0, &frames).await;
    assert!(
        told.contains("stream 8193, for which no stream was granted"),
        "{told}"
    );
    let (link, ended) = link_after(0, &frames[..MUX_MAX_STREAMS]).await;
    assert_eq!(
        (ended, link.peer_streams()),
        (Ok(LinkEnd::Gone), MUX_MAX_STREAMS)
    );
}

#[tokio::test]
async fn windows_beyond_every_bound_are_refused() {
    let most = MUX_STREAM_WINDOW - 16_384;
    let told = refused(1, &[window(2, most + 1)]).await;
    assert!(
        told.contains("a window of 2097153 bytes for stream 2"),
        "{told}"
    );
    let grown: Vec<MuxFrame> = (1..=4).map(|number| window(2 * number, most)).collect();
    let (_, ended) = link_after(4, &grown).await;
    assert_eq!(ended, Ok(LinkEnd::Gone));
    let grown: Vec<MuxFrame> = (1..=5).map(|number| window(2 * number, most)).collect();
    let told = refused(5, &grown).await;
    assert!(told.contains("bytes in all for 5 streams"), "{told}");
}

#[tokio::test]
async fn streams_beyond_their_bound_and_bytes_after_close_are_refused() {
    let told = refused(0, &[MuxFrame::Streams(1)]).await;
    assert!(told.contains("4097 streams granted at once"), "{told}");
    let (link, _) = link_after(3, &[MuxFrame::Streams(3)]).await;
    assert_eq!(link.may_open(), MUX_MAX_STREAMS);
    let close = MuxFrame::Close {
        code: Code::Ok,
        reason: "done".to_owned(),
    };
    let told = refused(0, &[close.clone(), MuxFrame::Ping([0; 8])]).await;
    assert!(told.contains("bytes after CLOSE"), "{told}");
    let (_, ended) = link_after(0, &[close]).await;
    let reason = "done".to_owned();
    assert_eq!(
        ended,
        Ok(LinkEnd::Closed {
            code: Code::Ok,
            reason
        })
    );
}

#[tokio::test]
async fn a_link_sends_no_more_than_it_was_granted_and_grants_as_it_is_read() {
    let (node, peer) = UnixStream::pair().unwrap();
    let mut node = Link::new(node, Awaited::default());
    let mut peer = Link::with_role(peer, Awaited::default(), MuxRole::Client);
    node.preface();
    peer.preface();
    let id = node.open_now(MEDIUM);
    node.put(
        id,
        hailwire_wire::frame::FrameKind::DATA,
        &vec![0x55; 3_000_000],
    );
    node.finish(id);
    let writing = async {
        node.sent(id).await.unwrap();
        node.direction_end(id).await.unwrap()
    };
    let reading = async {
        assert_eq!(peer.accept().await, Ok(id));
        let mut read = 0;
        loop {
            match peer.event(id).await.unwrap() {
                StreamEvent::Data(bytes) => read += bytes.len(),
                StreamEvent::Finished => break,
                other => panic!("{other:?}"),
            }
        }
        peer.finish(id);
        peer.flush().await.unwrap();
        read
    };
    let (end, read) = tokio::join!(writing, reading);
    assert_eq!((end, read), (DirectionEnd::Finished, 3_000_000));
}
