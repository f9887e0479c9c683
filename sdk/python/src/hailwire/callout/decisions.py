"""Decisions: what an agent answers to an event.

Only what says something is written. Everything but the version, the verdict and the id of the request has a default
in every peer, so that the answer which nearly all are, an allow, has some 70 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from .codec import Encoding, Float32, encode, encode_base64, encode_json, pack
from .events import BodyChunk

VERSION: Final = 2
"""The version of the protocol."""


@dataclass(slots=True, frozen=True)
class Allow:
    """It passes."""


@dataclass(slots=True, frozen=True)
class Block:
    """The host answers for itself."""

    status: int
    body: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(slots=True, frozen=True)
class Redirect:
    """The client is sent elsewhere."""

    url: str
    status: int


@dataclass(slots=True, frozen=True)
class Challenge:
    """The client has to prove something."""

    challenge_type: str
    """Such as ``captcha``."""
    params: Mapping[str, str] = field(default_factory=dict[str, str])


Verdict: TypeAlias = Allow | Block | Redirect | Challenge
"""What becomes of a request."""


@dataclass(slots=True, frozen=True)
class HeaderOp:
    """A change to the headers; see :func:`set_header`, :func:`add_header`, :func:`remove_header`."""

    op: Literal["set", "add", "remove"]
    name: str
    value: str = ""


def set_header(name: str, value: str) -> HeaderOp:
    """Replaces all values of a name."""
    return HeaderOp("set", name, value)


def add_header(name: str, value: str) -> HeaderOp:
    """Adds a value to a name."""
    return HeaderOp("add", name, value)


def remove_header(name: str) -> HeaderOp:
    """Takes a name out."""
    return HeaderOp("remove", name)


@dataclass(slots=True, frozen=True)
class BodyMutation:
    """What becomes of a chunk of a body."""

    index: int
    """The chunk."""
    data: bytes | None
    """``None`` lets it pass, empty drops it, anything else takes its place."""


@dataclass(slots=True, frozen=True)
class WebSocketDecision:
    """What becomes of a WebSocket frame: it passes, is dropped, or ends its connection (RFC 6455, 7.4)."""

    action: Literal["allow", "drop", "close"]
    code: int = 1008
    reason: str = ""


@dataclass(slots=True)
class Audit:
    """For records."""

    tags: Sequence[str] = ()
    """Such as ``sqli``."""
    rule_ids: Sequence[str] = ()
    """The rules that matched."""
    confidence: float | None = None
    """How sure the agent is, 0 to 1."""
    reason_codes: Sequence[str] = ()
    """Why, for programs."""
    custom: Mapping[str, object] = field(default_factory=dict[str, object])
    """Anything else that JSON can say. The name ``correlation_id`` is the protocol's."""

    def says_nothing(self) -> bool:
        """Whether it is as if it were not there."""
        return not (self.tags or self.rule_ids or self.reason_codes or self.custom or self.confidence is not None)


@dataclass(slots=True)
class Decision:
    """An agent's answer. Its default lets everything pass."""

    verdict: Verdict = Allow()
    request_headers: Sequence[HeaderOp] = ()
    """Changes to the request's headers."""
    response_headers: Sequence[HeaderOp] = ()
    """Changes to the response's headers."""
    routing_metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    """For the host's routing."""
    audit: Audit = field(default_factory=Audit)
    """For records."""
    needs_more: bool = False
    """The verdict is provisional: more of the body is wanted."""
    request_body: BodyMutation | None = None
    """What becomes of the chunk of the request's body that this answers; see :func:`replace`."""
    response_body: BodyMutation | None = None
    """What becomes of the chunk of the response's body that this answers."""
    websocket: WebSocketDecision | None = None
    """What becomes of the WebSocket frame that this answers."""

    def says_nothing(self) -> bool:
        """Whether it allows and says no more."""
        return not (
            not isinstance(self.verdict, Allow)
            or self.request_headers
            or self.response_headers
            or self.routing_metadata
            or self.needs_more
            or self.request_body is not None
            or self.response_body is not None
            or self.websocket is not None
            or not self.audit.says_nothing()
        )


def allow(
    *,
    request_headers: Sequence[HeaderOp] = (),
    response_headers: Sequence[HeaderOp] = (),
    routing_metadata: Mapping[str, str] | None = None,
    audit: Audit | None = None,
    needs_more: bool = False,
) -> Decision:
    """Lets it pass."""
    return Decision(
        request_headers=request_headers,
        response_headers=response_headers,
        routing_metadata=routing_metadata or {},
        audit=audit or Audit(),
        needs_more=needs_more,
    )


def block(
    status: int = 403,
    body: str | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    audit: Audit | None = None,
) -> Decision:
    """The host answers for itself, with a status and perhaps a body and headers."""
    return Decision(Block(status, body, headers or {}), audit=audit or Audit())


def redirect(url: str, status: int = 302, *, audit: Audit | None = None) -> Decision:
    """Sends the client elsewhere."""
    return Decision(Redirect(url, status), audit=audit or Audit())


def challenge(challenge_type: str, params: Mapping[str, str] | None = None, *, audit: Audit | None = None) -> Decision:
    """Has the client prove something."""
    return Decision(Challenge(challenge_type, params or {}), audit=audit or Audit())


