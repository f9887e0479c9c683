//! TCP between nodes: who is there is proved, and what is not a node's handshake ends by itself.

use hailwire::carrier::tcp::{self, TcpCarrier, TcpError};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    fixtures::{Arrivals, identity, listen},
    test_node::PATIENCE,
};

#[tokio::test]
async fn both_sides_know_whose_key_the_other_holds() {
    let (peer, listener) = listen().await;
    let (id, identity) = identity();
    let address = listener.local_addr().unwrap();
    for _ in 0..2 {
        // The second time, the session is resumed.
        let dial = tcp::connect(&identity, peer, address, &[TcpCarrier::Ws]);
        let (near, far) = tokio::join!(dial, async { listener.accept().await.handshake().await });
        let (proved, far) = far.unwrap().unwrap();
        assert_eq!(proved, id);
        assert_eq!((near.unwrap().carrier(), far.carrier()), ("ws", "ws"));
    }
}

#[tokio::test]
async fn another_key_than_the_expected_one_ends_the_handshake_on_both_sides() {
    let (_, listener) = listen().await;
    let (untrusted, identity) = identity();
    let address = listener.local_addr().unwrap();
    let dial = tcp::connect(&identity, untrusted, address, &TcpCarrier::ALL);
    let (near, far) = tokio::join!(dial, async { listener.accept().await.handshake().await });
    assert!(matches!(near, Err(TcpError::WrongPeer)), "{near:?}");
    assert!(far.is_err());
}

#[tokio::test]
async fn a_side_that_offers_no_carrier_of_ours_is_refused() {
    let (peer, listener) = listen().await;
    let (_, identity) = identity();
    let address = listener.local_addr().unwrap();
    let dial = tcp::connect(&identity, peer, address, &[]);
    let (near, far) = tokio::join!(dial, async { listener.accept().await.handshake().await });
    assert!(near.is_err());
    assert!(matches!(far, Err(TcpError::NoCarrier)), "{far:?}");
}

#[tokio::test]
async fn garbage_in_place_of_tls_is_refused_and_nobody_else_waits_for_it() {
    let (peer, listener) = listen().await;
    let (_, identity) = identity();
    let address = listener.local_addr().unwrap();
    // One says nothing at all, and holds up nobody.
    let silent = TcpStream::connect(address).await.unwrap();
    let waiting = listener.accept().await;
    assert_eq!(waiting.remote(), silent.local_addr().unwrap());
    let waiting = tokio::spawn(waiting.handshake());
    for garbage in [
        &b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"[..],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        &[0xff; 4096],
    ] {
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(garbage).await.unwrap();
        let refused = listener.accept().await.handshake().await;
        assert!(matches!(refused, Err(TcpError::Tls(_))), "{refused:?}");
        // What it is told is a TLS alert and the end, or a reset where bytes were left unread.
        let mut answer = Vec::new();
        let read = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut answer)).await;
        let _ = read.expect("the listener hangs up");
    }
    let dial = tcp::connect(&identity, peer, address, &TcpCarrier::ALL);
    let (near, far) = tokio::join!(dial, async { listener.accept().await.handshake().await });
    assert!(near.is_ok() && far.is_ok());
    assert!(!waiting.is_finished());
    drop(silent);
    assert!(waiting.await.unwrap().is_err());
}

#[tokio::test]
async fn a_port_where_nobody_listens_is_unreachable() {
    let (peer, listener) = listen().await;
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = tcp::connect(&identity().1, peer, address, &TcpCarrier::ALL).await;
    assert!(matches!(error, Err(TcpError::Unreachable(_))), "{error:?}");
}

#[tokio::test]
async fn the_round_trip_is_measured_once_somebody_asks() {
    let (peer, listener) = listen().await;
    let address = listener.local_addr().unwrap();
    let mut arrivals = Arrivals::of(listener);
    for carrier in TcpCarrier::ALL {
        let identity = identity().1;
        let dial = tcp::connect(&identity, peer, address, std::slice::from_ref(&carrier));
        let (near, far) = tokio::join!(dial, arrivals.next());
        // Both live until both were asked.
        let sides = [near.unwrap(), far.unwrap().1];
        for side in &sides {
            let measured = async {
                while side.stats().rtt.is_none() {
                    tokio::task::yield_now().await;
                }
            };
            let name = carrier.name();
            tokio::time::timeout(PATIENCE, measured).await.expect(name);
            assert!(!side.stats().remote.is_empty());
        }
    }
}
