"""How a connection begins, in JSON whatever comes after.

A host that opens a connection says a handshake, and the agent answers with its capabilities; an agent that opens one
registers, and is answered. Each message may carry the key ``x_hailwire``, in which two of Hailwire find each other
and which others ignore. Names of encodings that nobody has heard of are passed over.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from .codec import DecodeError, Encoding, as_list, decode_json, encode_json
from .decisions import VERSION
from .events import EventKind, Record

WINDOW: Final = 512 << 10
"""Bytes of one direction of a request's body that may be on their way."""


@dataclass(slots=True, frozen=True)
class AgentLimits:
    """The limits of an agent."""

    max_body_size: int = 10 << 20
    """Bytes of a body; larger ones are not shown to it."""
    max_concurrency: int = 100
    """Requests at once on a connection; 0 for any number."""
    preferred_chunk_size: int = 64 << 10
    """Bytes of a chunk of a body."""


@dataclass(slots=True, frozen=True)
class Features:
    """What an agent can do."""

    streaming_body: bool = False
    websocket: bool = False
    guardrails: bool = False
    config_push: bool = False
    metrics_export: bool = True
    concurrent_requests: int = 100
    cancellation: bool = True
    flow_control: bool = True
    health_reporting: bool = True


@dataclass(slots=True, frozen=True)
class Capabilities:
    """The identity, events, features and limits of an agent."""

    agent_id: str
    name: str
    version: str = ""
    events: frozenset[EventKind] = frozenset()
    features: Features = Features()
    limits: AgentLimits = AgentLimits()

    def to_wire(self) -> dict[str, object]:
        """As the handshake has them."""
        features, limits = self.features, self.limits
        return {
            "agent_id": self.agent_id,
            "name": self.name,
            "version": self.version,
            "supported_events": sorted(kind.number for kind in self.events),
            "features": {
                "streaming_body": features.streaming_body,
                "websocket": features.websocket,
                "guardrails": features.guardrails,
                "config_push": features.config_push,
                "metrics_export": features.metrics_export,
                "concurrent_requests": features.concurrent_requests,
                "cancellation": features.cancellation,
                "flow_control": features.flow_control,
                "health_reporting": features.health_reporting,
            },
            "limits": {
                "max_body_size": limits.max_body_size,
                "max_concurrency": limits.max_concurrency,
                "preferred_chunk_size": limits.preferred_chunk_size,
            },
        }


@dataclass(slots=True)
class Extensions:
    """What two of Hailwire agree on. The opener says what it can, the other side what of it is used."""

    raw_bodies: bool
    """Events have numbers, and chunks of bodies travel as they are."""
    window: int
    encodings: list[Encoding] = field(default_factory=list[Encoding])
    """On a connection that an agent opened: what it speaks, the best first; in the answer the one that is used."""

    def to_wire(self) -> dict[str, object]:
        """As a message has them."""
        said: dict[str, object] = {"raw_bodies": self.raw_bodies, "window": self.window}
        if self.encodings:
            said["encodings"] = [encoding.value for encoding in self.encodings]
        return said


@dataclass(slots=True)
class HandshakeRequest:
    """What a host says first."""

    supported_versions: list[int]
    proxy_id: str
    proxy_version: str
    config: object
    supported_encodings: list[Encoding]
    extensions: Extensions | None


@dataclass(slots=True)
class RegistrationResponse:
    """What a host answers to a registration."""

    success: bool
    error: str | None
    proxy_id: str
    proxy_version: str
    connection_id: str
    extensions: Extensions | None


def decode_handshake(payload: bytes) -> HandshakeRequest:
    """Reads what a host says first. Raises :class:`DecodeError`."""
    record = Record(decode_json(payload), ())
    versions = record.value("supported_versions")
    numbers = [version for version in as_list(versions) or [] if type(version) is int]
    if numbers != versions:
        raise DecodeError("expected a list of numbers, in supported_versions")
    return HandshakeRequest(
        numbers,
        record.text("proxy_id"),
        record.text("proxy_version"),
        record.value("config"),
        _encodings(record, "supported_encodings"),
        _extensions(record),
    )


def encode_handshake_response(
    capabilities: Capabilities,
    encoding: Encoding,
    extensions: Extensions | None,
    error: str | None = None,
) -> bytes:
    """What an agent answers to a handshake; with an error it refuses."""
    said: dict[str, object] = {
        "protocol_version": VERSION,
        "capabilities": capabilities.to_wire(),
        "success": error is None,
        "error": error,
        "encoding": encoding.value,
    }
    if extensions is not None:
        said["x_hailwire"] = extensions.to_wire()
    return encode_json(said)


def encode_registration(
    capabilities: Capabilities, token: str | None, metadata: object, extensions: Extensions | None
) -> bytes:
    """What an agent says first that opens a connection to its host."""
    said: dict[str, object] = {
        "protocol_version": VERSION,
        "agent_id": capabilities.agent_id,
        "capabilities": capabilities.to_wire(),
        "auth_token": token,
        "metadata": metadata,
    }
    if extensions is not None:
        said["x_hailwire"] = extensions.to_wire()
    return encode_json(said)


def decode_registration_response(payload: bytes) -> RegistrationResponse:
    """Reads what a host answers to a registration. Raises :class:`DecodeError`."""
    record = Record(decode_json(payload), ())
    return RegistrationResponse(
        record.flag("success"),
        record.optional_text("error"),
        record.optional_text("proxy_id") or "",
        record.optional_text("proxy_version") or "",
        record.optional_text("connection_id") or "",
        _extensions(record),
    )


def _extensions(record: Record) -> Extensions | None:
    said = record.value("x_hailwire")
    if said is None:
        return None
    ours = Record(said, ())
    raw_bodies = ours.value("raw_bodies") is not None and ours.flag("raw_bodies")
    return Extensions(raw_bodies, ours.optional_uint("window", 32) or 0, _encodings(ours, "encodings"))


def _encodings(record: Record, name: str) -> list[Encoding]:
    known = {encoding.value: encoding for encoding in Encoding}
    return [known[text] for text in record.texts(name) if text in known]
