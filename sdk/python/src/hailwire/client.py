"""The client: how a program calls agents and offers its own, on the node of this machine.

A client attaches once and stays attached: where the node goes, what is under way ends with `unavailable`, new calls
fail at once with it, and the client attaches again by itself and registers its agents anew.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import signal
import sys
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from .admin import AgentDescription, AgentRow, NodeStatus
from .agents import Agent, Handler
from .attempts import RetryBudget
from .bodies import DEFAULT_LIMIT
from .call_stream import CallHeader
from .calls import Call, RawStream, prepared
from .connection import GREETING_PATIENCE, Connection
from .errors import HailError
from .messages import Messages
from .paths import default_data_dir, open_socket
from .protocol import frames
from .protocol.mux import MuxStream
from .protocol.status import Code, Status
from .registration import Registration
from .served_stream import ServedStream
from .state import State
from .topics import Topics

log = logging.getLogger("hailwire")

DRAIN_PATIENCE = 10.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_REGISTER_PAUSE = 1.0


class ServeHandle:
    """An agent on offer."""

    def __init__(self, client: Client, agent: Agent) -> None:
        self._client = client
        self._agent = agent
        self._registration: Registration | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """The agent's name."""
        return self._agent.name

    async def drain(self) -> None:
        """Takes the agent back in order, and waits for the calls that it has: no new one comes, and nobody who calls
        finds it gone who would not have anyway. It takes as long as the longest call; bound it with `asyncio.timeout`.
        """
        self._stop_keeping()
        registration = self._registration
        if registration is not None:
            registration.leave()
            await asyncio.shield(registration.ended)
        self._client._forget(self)

    def close(self) -> None:
        """Takes the agent back at once; calls that run may finish."""
        self._stop_keeping()
        if self._registration is not None:
            self._registration.drop()
        self._client._forget(self)

    async def replace(self, agent: Agent) -> None:
        """Offers another description, bound or handler under the same name, in place of this. No call finds the agent
        gone meanwhile; calls that run finish with the old one. Raises HailError; the old offer stands then.
        """
        if agent.name != self.name:
            raise HailError("invalid_argument", f"`{agent.name}` cannot take the place of `{self.name}`")
        registration = Registration(self._client.connection(), agent)
        registration.start()
        await asyncio.shield(registration.accepted)
        old, self._registration, self._agent = self._registration, registration, agent
        self._client.agents[agent.name] = agent
        self._stop_keeping()
        self._keep()
        if old is not None:
            old.drop()

    async def _register(self) -> None:
        registration = Registration(self._client.connection(), self._agent)
        registration.start()
        try:
            await asyncio.shield(registration.accepted)
        except asyncio.CancelledError:
            registration.drop()
            raise
        self._registration = registration
        self._keep()

    def _keep(self) -> None:
        self._keeper = asyncio.get_running_loop().create_task(self._kept())

    async def _kept(self) -> None:
        """Registers again where the node has ended the registration and is there still, and after it has come back."""
        while True:
            if self._registration is not None:
                why = await asyncio.shield(self._registration.ended)
                self._registration = None
                log.info("the registration of `%s` has ended: %s", self.name, why)
            connection = await self._client._attached()
            registration = Registration(connection, self._agent)
            registration.start()
            try:
                await asyncio.shield(registration.accepted)
                self._registration = registration
            except HailError as error:
                if connection.ended is None:
                    log.warning("`%s` is not registered: %s", self.name, error)
                    await asyncio.sleep(_REGISTER_PAUSE)

    def _stop_keeping(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            self._keeper = None


class Client(Topics, State, Messages):
    """A program's handle on the node of its machine. Made by `connect`; `async with` attaches it, and detaches it at
    the end.
    """

    def __init__(self, data_dir: str | Path | None = None, *, name: str = "", reconnect: bool = True) -> None:
        folder = Path(data_dir) if data_dir is not None else default_data_dir()
        if folder is None:
            raise HailError("failed_precondition", "no data folder is known", hint="set HAIL_DATA, or pass data_dir")
        self.data_dir = folder.absolute()
        """The data folder of the node."""
        self.name = name
        self.agents: dict[str, Agent] = {}
        """The agents that are offered, by their names."""
        self.tasks: set[asyncio.Task[None]] = set()
        """Handlers that run."""
        self.retry_budget = RetryBudget()
        self._reconnect = reconnect
        self._connection: Connection | None = None
        self._attached_again: asyncio.Event | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._serving: dict[str, ServeHandle] = {}
        self._declared: list[Agent] = []
        self._closed = False

    # --- attaching

    async def attach(self) -> None:
        """Attaches to the node, and registers the agents that were declared. Nothing happens if it is attached.

        Raises HailError: `unavailable` where no node runs, `permission_denied` where its socket may be somebody else's,
        `failed_precondition` where it speaks no version in common.
        """
        if self._supervisor is not None:
            return
        self._closed = False
        self._attached_again = asyncio.Event()
        await self._connect()
        self._supervisor = asyncio.get_running_loop().create_task(self._supervise())
        try:
            for agent in self._declared:
                await self._offer(agent)
        except BaseException:
            await self.close()
            raise

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            socket = open_socket(self.data_dir)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            what = f"no node is running with the data folder {self.data_dir}"
            raise HailError(
                "unavailable", what, hint="start one with `hail up`, or set HAIL_DATA to its folder"
            ) from error
        except OSError as error:
            code = "permission_denied" if isinstance(error, PermissionError) else "unavailable"
            raise HailError(code, f"the local socket {self.data_dir}/run/hail.sock cannot be used: {error}") from error
        connection = Connection(self, loop)
        try:
            await loop.create_unix_connection(lambda: connection, sock=socket)
            await asyncio.wait_for(asyncio.shield(connection.greeted), GREETING_PATIENCE)
        except asyncio.TimeoutError:
            why = Status(Code.DEADLINE_EXCEEDED, "the node has not greeted in time")
            connection.shut(why)
            raise HailError.of(why) from None
        except BaseException:
            connection.detach()
            raise
        self._connection = connection
        assert self._attached_again is not None
        self._attached_again.set()

    async def _supervise(self) -> None:
        """Attaches again whenever the node has gone."""
        assert self._attached_again is not None
        while self._connection is not None:
            why = await asyncio.shield(self._connection.lost)
            log.info("the node is away: %s", why)
            if not self._reconnect:
                return
            pause = _FIRST_PAUSE
            while True:
                try:
                    await self._connect()
                    break
                except HailError as error:
                    log.debug("not attached again: %s", error)
                await asyncio.sleep(pause * (0.5 + random.random() / 2))
                pause = min(pause * 2, _LONGEST_PAUSE)

    async def _attached(self) -> Connection:
        """The connection, once there is one."""
        assert self._attached_again is not None
        await self._attached_again.wait()
        assert self._connection is not None
        return self._connection

    def handle_lost(self, connection: Connection) -> None:
        """The connection is over: whoever waits for one waits for the next."""
        if connection is self._connection and self._attached_again is not None:
            self._attached_again.clear()

    def connection(self) -> Connection:
        """The connection. Raises HailError where there is none now."""
        connection = self._connection
        if connection is None:
            raise HailError(
                "failed_precondition", "this client is not attached", hint="use `async with hailwire.connect() as hail`"
            )
        if connection.ended is not None or connection.going_away is not None:
            connection.check_open()
        return connection

    async def close(self) -> None:
        """Detaches: agents are taken back at once, calls under way end with `unavailable`, handlers are cancelled.
        Nothing happens twice.
        """
        self._closed = True
        if self._supervisor is not None:
            self._supervisor.cancel()
            self._supervisor = None
        for handle in list(self._serving.values()):
            handle._stop_keeping()
        self._serving.clear()
        self.agents.clear()
        if self._connection is not None:
            self._connection.detach()
            self._connection = None
        if self.tasks:
            await asyncio.wait(list(self.tasks), timeout=1.0)

    async def drain(self) -> None:
        """Takes all agents back in order, and waits for the calls that they have."""
        await asyncio.gather(*(handle.drain() for handle in list(self._serving.values())), return_exceptions=True)
        if self.tasks:
            await asyncio.wait(list(self.tasks))

    async def closed(self) -> HailError:
        """Waits until the node is gone; why."""
        connection = self._connection
        return (
            HailError.of(await asyncio.shield(connection.lost))
            if connection
            else HailError("unavailable", "this client is not attached")
        )

    async def __aenter__(self) -> Client:
        await self.attach()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __await__(self) -> Generator[Any, Any, Client]:
        yield from self.attach().__await__()
        return self

    # --- calling

    def call(
        self,
        to: str,
        body: object = None,
        *,
        timeout: float | None = None,
        limit: int = DEFAULT_LIMIT,
        retries: int = 0,
        hedge_after: float | None = None,
        **header: Any,
    ) -> Call:
        """Prepares a call to `agent` or `agent@node`: `await` it for the whole answer, or iterate it for chunks as they
        come.

        `agent` alone is found on this machine first, then at trusted peers. The body is bytes, text, chunks of either
        from an iterator (synchronous or not), or a value that is sent as JSON. `timeout` is in seconds and holds for
        the whole answer, at both ends; a call that a handler makes has no more time than is left of the call that it
        serves. An awaited answer has at most `limit` bytes, 64 MiB by default.

        Fields of the header, all optional: `method`, `type` (media type of the body), `headers` (pairs of the
        application's own), `priority` (0 low, 1 medium, 2 high, 3 critical), `idempotency_key`, `affinity` (calls with
        equal keys go to the same member of a group), `member`, `carrier` (`quic`, `h2`, `ws`), `caller` (an agent's
        name), `traceparent`, `tracestate`.

        With an idempotency key the call is made again up to `retries` times (10 at most) where it ended before its
        answer began with a retryable error, and a second time beside the first where its answer has not begun after
        `hedge_after` seconds.

        Raises HailError with the status with which the call ended. Cancelling the task that awaits it cancels the call,
        and its handler.
        """
        described, given = prepared(to, body, header)
        return Call(self, frames.CALL, described, given, timeout, limit, retries, hedge_after)

    async def send(self, to: str, body: object = None, *, timeout: float | None = None, **header: Any) -> None:
        """Sends a one-way message of at most 16 MiB; returns once the agent has taken it. Raises HailError."""
        described, given = prepared(to, body, header)
        await Call(self, frames.SEND, described, given, timeout, DEFAULT_LIMIT, 0, None)

    def stream(self, to: str, *, timeout: float | None = None, **header: Any) -> RawStream:
        """Prepares a raw stream: bytes both ways at once. `async with` opens it, once the agent has accepted."""
        return RawStream(Call(self, frames.STREAM, CallHeader(to, **header), None, timeout, DEFAULT_LIMIT, 0, None))

    # --- serving

    def agent(self, name: str, **described: Any) -> Callable[[Handler], Handler]:
        """Has a function answer every call of an agent: `@hail.agent("shout", max_concurrency=8)`. It takes what
        `Agent` takes.

        Before the client is attached this declares the agent, which is registered when it attaches; afterwards use
        `serve`.
        """

        def offered(handler: Handler) -> Handler:
            agent = Agent(name, **described)
            agent.every_method(handler)
            self.declare(agent)
            return handler

        return offered

    def declare(self, agent: Agent) -> None:
        """Has an agent registered when the client attaches."""
        if self._supervisor is not None:
            raise RuntimeError("the client is attached: use `await hail.serve(…)`")
        self._declared.append(agent)

    async def serve(self, agent: Agent | str, handler: Handler | None = None, **described: Any) -> ServeHandle:
        """Offers an agent for as long as this client is attached, or until the handle takes it back; returns once the
        node has accepted it.

        Several offers of one name, of many programs, form a group. Raises HailError: `already_exists` where this client
        serves the name, and `invalid_argument` or `resource_exhausted` where the node refuses.
        """
        if isinstance(agent, str):
            agent = Agent(agent, **described)
        if handler is not None:
            agent.every_method(handler)
        return await self._offer(agent)

    async def _offer(self, agent: Agent) -> ServeHandle:
        if agent.name in self.agents:
            raise HailError(
                "already_exists",
                f"this program serves `{agent.name}` already",
                hint="connect a second client to serve a second member of the group",
            )
        handle = ServeHandle(self, agent)
        # Before the node is asked: its first call may come with its answer.
        self.agents[agent.name] = agent
        try:
            await handle._register()
        except BaseException:
            self.agents.pop(agent.name, None)
            raise
        self._serving[agent.name] = handle
        return handle

    def _forget(self, handle: ServeHandle) -> None:
        if self._serving.get(handle.name) is handle:
            del self._serving[handle.name]
            self.agents.pop(handle.name, None)

    def accept_stream(self, connection: Connection, priority: int) -> MuxStream:
        """The stream that the node has opened."""
        return ServedStream(connection, priority)

    async def serve_forever(self, *, announce: bool = False) -> None:
        """Serves the declared agents until SIGINT or SIGTERM comes, then takes them back in order: calls under way have
        up to 10 s to end. `announce` says on stderr what is served.
        """
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        signals = (signal.SIGINT, signal.SIGTERM)
        for one in signals:
            loop.add_signal_handler(one, stop.set)
        try:
            await self.attach()
            if announce and self._serving:
                names = ", ".join(sorted(self._serving))
                print(f"serving {names}   (Ctrl-C to stop)", file=sys.stderr, flush=True)
            await stop.wait()
            for one in signals:
                # A second one ends it at once.
                loop.remove_signal_handler(one)
            try:
                await asyncio.wait_for(self.drain(), DRAIN_PATIENCE)
            except asyncio.TimeoutError:
                log.warning("calls that were under way are given up")
        finally:
            for one in signals:
                loop.remove_signal_handler(one)
            await self.close()

    def run(self) -> None:
        """Runs a program that is only an agent: attaches, serves what was declared, and ends in order on Ctrl-C or
        SIGTERM.

        Where there is no node, it says so on stderr and exits with 1.
        """
        try:
            asyncio.run(self.serve_forever(announce=True))
        except HailError as error:
            print(f"error: {error.code}: {error.message}", file=sys.stderr)
            if error.hint:
                print(f"hint: {error.hint}", file=sys.stderr)
            raise SystemExit(1) from None

    # --- the node

    async def admin(self, method: str, request: object = None, *, timeout: float | None = None) -> Any:
        """Asks the node itself: a method of docs/reference/json.md, and its JSON. Raises HailError."""
        body = json.dumps({} if request is None else request)
        answer = await self.call("node", body, method=method, timeout=timeout)
        return answer.json()

    async def status(self) -> NodeStatus:
        """How the node is. Raises HailError."""
        return cast("NodeStatus", await self.admin("status"))

    async def list_agents(
        self, *, tags: Iterable[str] = (), words: Iterable[str] = (), local_only: bool = False
    ) -> list[AgentRow]:
        """The agents that this machine can call, here and at peers; of those with all of these tags and words. Raises
        HailError.
        """
        query = {"tags": list(tags), "words": list(words), "local_only": local_only}
        return cast("list[AgentRow]", await self.admin("agents", query))

    async def describe(self, who: str) -> AgentDescription:
        """What an agent says of itself: its methods, and what they take. Raises HailError."""
        return cast("AgentDescription", await self.admin("describe", {"who": who}))


def connect(data_dir: str | Path | None = None, *, name: str = "", reconnect: bool = True) -> Client:
    """A client of the node of this machine: `async with hailwire.connect() as hail`, or `hail = await
    hailwire.connect()`.

    Nothing happens before it is entered, awaited or run. The node is that of `data_dir`, else of `$HAIL_DATA`, else of
    `$XDG_DATA_HOME/hailwire` or `~/.local/share/hailwire`. `name` is how the program would like to be known. Without
    `reconnect` it does not attach again when the node has gone.
    """
    return Client(data_dir, name=name, reconnect=reconnect)
