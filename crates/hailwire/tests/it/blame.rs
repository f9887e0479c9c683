//! What a caller does to its own call says nothing of the agent: nobody else is told that it is not healthy.

use bytes::Bytes;
use hailwire::{
    Code, Priority,
    carrier::{CarrierConnection, mux},
};
use hailwire_wire::{
    CallHeader,
    frame::{self, FrameKind},
    header,
};
use tokio::net::UnixStream;

use crate::test_node::{TestNode, call, serve_echo};

/// More calls than an agent may fail before it counts as unwell.
const CALLS: usize = 40;

/// How a caller ends its call.
#[derive(Clone, Copy, Debug)]
enum End {
    /// It loses its connection in the middle of its body.
    Lost,
    /// It stops the answer with a code that an agent would have in trouble.
    Stopped(Code),
    /// It resets its body with such a code.
    Reset(Code),
}

/// The beginning of a call of `echo`: a header and half of a body, which comes back at once.
fn half_a_call() -> Bytes {
    let header = CallHeader {
        to: "echo".to_owned(),
        ..CallHeader::default()
    };
    let mut bytes = bytes::BytesMut::new();
    frame::put(&mut bytes, FrameKind::CALL, &header::encode(&header));
    frame::put(&mut bytes, FrameKind::DATA, &[7; 100_000]);
    bytes.freeze()
}

/// A program that begins calls and ends them in its own way.
async fn spoil(host: &TestNode, end: End) {
    let mut connections = Vec::new();
    for _ in 0..CALLS {
        let socket = UnixStream::connect(host.data().socket()).await.unwrap();
        let connection = CarrierConnection::Mux(mux::MuxConnection::client(socket));
        let (mut send, mut recv) = connection.open(Priority::Medium).await.unwrap();
        send.write(half_a_call()).await.unwrap();
        // Its answer has begun, so that the agent is at work on it.
        assert!(recv.read(1).await.unwrap().is_some());
        match end {
            End::Lost => connection.close(Code::Unavailable, "gone"),
            End::Stopped(code) => recv.stop(code),
            End::Reset(code) => send.reset(code),
        }
        // Neither half is dropped, which would be another way to end it.
        connections.push((connection, send, recv));
    }
}

#[tokio::test]
async fn callers_that_break_off_do_not_make_an_agent_unhealthy_for_others() {
    let ends = [
        End::Lost,
        End::Stopped(Code::Unavailable),
        End::Stopped(Code::Internal),
        End::Reset(Code::Unavailable),
        End::Reset(Code::DataLoss),
    ];
    for embedded in [false, true] {
        for end in ends {
            // A handler in the node's own process is told the code of a body's reset, and may answer with it.
            if embedded && matches!(end, End::Reset(_)) {
                continue;
            }
            let host = TestNode::named("alice").await;
            let agent = if embedded {
                host.client()
            } else {
                host.attach().await
            };
            let _echo = serve_echo(&agent, "echo").await;
            let honest = host.attach().await;
            spoil(&host, end).await;
            for turn in 0..CALLS {
                let answer = call(&honest, "echo", "x").await;
                assert_eq!(answer.unwrap(), b"x", "{end:?}, call {turn}");
            }
        }
    }
}
