//! A node whose QUIC engine ends; and tunnels that a test plays by hand.

mod by_hand;

use tokio::time::timeout;

use super::*;
use crate::{
    config::{Carrier, TunnelPool},
    node::additional::tests::{PATIENCE, call, pair, serve_echo},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_engine_ends_says_so_and_is_heard_again_once_it_is_started_anew() {
    let (near, far) = pair(Carrier::Quic, TunnelPool::Fixed(1), TunnelPool::Fixed(1)).await;
    let (_near, _far) = (
        serve_echo(&near, "back").await,
        serve_echo(&far, "echo").await,
    );
    call(&near.client(), "echo@far").await.unwrap();
    let hears = timeout(Duration::from_millis(50), far.node.deaf()).await;
    assert!(hears.is_err());
    far.inner().sockets.endpoint.close().await;
    timeout(PATIENCE, far.node.deaf()).await.unwrap();
    // As `hail up` does then.
    let far = far.again().await;
    let _far = serve_echo(&far, "echo").await;
    assert_eq!(call(&far.client(), "back@near").await.unwrap(), "hello");
    assert_eq!(call(&near.client(), "echo@far").await.unwrap(), "hello");
}