def replace(chunk: BodyChunk, data: bytes, *, audit: Audit | None = None, needs_more: bool = False) -> Decision:
    """Puts other bytes in the place of a chunk of a body; no bytes drop it."""
    mutation = BodyMutation(chunk.index, data)
    decision = Decision(audit=audit or Audit(), needs_more=needs_more)
    if chunk.of_response:
        decision.response_body = mutation
    else:
        decision.request_body = mutation
    return decision


def drop_frame(*, audit: Audit | None = None) -> Decision:
    """Lets a WebSocket frame not pass."""
    return Decision(websocket=WebSocketDecision("drop"), audit=audit or Audit())


def close_websocket(code: int = 1008, reason: str = "", *, audit: Audit | None = None) -> Decision:
    """Ends a WebSocket connection."""
    return Decision(websocket=WebSocketDecision("close", code, reason), audit=audit or Audit())


@dataclass(slots=True, frozen=True)
class TextSpan:
    """A stretch of a text, in bytes of its UTF-8."""

    start: int
    end: int


@dataclass(slots=True)
class Finding:
    """One thing that an agent found in a text."""

    category: str
    """Such as ``prompt_injection``, ``ssn`` or ``credit_card``."""
    description: str
    """For people."""
    severity: Literal["low", "medium", "high", "critical"] = "medium"
    confidence: float | None = None
    span: TextSpan | None = None


@dataclass(slots=True)
class Findings:
    """What an agent found in a text for or from a language model."""

    detected: bool
    confidence: float = 0.0
    """How sure the agent is, 0 to 1."""
    findings: Sequence[Finding] = ()
    redacted: str | None = None
    """The text without what was found. With it the text goes on; without it, it does not pass."""

    def answer(self) -> Decision:
        """The answer that says so: an allow, and the host decides by what was found."""
        found: dict[str, object] = {
            "detected": self.detected,
            "confidence": self.confidence,
            "detections": [_finding(one) for one in self.findings],
        }
        if self.redacted is not None:
            found["redacted_content"] = self.redacted
        return allow(routing_metadata={"guardrail_response": encode_json(found).decode()})


def _finding(one: Finding) -> dict[str, object]:
    said: dict[str, object] = {
        "category": one.category,
        "description": one.description,
        "severity": one.severity,
    }
    if one.confidence is not None:
        said["confidence"] = one.confidence
    if one.span is not None:
        said["span"] = {"start": one.span.start, "end": one.span.end}
    return said


def encode_decision(correlation_id: str, decision: Decision, encoding: Encoding) -> bytes:
    """The payload of an answer's frame.

    Raises :class:`ValueError` or :class:`TypeError` for what has no form on the wire.
    """
    if decision.says_nothing():
        if encoding is Encoding.JSON:
            return _ALLOW_JSON + encode_json(correlation_id) + b"}}}"
        return _ALLOW_PACKED + pack(correlation_id)
    said: dict[str, object] = {"version": VERSION, "decision": _verdict(decision.verdict)}
    if decision.request_headers:
        said["request_headers"] = [_header_op(op) for op in decision.request_headers]
    if decision.response_headers:
        said["response_headers"] = [_header_op(op) for op in decision.response_headers]
    if decision.routing_metadata:
        said["routing_metadata"] = dict(decision.routing_metadata)
    said["audit"] = _audit(correlation_id, decision.audit)
    if decision.needs_more:
        said["needs_more"] = True
    if decision.request_body is not None:
        said["request_body_mutation"] = _mutation(decision.request_body)
    if decision.response_body is not None:
        said["response_body_mutation"] = _mutation(decision.response_body)
    if decision.websocket is not None:
        said["websocket_decision"] = _websocket(decision.websocket)
    return encode(said, encoding)


_ALLOW_JSON: Final = b'{"version":2,"decision":"allow","audit":{"custom":{"correlation_id":'
_ALLOW_PACKED: Final = b"\x83\xa7version\x02\xa8decision\xa5allow\xa5audit\x81\xa6custom\x81\xaecorrelation_id"


def _verdict(verdict: Verdict) -> object:
    match verdict:
        case Allow():
            return "allow"
        case Block(status, body, headers):
            return {"block": {"status": status, "body": body, "headers": dict(headers) or None}}
        case Redirect(url, status):
            return {"redirect": {"url": url, "status": status}}
        case Challenge(challenge_type, params):
            return {"challenge": {"challenge_type": challenge_type, "params": dict(params)}}


def _header_op(op: HeaderOp) -> object:
    if op.op == "remove":
        return {"remove": {"name": op.name}}
    return {op.op: {"name": op.name, "value": op.value}}


def _audit(correlation_id: str, audit: Audit) -> object:
    said: dict[str, object] = {}
    if audit.tags:
        said["tags"] = list(audit.tags)
    if audit.rule_ids:
        said["rule_ids"] = list(audit.rule_ids)
    if audit.reason_codes:
        said["reason_codes"] = list(audit.reason_codes)
    if audit.confidence is not None:
        said["confidence"] = Float32(audit.confidence)
    # The host finds what this answers by the id, which nothing of the agent's may hide.
    others = {name: value for name, value in audit.custom.items() if name != "correlation_id"}
    said["custom"] = {"correlation_id": correlation_id, **others}
    return said


def _mutation(mutation: BodyMutation) -> object:
    data = None if mutation.data is None else encode_base64(mutation.data)
    return {"data": data, "chunk_index": mutation.index}


def _websocket(decision: WebSocketDecision) -> object:
    if decision.action == "close":
        return {"close": {"code": decision.code, "reason": decision.reason}}
    return decision.action
