"""Hailwire for Python: call and serve agents by name, on this machine and on every machine that you trust.

```python
import asyncio, hailwire

async def main():
    async with hailwire.connect() as hail:
        answer = await hail.call("word-count@laptop", "one two three", timeout=2)
        print(answer.text)

asyncio.run(main())
```
"""

from .admin import (
    AgentDescription,
    AgentRow,
    MessageDetail,
    MessageRow,
    NodeStatus,
    PublishReceipt,
    SendReceipt,
    TaskProgress,
)
from .agents import Agent
from .answers import Answer
from .calls import AnswerStream, Call, RawStream
from .client import Client, ServeHandle, connect
from .connection import VERSION as __version__
from .errors import HailError
from .messages import content
from .protocol.keys import key_bytes, key_text
from .protocol.status import Code, Status
from .requests import Caller, Request, Response
from .state import StateValue
from .topics import Away, Missed, Publisher, Reached, Settled, Subscription, TopicEvent, TopicMessage

__all__ = [
    "Agent",
    "AgentDescription",
    "AgentRow",
    "Answer",
    "AnswerStream",
    "Away",
    "Call",
    "Caller",
    "Client",
    "Code",
    "HailError",
    "MessageDetail",
    "MessageRow",
    "Missed",
    "NodeStatus",
    "PublishReceipt",
    "Publisher",
    "RawStream",
    "Reached",
    "Request",
    "Response",
    "SendReceipt",
    "ServeHandle",
    "Settled",
    "StateValue",
    "Status",
    "Subscription",
    "TaskProgress",
    "TopicEvent",
    "TopicMessage",
    "__version__",
    "connect",
    "content",
    "key_bytes",
    "key_text",
]
