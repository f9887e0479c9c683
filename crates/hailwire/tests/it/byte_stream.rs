//! Raw streams read and written as bytes.

use std::{io::ErrorKind, time::Duration};

use hailwire::{Agent, Body, Code, Request, Response, Status};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::mpsc,
};

use crate::test_node::{PATIENCE, TestNode, serve_echo};

#[tokio::test]
async fn bytes_beyond_every_window_come_back_as_they_were_and_each_way_ends_by_itself() {
    let (alice, bob) = TestNode::pair().await;
    let bob_side = bob.attach().await;
    let _echo = serve_echo(&bob_side, "echo").await;
    let all: Vec<u8> = (0..5_000_000_u32).map(|n| (n * 7 / 3) as u8).collect();
    for client in [alice.attach().await, alice.client()] {
        let stream = client.stream("echo@bob").open().await.unwrap();
        let (mut read, mut write) = tokio::io::split(stream.into_io());
        let (sent, mut back) = (all.clone(), Vec::new());
        let writing = tokio::spawn(async move {
            write.write_all(&sent).await.unwrap();
            write.shutdown().await.unwrap();
        });
        let reading = tokio::time::timeout(PATIENCE, read.read_to_end(&mut back));
        reading.await.unwrap().unwrap();
        writing.await.unwrap();
        assert!(back == all, "{} bytes", back.len());
    }
}

#[tokio::test]
async fn several_slices_are_written_in_their_order() {
    let (alice, bob) = TestNode::pair().await;
    let _echo = serve_echo(&bob.client(), "echo").await;
    let client = alice.attach().await;
    let mut io = client.stream("echo@bob").open().await.unwrap().into_io();
    let large = vec![b'2'; 200_000];
    let slices = [&b"1"[..], b"", &large, b"3"].map(std::io::IoSlice::new);
    let written = io.write_vectored(&slices).await.unwrap();
    // As much as one chunk holds.
    assert!(written > 64 << 10 && written < large.len(), "{written}");
    let mut back = vec![0; written];
    io.read_exact(&mut back).await.unwrap();
    assert_eq!(back[0], b'1');
    assert!(back[1..].iter().all(|byte| *byte == b'2'));
}

#[tokio::test]
async fn a_deadline_ends_reading_in_time_and_says_why() {
    let (alice, bob) = TestNode::pair().await;
    let _echo = serve_echo(&bob.client(), "echo").await;
    let client = alice.attach().await;
    let stream = client
        .stream("echo@bob")
        .deadline(Duration::from_millis(300));
    let mut io = stream.open().await.unwrap().into_io();
    io.write_all(b"x").await.unwrap();
    assert_eq!(io.read_u8().await.unwrap(), b'x');
    let error = tokio::time::timeout(PATIENCE, io.read_u8()).await.unwrap();
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    let status = error.get_ref().unwrap().downcast_ref::<Status>().unwrap();
    assert_eq!(status.code, Code::DeadlineExceeded);
}

/// An agent that reads two chunks and tells what came of the second.
async fn serve_two(
    client: &hailwire::Client,
) -> (
    hailwire::ServeHandle,
    mpsc::Receiver<Result<Option<bytes::Bytes>, Status>>,
) {
    let (tell, told) = mpsc::channel(1);
    let two = move |mut request: Request| {
        let tell = tell.clone();
        async move {
            let (sender, body) = Body::channel(1);
            tokio::spawn(async move {
                let _ = request.body_mut().chunk().await;
                let _ = tell.send(request.body_mut().chunk().await).await;
                drop(sender);
            });
            Ok(Response::new(body))
        }
    };
    let serving = client.serve(Agent::new("two").unwrap(), two).await.unwrap();
    (serving, told)
}

#[tokio::test]
async fn a_stream_that_is_dropped_is_given_up_and_one_that_is_shut_down_has_ended() {
    let (alice, bob) = TestNode::pair().await;
    let (_two, mut told) = serve_two(&bob.client()).await;
    let client = alice.attach().await;
    for shut_down in [true, false] {
        let mut io = client.stream("two@bob").open().await.unwrap().into_io();
        io.write_all(b"first").await.unwrap();
        if shut_down {
            io.shutdown().await.unwrap();
            let after = io.write_all(b"second").await.unwrap_err();
            assert_eq!(after.kind(), ErrorKind::BrokenPipe);
            assert_eq!(told.recv().await.unwrap(), Ok(None));
        } else {
            drop(io);
            assert!(told.recv().await.unwrap().is_err());
        }
    }
}
