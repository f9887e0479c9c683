//! Calls that a handler makes, three nodes deep: what is left of the deadline is inherited, a cancel reaches every hop, and so does the
//! end of the node in the middle.

use std::time::Duration;

use hailwire::{Agent, Client, Code, Request, Response, ServeHandle, admin::NodeStatus};
use tokio::sync::mpsc;

use crate::{
    child::{Helper, Role},
    test_node::{PATIENCE, TestNode},
};

/// What happened to a call at the last node: the milliseconds that it had, and that it was dropped.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Begun(Option<u64>),
    Dropped,
}

struct TellDrop(mpsc::UnboundedSender<Seen>);

impl Drop for TellDrop {
    fn drop(&mut self) {
        let _ = self.0.send(Seen::Dropped);
    }
}

/// An agent that never answers.
pub(crate) async fn serve_hold(client: &Client) -> (ServeHandle, mpsc::UnboundedReceiver<Seen>) {
    let (tell, seen) = mpsc::unbounded_channel();
    let hold = move |request: Request| {
        let tell = tell.clone();
        async move {
            let _ = tell.send(Seen::Begun(request.header().deadline_ms));
            let _dropped = TellDrop(tell);
            std::future::pending::<()>().await;
            Ok(Response::new(""))
        }
    };
    let hold = client
        .serve(Agent::new("hold").unwrap(), hold)
        .await
        .unwrap();
    (hold, seen)
}

/// An agent that passes what it is asked on to another one, and states no deadline.
pub(crate) async fn serve_middle(client: &Client, to: &'static str) -> ServeHandle {
    let onward = client.clone();
    let middle = move |request: Request| {
        let onward = onward.clone();
        async move {
            let mut answer = onward.call(to).body(request.into_body()).send().await?;
            Ok(Response::new(answer.bytes(1 << 20).await?))
        }
    };
    client
        .serve(Agent::new("middle").unwrap(), middle)
        .await
        .unwrap()
}

struct Chain {
    desk: TestNode,
    middle: TestNode,
    _last: TestNode,
    _served: (ServeHandle, ServeHandle),
    seen: mpsc::UnboundedReceiver<Seen>,
}

impl Chain {
    async fn start() -> Self {
        let (desk, middle, last) = tokio::join!(
            TestNode::named("desk"),
            TestNode::named("middle"),
            TestNode::named("last")
        );
        desk.befriend(&middle).await;
        middle.befriend(&last).await;
        let (hold, seen) = serve_hold(&last.client()).await;
        // A program beside the node, as agents are.
        let served = serve_middle(&middle.attach().await, "hold@last").await;
        Self {
            desk,
            middle,
            _last: last,
            _served: (served, hold),
            seen,
        }
    }

    async fn next(&mut self) -> Seen {
        let seen = tokio::time::timeout(PATIENCE, self.seen.recv()).await;
        seen.unwrap().unwrap()
    }

    /// The milliseconds that the last node was told.
    async fn begun(&mut self) -> u64 {
        match self.next().await {
            Seen::Begun(left) => left.expect("a deadline"),
            Seen::Dropped => panic!("dropped before it was begun"),
        }
    }
}

#[tokio::test]
async fn what_is_left_of_a_deadline_is_inherited_and_its_end_reaches_every_hop() {
    let mut chain = Chain::start().await;
    let client = chain.desk.client();
    // By the node's name, and as one of the members of a group.
    for to in ["middle@middle", "middle"] {
        let limit = Duration::from_millis(700);
        let call = client.call(to).deadline(limit);
        let call = tokio::spawn(call.send());
        let left = chain.begun().await;
        assert!(left > 0 && left <= 700, "{left}");
        assert_eq!(chain.next().await, Seen::Dropped);
        let status = call.await.unwrap().unwrap_err();
        assert_eq!(status.code, Code::DeadlineExceeded, "{status}");
    }
}

#[tokio::test]
async fn a_cancel_reaches_every_hop_and_so_does_the_end_of_the_node_in_the_middle() {
    let mut chain = Chain::start().await;
    let client = chain.desk.client();
    let begin = || {
        let call = client.call("middle@middle").deadline(PATIENCE);
        tokio::spawn(call.send())
    };
    let call = begin();
    chain.begun().await;
    call.abort();
    assert_eq!(chain.next().await, Seen::Dropped);

    let call = begin();
    chain.begun().await;
    let middle = std::mem::replace(&mut chain.middle, TestNode::named("another").await);
    middle.node.shutdown(Duration::ZERO).await;
    assert_eq!(chain.next().await, Seen::Dropped);
    let status = call.await.unwrap().unwrap_err();
    assert_eq!(status.code, Code::Unavailable, "{status}");
}

