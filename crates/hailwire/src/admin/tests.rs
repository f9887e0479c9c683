//! The JSON that users read and that older and newer programs write: which fields there are, under which names.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;

/// A key, and how it is written.
fn key() -> (NodeId, String) {
    let id = NodeId::from_bytes([7; 32]);
    (id, id.to_string())
}

fn path() -> Value {
    json!({
        "kind": "direct", "remote": "198.18.0.1:443", "rtt_us": 7, "sent_packets": 8, "lost_packets": 1,
    })
}

fn agent() -> Value {
    json!({
        "name": "echo", "node": key().1, "node_name": "laptop", "local": true, "bare": "next",
        "description": "says it again", "tags": ["a"], "version": "1", "members": 2,
        "member_numbers": [4, 5], "in_flight": 3, "waiting": 2,
        "group": [{ "state": "healthy", "policy": "pinned", "in_flight": 3 }],
    })
}

fn tunnel() -> Value {
    json!({
        "peer": key().1, "name": "laptop", "carrier": "quic", "carries": true, "why": "it is quick",
        "path": path(), "ping_us": 9, "connections": 2, "sent_bytes": 1, "received_bytes": 2, "sent_packets": 3,
        "lost_packets": 4, "in_flight": 5, "up_ms": 6,
    })
}

fn hub() -> Value {
    json!({
        "url": "https://hub.example:443", "connected": true, "name": "desk", "error": "no",
        "answer_us": 1, "heard_s": 2,
    })
}

fn trusted() -> Value {
    json!({
        "id": key().1, "alias": "laptop", "named_by": "user", "allow": ["echo"], "offer": ["grep"],
        "via": "ticket", "since": 1, "connected": true,
    })
}

fn status() -> Value {
    json!({
        "id": key().1, "name": "desk", "version": "0.1.0", "pid": 1, "uptime_ms": 2, "rss_bytes": 3,
        "data_dir": "/data", "sockets": ["a"], "tcp_sockets": ["b"], "addresses": ["c"],
        "public_addresses": ["e"], "calls_from_peers": 8,
        "tcp_addresses": ["d"], "tunnels": [tunnel()], "agents": [agent()], "hubs": [hub()],
        "calls": 4, "reused": 5, "made": 6, "panics": 7,
        "paths": {
            "connections": 1, "direct": 2, "relayed_first": 3, "punched": 4, "direct_us": 5, "relayed_bytes": 6,
        },
        "port_mapping": {
            "enabled": true, "asked": true, "protocols": ["pcp"], "external": "9.9.9.1:7",
        },
    })
}

/// Whether a value with every field is read and written as it is, and which of its fields a sender may leave out.
fn optional_fields<T: Serialize + DeserializeOwned>(full: &Value) -> Vec<String> {
    let read: T = serde_json::from_value(full.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), *full);
    let fields = full.as_object().unwrap();
    let may_lack = |name: &&String| {
        let mut less = fields.clone();
        less.remove(*name);
        serde_json::from_value::<T>(less.into()).is_ok()
    };
    fields.keys().filter(may_lack).cloned().collect()
}

#[test]
fn each_answer_has_its_fields_and_a_node_of_before_may_lack_the_later_ones() {
    let (ping, resolved) = (
        json!({
            "id": key().1, "name": "laptop", "rtt_us": 1, "path": path(), "carrier": "h2",
            "why": "asked for", "reused": true, "connect_us": 2, "trusted": true,
        }),
        json!({
            "node": key().1, "name": "laptop", "local": true, "reused": true, "resolve_us": 1,
            "connect_us": 2, "path": path(), "carrier": "h2",
        }),
    );
    let pending = json!({
        "id": key().1, "claims": "laptop", "from": "198.18.0.1:7", "at": 1, "attempts": 2,
    });
    let invited = json!({ "ticket": "t", "expires_at": 1, "uses": 2, "allow": ["echo"] });
    let joined_node = json!({ "kind": "node", "id": key().1, "name": "laptop", "allow": ["echo"] });
    let joined_hub = json!({
        "kind": "hub", "url": "https://hub.example:443", "name": "desk", "error": "no",
        "members": true, "trusted": true,
    });
    let none: [&str; 0] = [];
    assert_eq!(
        optional_fields::<NodeStatus>(&status()),
        [
            "calls_from_peers",
            "made",
            "panics",
            "paths",
            "port_mapping",
            "public_addresses",
            "reused",
            "tcp_addresses",
            "tcp_sockets"
        ]
    );
    assert_eq!(
        optional_fields::<TunnelStatus>(&tunnel()),
        ["carries", "connections", "ping_us", "why"]
    );
    assert_eq!(
        optional_fields::<PathStatus>(&path()),
        ["lost_packets", "sent_packets"]
    );
    assert_eq!(
        optional_fields::<AgentRow>(&agent()),
        [
            "bare",
            "description",
            "group",
            "in_flight",
            "member_numbers",
            "members",
            "tags",
            "version",
            "waiting"
        ]
    );
    assert_eq!(
        optional_fields::<HubState>(&hub()),
        ["answer_us", "error", "heard_s"]
    );
    assert_eq!(
        optional_fields::<TrustedPeer>(&trusted()),
        ["named_by", "offer"]
    );
    assert_eq!(optional_fields::<UntrustedPeer>(&pending), none);
    assert_eq!(optional_fields::<PingAnswer>(&ping), ["why"]);
    assert_eq!(optional_fields::<ResolveAnswer>(&resolved), ["carrier"]);
    assert_eq!(optional_fields::<InviteAnswer>(&invited), ["allow"]);
    assert_eq!(optional_fields::<JoinAnswer>(&joined_node), ["allow"]);
    assert_eq!(
        optional_fields::<JoinAnswer>(&joined_hub),
        ["error", "members", "trusted"]
    );
}

