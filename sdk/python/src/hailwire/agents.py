"""Agents that this program offers: how they are described, and what answers their calls.

A handler is a function, a coroutine function, or a generator of either kind. What it takes is said by the type hint of
its parameter: the body as bytes, text, or a value made of JSON; or the `Request`, which has the body chunk by chunk and
all that the caller said. What it returns is the answer; a generator's values are chunks of it. Functions that are no
coroutines run in a thread, so that they may block.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from .convert import schema_of
from .errors import HailError
from .protocol import headers
from .protocol.limits import MAX_HEADER
from .requests import REQUEST_LIMIT, Request, Response, read_value

T = TypeVar("T")
Handler = Callable[..., Any]
"""A function that answers calls."""


class HandlerShape:
    """How a handler is called, found out once: what it takes, and what kind of function it is."""

    __slots__ = ("call", "is_async", "is_generator", "is_plain", "takes", "wants_request")

    def __init__(self, handler: Handler) -> None:
        self.call = handler
        inner = inspect.unwrap(handler)
        if not inspect.isroutine(inner) and callable(inner):
            inner = inner.__call__
        self.is_async = inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner)
        self.is_generator = inspect.isasyncgenfunction(inner) or inspect.isgeneratorfunction(inner)
        parameters = [
            one
            for one in inspect.signature(handler).parameters.values()
            if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
        ]
        try:
            hints = get_type_hints(inner)
        except (NameError, TypeError):
            hints = {}
        if len(parameters) > 2:
            raise TypeError("a handler takes the body, the request, or both")
        taken = [hints.get(one.name, Request if one.name == "request" else bytes) for one in parameters]
        self.wants_request = [at for at, hint in enumerate(taken) if hint is Request]
        bodies = [hint for hint in taken if hint is not Request]
        if len(bodies) > 1 or len(self.wants_request) > 1:
            raise TypeError("a handler takes the body, the request, or both")
        self.takes: Any = bodies[0] if bodies else None
        # Nearly every handler of a busy agent takes bytes and awaits something; it is called without a detour.
        self.is_plain = self.is_async and not self.is_generator and self.takes is bytes and not self.wants_request

    async def arguments(self, request: Request) -> tuple[Any, ...]:
        """What the handler is called with. Raises HailError for a body that does not fit."""
        if self.takes is None:
            return (request,) if self.wants_request else ()
        body: Any
        if is_chunks(self.takes):
            body = request
        else:
            body = await request._stream.whole_body(REQUEST_LIMIT)
            if self.takes is not bytes:
                body = read_value(self.takes, body)
        if not self.wants_request:
            return (body,)
        return (request, body) if self.wants_request[0] == 0 else (body, request)

    def schema(self, name: str) -> dict[str, Any]:
        """The method in the schema of its agent."""
        method: dict[str, Any] = {"name": name}
        if text := inspect.getdoc(self.call):
            method["description"] = text.partition("\n\n")[0].replace("\n", " ")
        if self.takes is not None and not is_chunks(self.takes) and (schema := schema_of(self.takes)) is not None:
            method["inputSchema"] = schema
        try:
            returned = get_type_hints(inspect.unwrap(self.call)).get("return")
        except (NameError, TypeError):
            returned = None
        if self.is_generator and get_args(returned):
            returned = get_args(returned)[0]
        if returned not in (None, Response) and (schema := schema_of(returned)) is not None:
            method["outputSchema"] = schema
        return method


def is_chunks(hint: Any) -> bool:
    """Whether a hint asks for the body chunk by chunk."""
    origin = get_origin(hint) or hint
    return isinstance(origin, type) and issubclass(AsyncIterator, origin) and origin is not object


class Agent:
    """An agent that is offered: a name, how it is described, and what answers its calls.

    `Agent("calc")` with `@calc.method` functions, each of which answers the method of its name; or the one that
    `@hail.agent("shout")` makes of a function, which answers every method.
    """

    def __init__(
        self,
        name: str,
        *,
        description: str = "",
        tags: Iterable[str] = (),
        version: str = "",
        max_concurrency: int = 0,
        max_waiting: int | None = None,
        priority: int = 0,
        overflow: int = 0,
        pinned: float = 0.0,
        slow_start: float = 0.0,
        schema: dict[str, Any] | None = None,
    ) -> None:
        if not headers.is_name(name):
            raise HailError(
                "invalid_argument",
                f"`{name}` is no agent's name",
                hint="1 to 64 characters of a-z 0-9 . _ -, with a letter or digit at both ends",
            )
        self.name = name
        self.register: dict[str, Any] = {
            "name": name,
            "description": description,
            "tags": list(tags),
            "version": version,
            "max_concurrency": max_concurrency,
            "priority": priority,
            "overflow": overflow,
            "pinned_ms": milliseconds(pinned),
            "slow_start_ms": milliseconds(slow_start),
            "max_waiting": max_waiting,
        }
        self.schema = schema
        self.methods: dict[str, HandlerShape] = {}
        self.any_method: HandlerShape | None = None

    def method(self, handler: Handler | None = None, *, name: str | None = None) -> Any:
        """Has a function answer the method of its name, or of another: `@calc.method`,
        `@calc.method(name="add-up")`.
        """
        if handler is None:
            return functools.partial(self.method, name=name)
        self.methods[handler.__name__ if name is None else name] = HandlerShape(handler)
        return handler

    def every_method(self, handler: Handler) -> Handler:
        """Has a function answer every method that has none of its own."""
        self.any_method = HandlerShape(handler)
        return handler

    def handler_of(self, method: str) -> HandlerShape:
        """What answers a method. Raises HailError, `unimplemented`."""
        shape = self.methods.get(method) or self.any_method
        if shape is None:
            known = ", ".join(f"`{name}`" for name in sorted(self.methods))
            raise HailError(
                "unimplemented",
                f"`{self.name}` has no method `{method}`",
                hint=f"its methods are {known}" if known else "",
            )
        return shape

    def encoded(self) -> bytes:
        """The header with which it registers."""
        fields = dict(self.register)
        schema = self.schema
        if schema is None:
            methods = [shape.schema(name) for name, shape in sorted(self.methods.items())]
            if not methods and self.any_method is not None:
                methods = [self.any_method.schema("")]
            schema = {"methods": methods} if any(len(method) > 1 or method["name"] for method in methods) else None
        if schema is not None:
            fields["schema"] = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
        data = headers.encode("register", fields)
        if len(data) > MAX_HEADER:
            raise HailError(
                "invalid_argument", f"what `{self.name}` says of itself has {len(data)} bytes, more than {MAX_HEADER}"
            )
        return data


def milliseconds(seconds: float) -> int:
    """Seconds as milliseconds, at least one where there is any time at all."""
    return max(round(seconds * 1000), 1) if seconds > 0 else 0


async def in_thread(call: Callable[..., T], *arguments: Any) -> T:
    """Runs a function that may block, in a thread of the loop's pool, with this task's context."""
    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(None, functools.partial(context.run, call, *arguments))


def chunks_of(shape: HandlerShape, arguments: tuple[Any, ...]) -> Any:
    """The values of a generator handler."""
    values = shape.call(*arguments)
    return values if shape.is_async else thread_chunks(values)


async def thread_chunks(values: Iterator[T]) -> AsyncIterator[T]:
    """The values of an iterator that may block, each made in a thread."""
    following: Callable[[], tuple[T] | tuple[()]] = functools.partial(_next_of, values)
    while taken := await in_thread(following):
        yield taken[0]


def _next_of(values: Iterator[T]) -> tuple[T] | tuple[()]:
    """The next value, if there is one: a thread cannot raise StopIteration into a task."""
    for value in values:
        return (value,)
    return ()