#[tokio::test]
async fn deadline_and_cancel_go_through_a_group_and_the_kill_of_a_member_in_the_middle_is_felt_at_both_ends()
 {
    let (desk, last) = tokio::join!(TestNode::named("desk"), TestNode::named("last"));
    let (_hold, mut seen) = serve_hold(&last.client()).await;
    let mut next = async || {
        let seen = tokio::time::timeout(PATIENCE, seen.recv()).await;
        seen.unwrap().unwrap()
    };
    let mut middles = Vec::new();
    for name in ["one", "two"] {
        let middle = TestNode::named(name).await;
        desk.befriend(&middle).await;
        middle.befriend(&last).await;
        let id = middle.node.id();
        middle.node.shutdown(Duration::ZERO).await;
        let process = Helper::start(Role::MiddleNode, middle.dir.path(), name);
        middles.push((id, process, middle.dir));
    }
    let client = desk.client();
    let begin = |left| tokio::spawn(client.call("middle").deadline(left).send());
    let minute = Duration::from_secs(60);
    while !middles.is_empty() {
        // What is left arrives, and so does a cancel.
        let call = begin(minute);
        let Seen::Begun(Some(left)) = next().await else {
            panic!("no deadline came");
        };
        assert!(left > 30_000 && left <= 60_000, "{left}");
        call.abort();
        assert_eq!(next().await, Seen::Dropped);
        // The end of the time does.
        let late = begin(Duration::from_millis(500));
        assert!(matches!(next().await, Seen::Begun(Some(_))));
        assert_eq!(next().await, Seen::Dropped);
        let status = late.await.unwrap().unwrap_err();
        assert_eq!(status.code, Code::DeadlineExceeded, "{status}");
        // And so does the death of the member that has it.
        let call = begin(minute);
        assert!(matches!(next().await, Seen::Begun(Some(_))));
        let having = |status: NodeStatus| {
            let mut tunnels = status.tunnels.into_iter();
            tunnels
                .find(|tunnel| tunnel.in_flight > 0)
                .map(|tunnel| tunnel.peer)
        };
        let having = desk.once(having).await;
        let place = middles.iter().position(|(id, ..)| *id == having).unwrap();
        let (_, mut process, _dir) = middles.remove(place);
        process.kill();
        assert_eq!(next().await, Seen::Dropped);
        let status = call.await.unwrap().unwrap_err();
        assert_eq!(status.code, Code::Unavailable, "{status}");
    }
}

#[tokio::test]
async fn a_durable_call_gives_its_time_on_and_is_not_bound_by_that_of_whoever_sends_it() {
    let mut chain = Chain::start().await;
    let client = chain.desk.client();
    let minute = Duration::from_secs(60);
    client
        .call("middle@middle")
        .deadline(minute)
        .durable(true, true)
        .await
        .unwrap();
    let left = chain.begun().await;
    assert!(left > 30_000 && left <= 60_000, "{left}");

    // A handler that has little time sends something that has much.
    let onward = client.clone();
    let handler = move |_request: Request| {
        let onward = onward.clone();
        async move {
            let later = onward.call("later@desk").durable(false, true).await?;
            Ok(Response::new(later.id))
        }
    };
    let brief = Agent::new("brief").unwrap();
    let _brief = client.serve(brief, handler).await.unwrap();
    let mut answer = client
        .call("brief")
        .deadline(Duration::from_secs(5))
        .send()
        .await
        .unwrap();
    let id = String::from_utf8(answer.bytes(64).await.unwrap().to_vec()).unwrap();
    let shown: hailwire::admin::MessageDetail = client
        .admin(
            hailwire::admin::method::MESSAGE_SHOW,
            &hailwire::admin::MessageSelector { id },
        )
        .await
        .unwrap();
    let worth = shown.row.expires_at_ms - shown.row.stored_at_ms;
    assert_eq!(worth, 7 * 24 * 3600 * 1000);
}
