//! What a hub refuses, and with which code.

use std::time::Duration;

use hailwire_hub::{Hub, HubConfig, StartError, TlsMode};
use hailwire_wire::{
    Code, Status,
    directory::{
        JoinHubRequest, PublishRequest, RefusalReason, RequestPermit, SignedRequest, path,
    },
    header, limits,
    record::NodeRecord,
    signed::{KeyPair, SignatureDomain},
    ticket::TicketSecret,
};

use crate::test_hub::{TestHub, config, key, permit, raw, reason, record, refusal, unix_now};

/// Publishes bytes as they are, in the name of `key`.
async fn publish_bytes(hub: &TestHub, key: &KeyPair, bytes: Vec<u8>) -> (u16, RefusalReason) {
    let body = serde_json::to_vec(&PublishRequest::to_all(bytes.into())).unwrap();
    let name = hub.hub.id().to_string();
    let asked = SignedRequest {
        hub: &name,
        method: "PUT",
        path: path::RECORD,
        body: &body,
    };
    refusal(&hub.hub, &asked, Some(&permit(&asked, key))).await
}

fn sealed(record: &NodeRecord, key: &KeyPair) -> Vec<u8> {
    key.seal(SignatureDomain::Record, &header::encode(record))
}

#[tokio::test]
async fn bad_records_are_refused_each_with_its_code() {
    let hub = TestHub::plain().await;
    let node = hub.member(1).await;
    node.publish(&node.record(None, 5)).await.unwrap();
    assert_eq!(
        node.publish(&node.record(None, 5)).await,
        Err(RefusalReason::Replayed)
    );
    assert_eq!(
        node.publish(&node.record(None, 4)).await,
        Err(RefusalReason::Replayed)
    );

    let mut forged = sealed(&record(None, 6), &node.key);
    *forged.last_mut().unwrap() ^= 1;
    assert_eq!(
        publish_bytes(&hub, &node.key, forged).await,
        (401, RefusalReason::Forged)
    );

    let stolen = sealed(&record(None, 6), &key(2));
    assert_eq!(
        publish_bytes(&hub, &node.key, stolen).await,
        (403, RefusalReason::NotYours)
    );

    let oversized = vec![0; limits::MAX_RECORD + 1];
    assert_eq!(
        publish_bytes(&hub, &node.key, oversized).await,
        (413, RefusalReason::TooLarge)
    );

    let now = unix_now();
    let expired = NodeRecord {
        issued: now - 9000,
        expires: now - 1,
        ..record(None, 6)
    };
    let expired = sealed(&expired, &node.key);
    assert_eq!(
        publish_bytes(&hub, &node.key, expired).await,
        (400, RefusalReason::Expired)
    );

    let early = NodeRecord {
        issued: now + 9000,
        expires: now + 9999,
        ..record(None, 6)
    };
    let early = sealed(&early, &node.key);
    assert_eq!(
        publish_bytes(&hub, &node.key, early).await,
        (400, RefusalReason::Expired)
    );

    let junk = publish_bytes(&hub, &node.key, vec![1; 40]).await;
    assert_eq!(junk, (400, RefusalReason::Malformed));
    node.publish(&node.record(None, 6)).await.unwrap();
}

#[tokio::test]
async fn a_taken_name_is_refused_with_already_exists_and_a_hint() {
    let hub = TestHub::plain().await;
    let (one, two) = (hub.member(1).await, hub.member(2).await);
    one.publish(&one.record(Some("laptop"), 1)).await.unwrap();
    let error = two
        .client
        .publish(&two.record(Some("laptop"), 1))
        .await
        .unwrap_err();
    let status = Status::from(error);
    assert_eq!(status.code, Code::AlreadyExists);
    assert!(
        status.message.contains("laptop") && !status.hint.is_empty(),
        "{status:?}"
    );
}

#[tokio::test]
async fn non_members_see_only_that_there_is_a_hub() {
    let hub = TestHub::plain().await;
    let member = hub.member(1).await;
    member
        .publish(&member.record(Some("laptop"), 1))
        .await
        .unwrap();
    let untrusted = hub.unjoined_node(9);
    assert_eq!(untrusted.client.health().await.unwrap().hub, hub.hub.id());
    let not = Err(RefusalReason::NotAMember);
    let lookup = untrusted.client.lookup(&"laptop".parse().unwrap()).await;
    assert_eq!(lookup.map(drop).map_err(reason), not);
    let search = untrusted
        .client
        .search(&hailwire_wire::directory::SearchRequest::default())
        .await;
    assert_eq!(search.map(drop).map_err(reason), not);
    assert_eq!(
        untrusted.client.members().await.map(drop).map_err(reason),
        not
    );
    assert_eq!(untrusted.publish(&untrusted.record(None, 1)).await, not);
}

#[tokio::test]
async fn tickets_are_refused_with_their_reason() {
    let hub = TestHub::plain().await;
    let unknown = hub
        .unjoined_node(1)
        .client
        .join(TicketSecret::from_random([9; 16]))
        .await;
    assert_eq!(
        unknown.map(drop).map_err(reason),
        Err(RefusalReason::TicketUnknown)
    );
    let text = hub.hub.invite(1, Duration::ZERO).await.unwrap();
    let Ok(hailwire_wire::ticket::Ticket::Hub(ticket)) = text.parse() else {
        panic!()
    };
    let expired = hub.unjoined_node(1).client.join(ticket.secret).await;
    assert_eq!(
        expired.map(drop).map_err(reason),
        Err(RefusalReason::TicketExpired)
    );
    assert!(hub.hub.invite(0, Duration::from_secs(9)).await.is_err());
}

