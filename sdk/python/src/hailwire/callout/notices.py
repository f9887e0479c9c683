"""Notices: what an agent tells its host unasked, about its health, what it counted, and what it wants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal, TypeAlias

from .codec import Encoding, Float32, encode


class HealthState(IntEnum):
    """The health of an agent as a state."""

    HEALTHY = 1
    DEGRADED = 2
    """It takes everything, slower."""
    DRAINING = 3
    """It finishes what it has and takes nothing new."""
    UNHEALTHY = 4
    """It takes nothing."""


@dataclass(slots=True)
class Health:
    """The health of an agent."""

    state: HealthState
    message: str | None = None
    """For people."""
    in_flight: int | None = None
    """Requests in the agent."""
    drain_eta_ms: int | None = None
    """While it drains: milliseconds until it ends."""
    timeout_multiplier: float | None = None
    """While it is degraded: by how much deadlines should be stretched, 1 and more."""


@dataclass(slots=True)
class Flow:
    """Pauses the host or lets it go on."""

    action: Literal["pause", "resume"]
    correlation_id: str | None = None
    """The request that is meant; ``None`` for all."""


@dataclass(slots=True)
class Metric:
    """A counter or gauge."""

    name: str
    """As Prometheus has names."""
    value: float
    help: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(slots=True)
class HistogramBucket:
    """How much was at most so large."""

    le: float | Literal["+Inf"]
    count: int


@dataclass(slots=True)
class HistogramMetric:
    """A distribution."""

    name: str
    sum: float
    count: int
    buckets: Sequence[HistogramBucket]
    """Cumulative, in ascending order."""
    help: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(slots=True)
class MetricsReport:
    """What an agent counted since its last report."""

    agent_id: str
    timestamp_ms: int
    """Milliseconds since 1970."""
    interval_ms: int
    counters: Sequence[Metric] = ()
    """What only grows: whole numbers."""
    gauges: Sequence[Metric] = ()
    histograms: Sequence[HistogramMetric] = ()


@dataclass(slots=True)
class RequestReload:
    """The agent wants its configuration anew."""


@dataclass(slots=True)
class RuleDefinition:
    """A rule of an agent."""

    id: str
    priority: int
    definition: object
    enabled: bool = True
    description: str | None = None
    tags: Sequence[str] = ()


@dataclass(slots=True)
class RuleUpdate:
    """The agent wants other rules."""

    rule_set: str
    rules: Sequence[RuleDefinition]
    remove_rules: Sequence[str] = ()


@dataclass(slots=True)
class ListUpdate:
    """The agent wants another list."""

    list_id: str
    add: Sequence[str] = ()
    remove: Sequence[str] = ()


@dataclass(slots=True)
class RestartRequired:
    """The agent wants to be started anew."""

    reason: str
    grace_period_ms: int


@dataclass(slots=True)
class ConfigError:
    """The agent's configuration is wrong."""

    error: str
    field: str | None = None


ConfigUpdateKind: TypeAlias = RequestReload | RuleUpdate | ListUpdate | RestartRequired | ConfigError


@dataclass(slots=True)
class ConfigUpdate:
    """A change of configuration that an agent asks its host for."""

    update_type: ConfigUpdateKind
    request_id: str
    timestamp_ms: int


Notice: TypeAlias = Health | MetricsReport | ConfigUpdate | Flow


def encode_notice(notice: Notice, encoding: Encoding) -> tuple[int, bytes]:
    """The type and the payload of a notice's frame.

    Raises :class:`ValueError` or :class:`TypeError` for what has no form.
    """
    match notice:
        case Health():
            return 0x30, encode(_health(notice), encoding)
        case MetricsReport():
            return 0x31, encode(_metrics(notice), encoding)
        case ConfigUpdate():
            return 0x32, encode(
                {
                    "update_type": _update_kind(notice.update_type),
                    "request_id": notice.request_id,
                    "timestamp_ms": notice.timestamp_ms,
                },
                encoding,
            )
        case Flow():
            flow: dict[str, object] = {"action": 1 if notice.action == "pause" else 2}
            if notice.correlation_id is not None:
                flow["correlation_id"] = notice.correlation_id
            return 0x33, encode(flow, encoding)


def _health(health: Health) -> dict[str, object]:
    said: dict[str, object] = {"state": int(health.state)}
    if health.message is not None:
        said["message"] = health.message
    if health.in_flight is not None:
        said["in_flight"] = health.in_flight
    if health.drain_eta_ms is not None:
        said["drain_eta_ms"] = health.drain_eta_ms
    if health.timeout_multiplier is not None:
        said["timeout_multiplier"] = Float32(health.timeout_multiplier)
    return said


def _metrics(report: MetricsReport) -> dict[str, object]:
    return {
        "agent_id": report.agent_id,
        "timestamp_ms": report.timestamp_ms,
        "interval_ms": report.interval_ms,
        "counters": [_metric(one, int(one.value)) for one in report.counters],
        "gauges": [_metric(one, float(one.value)) for one in report.gauges],
        "histograms": [
            {
                "name": one.name,
                "help": one.help,
                "labels": dict(one.labels),
                "sum": float(one.sum),
                "count": one.count,
                "buckets": [{"le": bucket.le, "count": bucket.count} for bucket in one.buckets],
            }
            for one in report.histograms
        ],
    }


def _metric(one: Metric, value: float) -> dict[str, object]:
    return {"name": one.name, "help": one.help, "labels": dict(one.labels), "value": value}


def _update_kind(kind: ConfigUpdateKind) -> dict[str, object]:
    match kind:
        case RequestReload():
            return {"type": "request_reload"}
        case RuleUpdate():
            return {
                "type": "rule_update",
                "rule_set": kind.rule_set,
                "rules": [
                    {
                        "id": rule.id,
                        "priority": rule.priority,
                        "definition": rule.definition,
                        "enabled": rule.enabled,
                        "description": rule.description,
                        "tags": list(rule.tags),
                    }
                    for rule in kind.rules
                ],
                "remove_rules": list(kind.remove_rules),
            }
        case ListUpdate():
            return {
                "type": "list_update",
                "list_id": kind.list_id,
                "add": list(kind.add),
                "remove": list(kind.remove),
            }
        case RestartRequired():
            return {
                "type": "restart_required",
                "reason": kind.reason,
                "grace_period_ms": kind.grace_period_ms,
            }
        case ConfigError():
            return {"type": "config_error", "error": kind.error, "field": kind.field}
