"""Golden vectors: what the published crate wrote is read as meant, and what is written means the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from test_callout_support import vectors

from hailwire import callout
from hailwire.callout.codec import Encoding, decode, decode_json, encode_base64
from hailwire.callout.decisions import encode_decision
from hailwire.callout.events import decode_event
from hailwire.callout.frames import frame, numbered_answer_frame
from hailwire.callout.handshake import (
    decode_handshake,
    decode_registration_response,
    encode_handshake_response,
    encode_registration,
)
from hailwire.callout.notices import encode_notice
from hailwire.callout.protocol import AgentProtocol, Cancelled, ProtocolOptions
from hailwire.callout.salvage import event_id

EVENTS = {
    callout.EventKind.REQUEST_HEADERS: "request_headers",
    callout.EventKind.REQUEST_BODY: "request_body_chunk",
    callout.EventKind.RESPONSE_HEADERS: "response_headers",
    callout.EventKind.RESPONSE_BODY: "response_body_chunk",
    callout.EventKind.REQUEST_COMPLETE: "request_complete",
    callout.EventKind.WEBSOCKET_FRAME: "websocket_frame",
    callout.EventKind.GUARDRAIL: "guardrail_inspect",
    callout.EventKind.CONFIGURE: "configure",
}

ANSWERS_DIGEST = "38b010ad8bf41e7eb39016090ad416103a37cb14e8bb40564d940eaff5b2c364"
"""Of every answer below, as both languages write it; `test/callout-vectors.test.ts` has the same."""


def forms(vector: dict[str, Any]) -> Iterator[tuple[bytes, Encoding]]:
    """Every form in which a message was written."""
    if "json" in vector:
        yield vector["json"].encode(), Encoding.JSON
    for key in ("msgpack", "msgpack_positional"):
        if key in vector:
            yield bytes.fromhex(vector[key]), Encoding.MESSAGE_PACK


def test_events_mean_what_the_published_crate_says() -> None:
    count = 0
    for kind, message in EVENTS.items():
        for vector in vectors(message):
            assert vector["code"] == kind
            for payload, encoding in forms(vector):
                event = decode_event(kind, payload, encoding)
                assert without_null(describe(event)) == without_null(vector["means"]), vector["name"]
                assert event_id(payload, encoding) in (event.correlation_id, None)
                count += 1
    assert count > 40


def test_the_request_of_an_event_is_found_in_every_map() -> None:
    for kind, message in EVENTS.items():
        for vector in vectors(message):
            payload, encoding = next(forms(vector))
            event = decode_event(kind, payload, encoding)
            assert event_id(payload, encoding) == event.correlation_id


def test_answers_are_written_as_they_are_meant_and_alike_in_both_languages() -> None:
    digest = hashlib.sha256()
    for vector in vectors("response"):
        means = vector["means"]
        decision = decision_of(means["answer"])
        for encoding in Encoding:
            written = encode_decision(means["id"], decision, encoding)
            digest.update(written)
            assert meaning_of(decode(written, encoding)) == (means["id"], means["answer"]), vector["name"]
            digest.update(numbered_answer_frame(7, decision, encoding))
    assert digest.hexdigest() == ANSWERS_DIGEST


def test_an_allow_says_no_more_than_it_has_to() -> None:
    written = encode_decision("…", callout.allow(), Encoding.JSON)
    expected = '{"version":2,"decision":"allow","audit":{"custom":{"correlation_id":"…"}}}'
    assert written == expected.encode()
    assert numbered_answer_frame(1, callout.allow(), Encoding.JSON) == frame(0x51, (1).to_bytes(8, "big"))


def test_handshakes_are_read_and_answered() -> None:
    for vector in vectors("handshake"):
        hello, means = decode_handshake(vector["json"].encode()), vector["means"]
        assert hello.supported_versions == means["supported_versions"]
        assert (hello.proxy_id, hello.proxy_version) == (means["proxy_id"], means["proxy_version"])
        assert hello.config == means["config"]
        assert [one.value for one in hello.supported_encodings] == means["supported_encodings"]
        assert hello.extensions is None
    for vector in vectors("handshake_response"):
        means = vector["means"]
        said = encode_handshake_response(
            capabilities_of(means["capabilities"]), Encoding(means["encoding"]), None, means["error"]
        )
        if means["success"]:
            assert decode_json(said) == means
    for vector in vectors("registration"):
        means = vector["means"]
        said = encode_registration(capabilities_of(means["capabilities"]), means["auth_token"], means["metadata"], None)
        assert decode_json(said) == means
    for vector in vectors("registration_response"):
        answer, means = decode_registration_response(vector["json"].encode()), vector["means"]
        assert answer.success == means["success"] and answer.error == means["error"]
        assert answer.proxy_id == means["proxy_id"] and answer.proxy_version == means["proxy_version"]
        assert answer.connection_id == means["connection_id"]


def opened() -> AgentProtocol:
    protocol = AgentProtocol(callout.Capabilities("a", "a"), ProtocolOptions())
    hello = b'{"supported_versions":[2],"proxy_id":"p","proxy_version":"1"}'
    protocol.receive(frame(0x01, hello))
    protocol.take_output()
    return protocol


def test_cancels_and_pings_are_read() -> None:
    reasons = [
        "client_disconnect",
        "timeout",
        "blocked_by_agent",
        "upstream_error",
        "proxy_shutdown",
        "manual",
    ]
    for vector in vectors("cancel"):
        means = vector["means"]
        (came,) = opened().receive(frame(vector["code"], vector["json"].encode()))
        assert came == Cancelled(means["correlation_id"], reasons[means["reason"]])
    unknown = frame(0x40, b'{"correlation_id":"c-1","reason":99}')
    assert opened().receive(unknown) == [Cancelled("c-1", "manual")]
    for vector in vectors("ping"):
        protocol = opened()
        assert protocol.receive(frame(vector["code"], vector["json"].encode())) == []
        assert protocol.take_output() == frame(0x42, vector["json"].encode())


@pytest.mark.parametrize("encoding", list(Encoding))
def test_notices_are_written_as_hosts_parse_them(encoding: Encoding) -> None:
    for vector in vectors("metrics"):
        means = vector["means"]
        report = callout.MetricsReport(
            means["agent_id"],
            means["timestamp_ms"],
            means["interval_ms"],
            [metric_of(one) for one in means["counters"]],
            [metric_of(one) for one in means["gauges"]],
            [
                callout.HistogramMetric(
                    one["name"],
                    one["sum"],
                    one["count"],
                    [callout.HistogramBucket(**bucket) for bucket in one["buckets"]],
                    one.get("help"),
                    one["labels"],
                )
                for one in means["histograms"]
            ],
        )
        code, said = encode_notice(report, encoding)
        assert code == vector["code"]
        assert without_null(decode(said, encoding)) == without_null(means)
    for vector in vectors("config_update"):
        means = vector["means"]
        update = callout.ConfigUpdate(update_kind_of(means["update_type"]), means["request_id"], means["timestamp_ms"])
        code, said = encode_notice(update, encoding)
        assert code == vector["code"]
        assert decode(said, encoding) == means
    for vector in vectors("health"):
        state = vector["means"]["state"]
        name = state["status"] if isinstance(state, dict) else "unhealthy"
        code, said = encode_notice(callout.Health(callout.HealthState[name.upper()]), encoding)
        assert code == vector["code"]
        number = {"healthy": 1, "degraded": 2, "draining": 3, "unhealthy": 4}[name]
        assert decode(said, encoding) == {"state": number}
        if not isinstance(state, dict):
            assert decode(said, encoding) == vector["means"]
    for vector in vectors("flow"):
        means = vector["means"]
        action = means["action"]["type"] if isinstance(means["action"], dict) else "pause"
        if action == "update_capacity":
            continue  # hosts take it as a resume, and no agent of ours writes it
        flow = callout.Flow("resume" if action == "resume" else "pause", means.get("correlation_id"))
        code, said = encode_notice(flow, encoding)
        assert code == vector["code"]
        expected = {"action": {"pause": 1, "resume": 2}[action], "correlation_id": means.get("correlation_id")}
        assert without_null(decode(said, encoding)) == without_null(expected)


def test_all_that_health_can_say_is_written() -> None:
    health = callout.Health(callout.HealthState.DEGRADED, "busy", 3, 100, 1.5)
    _, said = encode_notice(health, Encoding.JSON)
    assert json.loads(said) == {
        "state": 2,
        "message": "busy",
        "in_flight": 3,
        "drain_eta_ms": 100,
        "timeout_multiplier": 1.5,
    }


def describe(event: callout.Event) -> dict[str, Any]:
    match event:
        case callout.RequestHeaders():
            metadata = {name: getattr(event.metadata, name) for name in callout.Metadata.__slots__}
            return {
                "metadata": metadata,
                "method": event.method,
                "uri": event.uri,
                "headers": event.headers.to_dict(),
            }
        case callout.ResponseHeaders():
            return {
                "correlation_id": event.correlation_id,
                "status": event.status,
                "headers": event.headers.to_dict(),
            }
        case callout.BodyChunk():
            return {
                "correlation_id": event.correlation_id,
                "data": event.data.hex(),
                "is_last": event.is_last,
                "total_size": event.total_size,
                "chunk_index": event.index,
                "bytes_sent" if event.of_response else "bytes_received": event.transferred,
            }
        case callout.WebSocketFrame():
            return {
                "correlation_id": event.correlation_id,
                "opcode": event.opcode.value,
                "data": event.data.hex(),
                "client_to_server": event.client_to_server,
                "frame_index": event.index,
                "fin": event.fin,
                "route_id": event.route_id,
                "client_ip": event.client_ip,
            }
        case _:
            return {name: getattr(event, name) for name in type(event).__slots__}


def decision_of(answer: dict[str, Any]) -> callout.Decision:
    """The decision that a vector means."""
    match answer["decision"]:
        case {"block": {"status": status, "body": body, "headers": headers}}:
            decision = callout.block(status, body, headers=headers)
        case {"redirect": {"url": url, "status": status}}:
            decision = callout.redirect(url, status)
        case {"challenge": {"challenge_type": kind, "params": params}}:
            decision = callout.challenge(kind, params)
        case _:
            decision = callout.allow()
    decision.request_headers = [op_of(op) for op in answer["request_headers"]]
    decision.response_headers = [op_of(op) for op in answer["response_headers"]]
    decision.routing_metadata = answer["routing_metadata"]
    decision.audit = callout.Audit(**answer["audit"])
    decision.needs_more = answer["needs_more"]
    decision.request_body = mutation_of(answer["request_body_mutation"])
    decision.response_body = mutation_of(answer["response_body_mutation"])
    match answer["websocket_decision"]:
        case "allow" | "drop" as action:
            decision.websocket = callout.WebSocketDecision(action)
        case {"close": {"code": code, "reason": reason}}:
            decision.websocket = callout.WebSocketDecision("close", code, reason)
    return decision


def op_of(op: dict[str, Any]) -> callout.HeaderOp:
    match op:
        case {"set": {"name": name, "value": value}}:
            return callout.set_header(name, value)
        case {"add": {"name": name, "value": value}}:
            return callout.add_header(name, value)
    return callout.remove_header(op["remove"]["name"])


def mutation_of(mutation: dict[str, Any] | None) -> callout.BodyMutation | None:
    if mutation is None:
        return None
    data = None if mutation["data"] is None else bytes.fromhex(mutation["data"])
    return callout.BodyMutation(mutation["chunk_index"], data)


def meaning_of(answer: object) -> tuple[str, dict[str, Any]]:
    """A written answer with the defaults of what was not written, as vectors say it."""
    assert isinstance(answer, dict)
    audit = {"tags": [], "rule_ids": [], "confidence": None, "reason_codes": [], "custom": {}, **answer["audit"]}
    custom = dict(audit["custom"])
    correlation_id = custom.pop("correlation_id")
    found: dict[str, Any] = {
        "request_headers": [],
        "response_headers": [],
        "routing_metadata": {},
        "needs_more": False,
        "request_body_mutation": None,
        "response_body_mutation": None,
        "websocket_decision": None,
        **answer,
        "audit": {**audit, "custom": custom},
    }
    for name in ("request_body_mutation", "response_body_mutation"):
        if found[name] is not None and found[name]["data"] is not None:
            data = callout_data(found[name]["data"])
            found[name] = {**found[name], "data": data.hex()}
    return correlation_id, found


def callout_data(text: str) -> bytes:
    import base64

    data = base64.b64decode(text, validate=True)
    assert encode_base64(data) == text
    return data


def capabilities_of(said: dict[str, Any]) -> callout.Capabilities:
    return callout.Capabilities(
        said["agent_id"],
        said["name"],
        said["version"],
        frozenset(kind for kind in callout.EventKind if kind.number in said["supported_events"]),
        callout.Features(**said["features"]),
        callout.AgentLimits(**said["limits"]),
    )


def metric_of(one: dict[str, Any]) -> callout.Metric:
    return callout.Metric(one["name"], one["value"], one.get("help"), one["labels"])


def update_kind_of(said: dict[str, Any]) -> Any:
    fields = {name: value for name, value in said.items() if name != "type"}
    match said["type"]:
        case "request_reload":
            return callout.RequestReload()
        case "rule_update":
            fields["rules"] = [callout.RuleDefinition(**rule) for rule in fields["rules"]]
            return callout.RuleUpdate(**fields)
        case "list_update":
            return callout.ListUpdate(**fields)
        case "restart_required":
            return callout.RestartRequired(**fields)
    return callout.ConfigError(**fields)


def without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_null(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_null(item) for item in value]
    return value
