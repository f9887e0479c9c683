"""A graph of agents in plain asyncio: a planner, two researchers at once, and a writer, each of which may be on another
machine.

python examples/python/graph.py "tea"

The same shape fits a node of LangGraph or of any other framework: a node that is an agent is a function of the state
that awaits `hail.call`. The time for the whole graph is given once; each call has what is left of it.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import hailwire

State = dict[str, Any]
Node = Callable[[State], Awaitable[State]]

hail = hailwire.connect()


@hail.agent("plan")
async def plan(state: dict[str, Any]) -> dict[str, Any]:
    return {"questions": [f"where does {state['topic']} come from", f"how is {state['topic']} made"]}


@hail.agent("research")
async def research(question: str) -> str:
    return f"Nobody has looked up {question}."


@hail.agent("write")
async def write(state: dict[str, Any]) -> str:
    return f"On {state['topic']}. " + " ".join(state["notes"])


def agent_node(name: str, key: str | None = None) -> Node:
    """A node of the graph that is an agent: it gets the state, and what it answers is merged into it, or put under a
    key.
    """

    async def node(state: State) -> State:
        answer = await hail.call(name, state)
        return {key: answer.text} if key else answer.json()

    return node


async def research_all(state: State) -> State:
    """A node that asks one agent for many things at once."""
    answers = await asyncio.gather(*(hail.call("research", question) for question in state["questions"]))
    return {"notes": [answer.text for answer in answers]}


GRAPH: list[Node] = [agent_node("plan"), research_all, agent_node("write", "article")]


@hail.agent("article", description="writes an article about a topic")
async def article(topic: str) -> str:
    state: State = {"topic": topic}
    for node in GRAPH:
        state |= await node(state)
    return str(state["article"])


async def main(topic: str) -> None:
    async with hail:
        print((await hail.call("article", topic, timeout=10)).text)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