#[tokio::test]
async fn a_request_is_believed_only_as_it_was_signed() {
    let hub = TestHub::plain().await;
    let node = hub.member(1).await;
    let (id, url) = (hub.hub.id().to_string(), hub.hub.url().to_string());
    let members = SignedRequest {
        hub: &id,
        method: "GET",
        path: path::MEMBERS,
        body: b"",
    };
    let hub = &hub.hub;

    assert_eq!(
        refusal(hub, &members, None).await,
        (401, RefusalReason::Unsigned)
    );
    assert_eq!(
        refusal(hub, &members, Some("Hailwire AAAA")).await,
        (401, RefusalReason::Forged)
    );
    assert_eq!(
        refusal(hub, &members, Some("Hailwire !")).await,
        (400, RefusalReason::Malformed)
    );
    let for_search = permit(
        &SignedRequest {
            path: path::SEARCH,
            ..members
        },
        &node.key,
    );
    assert_eq!(
        refusal(hub, &members, Some(&for_search)).await,
        (401, RefusalReason::Forged)
    );
    let elsewhere = permit(
        &SignedRequest {
            hub: "https://other.example:443",
            ..members
        },
        &node.key,
    );
    assert_eq!(
        refusal(hub, &members, Some(&elsewhere)).await,
        (401, RefusalReason::Elsewhere)
    );
    let old = RequestPermit::new(&members, unix_now() - 120).sign(&node.key);
    assert_eq!(
        refusal(hub, &members, Some(&old)).await,
        (412, RefusalReason::Clock)
    );

    // The hub's URL is accepted where its key is not known.
    for name in [&id, &url] {
        let asked = SignedRequest {
            hub: name,
            ..members
        };
        let (status, _) = raw(
            hub,
            "GET",
            path::MEMBERS,
            Some(&permit(&asked, &node.key)),
            b"",
        )
        .await;
        assert_eq!(status, 200);
    }
}

#[tokio::test]
async fn junk_is_answered_with_a_reason() {
    let hub = TestHub::plain().await;
    let node = hub.member(1).await;
    let id = hub.hub.id().to_string();
    for (method, path, body, expected) in [
        (
            "GET",
            "/v1/absent",
            &b""[..],
            (404, RefusalReason::NoSuchPath),
        ),
        ("GET", "/", b"", (404, RefusalReason::NoSuchPath)),
        (
            "DELETE",
            path::RECORD,
            b"",
            (404, RefusalReason::NoSuchPath),
        ),
        ("POST", path::SEARCH, b"{", (400, RefusalReason::Malformed)),
        (
            "PUT",
            path::RECORD,
            b"{\"record\":\"!\"}",
            (400, RefusalReason::Malformed),
        ),
        (
            "POST",
            path::JOIN,
            b"{\"secret\":\"x\"}",
            (400, RefusalReason::Malformed),
        ),
        (
            "GET",
            "/v1/nodes/UPPER",
            b"",
            (400, RefusalReason::Malformed),
        ),
        (
            "GET",
            "/v1/members?after=x",
            b"",
            (400, RefusalReason::Malformed),
        ),
    ] {
        let asked = SignedRequest {
            hub: &id,
            method,
            path,
            body,
        };
        let refused = refusal(&hub.hub, &asked, Some(&permit(&asked, &node.key))).await;
        assert_eq!(refused, expected, "{method} {path}");
    }
    assert_eq!(raw(&hub.hub, "GET", "/ping", None, b"").await.0, 200);
    assert_eq!(
        raw(&hub.hub, "GET", "/generate_204", None, b"").await.0,
        204
    );
    assert_eq!(raw(&hub.hub, "GET", "/relay", None, b"").await.0, 400);
}

#[tokio::test]
async fn plain_http_off_loopback_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let config = HubConfig {
        tls: TlsMode::Plain,
        ..HubConfig::new(folder.path())
    };
    let error = Hub::start(config).await.unwrap_err();
    assert!(matches!(error, StartError::PlainOffLoopback(_)), "{error}");
    assert!(error.to_string().contains("loopback"));
}

#[tokio::test]
async fn a_folder_or_port_in_use_is_a_clear_error() {
    let hub = TestHub::plain().await;
    let again = Hub::start(config(hub.folder.path())).await.unwrap_err();
    assert!(matches!(again, StartError::Running(_)), "{again}");
    let other = tempfile::tempdir().unwrap();
    let mut config = config(other.path());
    config.listen = hub.hub.tcp_addr();
    let taken = Hub::start(config).await.unwrap_err();
    assert!(
        matches!(
            taken,
            StartError::Bind {
                protocol: "TCP",
                ..
            }
        ),
        "{taken}"
    );
}

#[tokio::test]
async fn a_join_body_never_shows_its_secret_in_debug_output() {
    let join = JoinHubRequest {
        secret: TicketSecret::from_random([0x5a; 16]),
    };
    assert!(!format!("{join:?}").contains("90"));
}
