"""What a node answers about itself, as it stands in JSON (docs/reference/json.md). Members that later releases add are
there, too.
"""

from __future__ import annotations

from typing import Any, TypedDict


class AgentRow(TypedDict):
    """An agent that this machine can call."""

    name: str
    node: str
    node_name: str
    local: bool
    bare: str
    description: str
    tags: list[str]
    version: str
    members: int
    member_numbers: list[int]
    in_flight: int
    waiting: int
    group: list[dict[str, Any]]


class NodeStatus(TypedDict):
    """How a node is."""

    id: str
    name: str
    version: str
    pid: int
    uptime_ms: int
    rss_bytes: int
    data_dir: str
    sockets: list[str]
    tcp_sockets: list[str]
    addresses: list[str]
    public_addresses: list[str]
    tcp_addresses: list[str]
    tunnels: list[dict[str, Any]]
    agents: list[AgentRow]
    hubs: list[dict[str, Any]]
    calls: int
    calls_from_peers: int
    reused: int
    made: int
    paths: dict[str, Any]
    port_mapping: dict[str, Any]
    panics: int


class AgentDescription(TypedDict):
    """What an agent says of itself."""

    name: str
    node: str
    node_name: str
    description: str
    tags: list[str]
    version: str
    members: int
    methods: list[dict[str, Any]]


class SendReceipt(TypedDict):
    """A durable message that the node has on disk."""

    id: str
    state: str
    known: bool


class TaskProgress(TypedDict):
    """How far an agent is with a message."""

    at_ms: int
    done: int
    total: int
    text: str


class MessageRow(TypedDict):
    """A durable message, or a task."""

    id: str
    sent: bool
    call: bool
    to: str
    # `from` is a word of the language; it is there.
    node: str | None
    state: str
    task: str
    attempts: int
    bytes: int
    stored_at_ms: int
    held_at_ms: int | None
    delivered_at_ms: int | None
    started_at_ms: int | None
    withdrawn_at_ms: int | None
    ended_at_ms: int | None
    kept_until_ms: int | None
    progress: TaskProgress | None
    expires_at_ms: int
    code: str
    reason: str


class MessageDetail(MessageRow):
    """A durable message with what it holds: `body`, `answer` and `partial` have `text`, or `base64`."""

    method: str
    content_type: str
    headers: list[list[str]]
    body: dict[str, str]
    answer_type: str
    answer: dict[str, str]
    partial: dict[str, str]
    partial_bytes: int


class PublishReceipt(TypedDict):
    """What became of messages that were published."""

    published: int
    programs: int
    peers: int
    kept: int
    last: int