#[test]
fn each_request_may_lack_what_nobody_has_to_say() {
    let agents = json!({ "tags": ["a"], "words": ["b"], "local_only": true });
    let invite = json!({ "uses": 1, "expires_s": 2, "allow": ["a"], "offer": ["b"] });
    let join = json!({ "ticket": "t", "alias": "a", "allow": ["b"], "offer": ["c"], "yes": true });
    let add = json!({
        "id": key().1, "alias": "a", "allow": ["b"], "offer": ["c"], "addresses": ["d"], "tcp": ["e"],
    });
    let ping = json!({ "who": "laptop", "carrier": "h2" });
    let (hub, candidate) = ("https://hub.example:443", "AAAAAAAAAAAAAAAAAAAAAA==");
    let lease = json!({
        "hub": hub, "name": "nightly", "candidate": candidate, "ttl_ms": 1000, "token": 1,
    });
    let given_back = json!({ "hub": hub, "name": "nightly", "candidate": candidate, "token": 1 });
    let none: [&str; 0] = [];
    assert_eq!(
        optional_fields::<AgentsQuery>(&agents),
        ["local_only", "tags", "words"]
    );
    assert_eq!(
        optional_fields::<InviteRequest>(&invite),
        ["allow", "offer"]
    );
    assert_eq!(
        optional_fields::<JoinRequest>(&join),
        ["alias", "allow", "offer", "yes"]
    );
    assert_eq!(
        optional_fields::<TrustAdd>(&add),
        ["addresses", "alias", "allow", "offer", "tcp"]
    );
    assert_eq!(optional_fields::<PingRequest>(&ping), ["carrier", "who"]);
    assert_eq!(optional_fields::<ResolveRequest>(&ping), ["carrier"]);
    assert_eq!(optional_fields::<LeaseAsk>(&lease), ["hub", "token"]);
    assert_eq!(optional_fields::<LeaseGiveBack>(&given_back), ["hub"]);
    assert_eq!(
        optional_fields::<LeaseQuery>(&json!({ "hub": hub })),
        ["hub"]
    );
    assert_eq!(
        optional_fields::<PeerSelector>(&json!({ "who": "laptop" })),
        none
    );
    assert_eq!(
        optional_fields::<ShutdownRequest>(&json!({ "grace_ms": 1 })),
        none
    );
}

#[test]
fn what_a_node_of_before_does_not_say_has_a_meaning() {
    let lacking = |mut full: Value, name: &str| {
        full.as_object_mut().unwrap().remove(name).unwrap();
        full
    };
    let tunnel: TunnelStatus = serde_json::from_value(lacking(tunnel(), "connections")).unwrap();
    assert_eq!(tunnel.connections, 1, "it had one and no word for it");
    let agent: AgentRow = serde_json::from_value(lacking(agent(), "bare")).unwrap();
    assert_eq!(agent.bare, BareCalls::Never);
    // What a later one says besides is skipped.
    let mut later = path();
    later["hops"] = json!(3);
    assert!(serde_json::from_value::<PathStatus>(later).is_ok());
    let named = [BareCalls::First, BareCalls::Next, BareCalls::Never];
    let named = serde_json::to_value(named).unwrap();
    assert_eq!(named, json!(["first", "next", "never"]));
}

#[test]
fn a_hub_that_was_joined_without_trouble_says_nothing_of_errors() {
    let joined = JoinAnswer::Hub {
        url: "https://hub.example:443".to_owned(),
        name: String::new(),
        error: String::new(),
        members: false,
        trusted: false,
    };
    let expected = json!({
        "kind": "hub", "url": "https://hub.example:443", "name": "", "members": false, "trusted": false,
    });
    assert_eq!(serde_json::to_value(joined).unwrap(), expected);
}

#[test]
fn the_reference_names_every_field_of_its_sections() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/json.md");
    let page = std::fs::read_to_string(page).unwrap();
    for (section, value) in [
        ("Status", status()),
        ("Tunnel", tunnel()),
        ("Agent", agent()),
        ("Trusted", trusted()),
    ] {
        let heading = format!("\n## {section}\n");
        let (_, text) = page.split_once(&heading).unwrap();
        let text = text.split("\n## ").next().unwrap();
        for name in value.as_object().unwrap().keys() {
            let named = text.contains(&format!("`{name}`"));
            assert!(named, "`{name}` is not in {section}");
        }
    }
}
