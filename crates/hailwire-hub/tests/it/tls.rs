//! How a client authenticates the hub.

use hailwire::hub::{HubClient, HubError, tls::HubPins};
use hailwire_hub::TlsMode;
use hailwire_wire::{Code, HubUrl, Status};

use crate::test_hub::{TestHub, key};

fn client(hub: &TestHub, pinned: Option<hailwire_wire::NodeId>) -> HubClient {
    HubClient::new(hub.hub.url().clone(), pinned, key(1), &HubPins::default()).unwrap()
}

#[tokio::test]
async fn the_pinned_key_proves_the_hub() {
    let hub = TestHub::https().await;
    let health = client(&hub, Some(hub.hub.id())).health().await.unwrap();
    assert_eq!(health.hub, hub.hub.id());
}

#[tokio::test]
async fn another_key_and_no_key_prove_nothing() {
    let hub = TestHub::https().await;
    for pinned in [None, Some(key(9).id())] {
        let error = client(&hub, pinned).health().await.unwrap_err();
        assert!(matches!(error, HubError::Tls(_)), "{error:?}");
        let status = Status::from(error);
        assert_eq!(status.code, Code::Unauthenticated);
        assert!(status.hint.contains("ticket"));
    }
}

#[tokio::test]
async fn a_hub_that_is_gone_is_unavailable() {
    let hub = TestHub::https().await;
    let client = client(&hub, Some(hub.hub.id()));
    hub.hub.shutdown().await;
    let error = client.health().await.unwrap_err();
    assert!(matches!(error, HubError::Unreachable(_)), "{error:?}");
    assert_eq!(Status::from(error).code, Code::Unavailable);
}

#[tokio::test]
async fn a_server_that_is_not_a_hub_is_recognised() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url: HubUrl = format!("http://{}", listener.local_addr().unwrap())
        .parse()
        .unwrap();
    let server = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let (mut tcp, _) = listener.accept().await.unwrap();
        let _ = tcp.read(&mut [0; 1024]).await.unwrap();
        tcp.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")
            .await
            .unwrap();
        tcp
    });
    let client = HubClient::new(url, None, key(1), &HubPins::default()).unwrap();
    let error = client.health().await.unwrap_err();
    assert!(matches!(error, HubError::Answer(_)), "{error:?}");
    drop(server.await.unwrap());
}

#[tokio::test]
async fn an_operators_certificate_serves_and_its_tickets_pin_no_key() {
    let folder = tempfile::tempdir().unwrap();
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (
        folder.path().join("cert.pem"),
        folder.path().join("key.pem"),
    );
    std::fs::write(&certificate, own.cert.pem()).unwrap();
    std::fs::write(&key, own.signing_key.serialize_pem()).unwrap();
    let hub = TestHub::with(|config| config.tls = TlsMode::Files { certificate, key }).await;
    assert_eq!(hub.ticket(1).await.key, None);
    // No public authority signed it, so it is refused, and the hub's own key does not help.
    let error = client(&hub, Some(hub.hub.id())).health().await.unwrap_err();
    assert!(matches!(error, HubError::Tls(_)), "{error:?}");
}
