"""State that many share: a value for each key, which is the last message that is kept under the topic `state.KEY`.

Each node keeps what its own programs put; whoever reads merges what its node and the trusted peers keep, and of two
values of a key that which was put last counts.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from .admin import PublishReceipt
from .errors import HailError
from .protocol.keys import key_bytes
from .topics import Away, Settled, TopicMessage

if TYPE_CHECKING:
    from .client import Client

_PREFIX = "state."
MAX_KEYS = 262_144


@dataclass(frozen=True, slots=True)
class StateValue:
    """The value of a key."""

    key: str
    value: bytes
    type: str
    revision: int
    """Its number at the node that keeps it."""
    node: str | None
    """The key of the peer that keeps it; None for this machine."""
    publisher: str
    at_ms: int
    deleted: bool

    @property
    def text(self) -> str:
        """The value as text."""
        return self.value.decode()

    def json(self) -> Any:
        """The value as JSON."""
        return json.loads(self.value)


class State:
    """The part of a client that is about shared values."""

    async def state_put(
        self, key: str, value: object, *, type: str = "", if_revision: int | None = None
    ) -> PublishReceipt:
        """Puts a value; `last` of the receipt is its revision. With `if_revision` only where this machine's value has
        that one (0 for none), else HailError `aborted`.
        """
        return await cast("Client", self).publish(_PREFIX + key, value, type=type, if_kept=if_revision)

    async def state_delete(self, key: str, *, if_revision: int | None = None) -> PublishReceipt:
        """Deletes a value. Raises HailError."""
        return await cast("Client", self).publish(_PREFIX + key, deleted=True, if_kept=if_revision)

    async def state_get(self, key: str, *, patience: float = 3.0) -> StateValue | None:
        """The value of a key; None where there is none. Peers have `patience` seconds to say theirs. Raises
        HailError.
        """
        if "*" in key or ">" in key:
            raise HailError("invalid_argument", "a key has no wildcards; use state_values for a pattern")
        values = await self.state_values(key, patience=patience)
        return values[0] if values else None

    async def state_values(self, pattern: str, *, patience: float = 3.0) -> list[StateValue]:
        """The values of all keys that match, in the order of the keys. Raises HailError."""
        values: dict[str, StateValue] = {}
        async with aclosing(self._state_events(pattern, patience)) as events:
            async for event in events:
                if isinstance(event, Settled):
                    break
                if isinstance(event, StateValue):
                    values[event.key] = event
        return [value for _, value in sorted(values.items()) if not value.deleted]

    async def watch_state(self, pattern: str, *, patience: float = 3.0) -> AsyncIterator[StateValue | Away | Settled]:
        """The values that there are, then `Settled`, then each change; a peer that does not answer is `Away`. Raises
        HailError.
        """
        async for event in self._state_events(pattern, patience):
            yield event

    async def _state_events(self, pattern: str, patience: float) -> AsyncGenerator[StateValue | Away | Settled, None]:
        client = cast("Client", self)
        own = (await client.status())["id"]
        stamps: dict[str, tuple[int, bytes, int]] = {}
        async with client.replay(_PREFIX + pattern, start=1, settle=patience) as events:
            async for event in events:
                if isinstance(event, (Away, Settled)):
                    yield event
                elif isinstance(event, TopicMessage) and event.topic.startswith(_PREFIX):
                    key = event.topic[len(_PREFIX) :]
                    stamp = (event.at_ms, key_bytes(event.node or own), event.kept)
                    if stamp <= stamps.get(key, (-1, b"", 0)):
                        continue
                    if len(stamps) >= MAX_KEYS and key not in stamps:
                        raise HailError(
                            "resource_exhausted", f"more than {MAX_KEYS} keys match", hint="watch a narrower pattern"
                        )
                    stamps[key] = stamp
                    yield StateValue(
                        key, event.body, event.type, event.kept, event.node, event.publisher, event.at_ms, event.deleted
                    )
