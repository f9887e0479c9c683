"""What the subjects written in Python share: their command line, and the work of docs/reference/bench-subjects.md.

    PROGRAM serve [--listen IP] [--loop uvloop]
    PROGRAM load [ADDRESS] [--loop uvloop]
    PROGRAM load [ADDRESS] --in-flight N --seconds S

A server prints one line when it is ready, and ends when its standard input does. Without `--in-flight` a load generator
reads lines of work; with it, it does that work and prints one line. The only work is `rate`: echoes with so many under
way always. Each body begins with a number of its own, and each answer is compared with its message. No call has a task
of its own: as many tasks as there are calls in flight call again and again.
"""

import argparse
import asyncio
import itertools
import json
import os
import platform
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from importlib import metadata
from tempfile import TemporaryDirectory

# Seconds that each call may take.
DEADLINE = 10

# Bytes of the number in front of each body.
NUMBER = 8

SHARES = (0.0, 0.5, 0.9, 0.99, 0.999, 1.0)

Echo = Callable[[bytes], Awaitable[bytes]]


def main(
    serve: Callable[[str], AbstractAsyncContextManager[str]],
    connect: Callable[[str], AbstractAsyncContextManager[Echo]],
    *packages: str,
) -> None:
    """Runs one of the two programs. `serve` is told an IP address and gives the address of its server; `packages` are
    those whose versions a result names, or `NAME VERSION` of what is not installed.
    """
    options = command_line()
    run = asyncio.run
    if options.loop == "uvloop":
        import uvloop

        run, packages = uvloop.run, (*packages, "uvloop")
    try:
        if options.part == "serve":
            run(served(serve(options.listen)))
        else:
            run(loaded(connect(options.address), options, versions(packages)))
    except* Exception as failed:
        # Standard error's last line becomes the reason in a report.
        sys.exit(f"error: {reason(failed)}")


def command_line() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parts = parser.add_subparsers(dest="part", required=True)
    serve = parts.add_parser("serve")
    serve.add_argument("--listen", default="127.0.0.1", metavar="IP")
    load = parts.add_parser("load")
    load.add_argument("address", nargs="?", default="")
    load.add_argument("--in-flight", type=int)
    load.add_argument("--seconds", type=float, default=2.0)
    load.add_argument("--bytes", type=int, default=1024)
    for part in (serve, load):
        part.add_argument("--loop", choices=("asyncio", "uvloop"), default="asyncio")
    return parser.parse_args()


async def served(server: AbstractAsyncContextManager[str]) -> None:
    async with server as address:
        say({"ready": {"address": address}})
        while await asyncio.to_thread(sys.stdin.readline):
            pass


async def loaded(connection: AbstractAsyncContextManager[Echo], options: argparse.Namespace, versions: str) -> None:
    async with connection as echo:
        if options.in_flight:
            say(await rate(echo, options.in_flight, options.seconds, options.bytes))
            return
        say({"ready": {"versions": versions}})
        while line := await asyncio.to_thread(sys.stdin.readline):
            ((work, asked),) = json.loads(line).items()
            if work != "rate":
                say({"failed": f"this subject does no {work}"})
                continue
            try:
                say(await rate(echo, asked["in_flight"], asked["seconds"], asked["bytes"]))
            except* Exception as failed:
                say({"failed": reason(failed)})


async def rate(echo: Echo, in_flight: int, seconds: float, size: int) -> dict:
    """Echoes with so many under way always, until the time is over and the last has its answer."""
    clock = time.perf_counter_ns
    times: list[int] = []
    rest, numbers = os.urandom(size - NUMBER), itertools.count()
    begun = clock()
    until = begun + int(seconds * 1e9)

    async def caller() -> None:
        while (sent := clock()) < until:
            body = next(numbers).to_bytes(NUMBER, "big") + rest
            answer = await echo(body)
            took = clock() - sent
            if answer != body:
                raise RuntimeError("an echo differs from its message")
            times.append(took)

    async with asyncio.TaskGroup() as callers:
        for _ in range(in_flight):
            callers.create_task(caller())
    took = (clock() - begun) / 1e9
    times.sort()
    count = len(times)

    def at(share: float) -> float:
        return times[min(count - 1, int(share * count))] / 1e3

    return {
        "figures": {
            "count": count,
            "seconds": took,
            "messages_per_s": count / took,
            "megabits_per_s": count * size * 8 / 1e6 / took,
            "p50_us": at(0.5),
            "p90_us": at(0.9),
            "p99_us": at(0.99),
            "max_us": at(1.0),
        },
        "distribution": [[share, at(share)] for share in SHARES],
    }


def reason(failed: BaseException) -> str:
    """The first error of a group, on one line."""
    while isinstance(failed, BaseExceptionGroup):
        failed = failed.exceptions[0]
    text = " ".join(str(failed).split())
    if type(failed) is RuntimeError:
        return text
    return f"{type(failed).__name__}: {text}" if text else type(failed).__name__


def versions(packages: tuple[str, ...]) -> str:
    named = [package if " " in package else f"{package} {metadata.version(package)}" for package in packages]
    return ", ".join([*named, f"Python {platform.python_version()}"])


def say(line: dict) -> None:
    print(json.dumps(line), flush=True)


@contextmanager
def socket_path():
    """Where a Unix socket can be, until this is left."""
    with TemporaryDirectory(prefix="hail-sdk-") as folder:
        yield os.path.join(folder, "echo.sock")


# Runs a program until standard input ends, and then ends it: so it is gone with its parent, however that ended.
KILL_WITH_PARENT = (
    'command -v "$1" >/dev/null || exit; "$@" </dev/null & child=$!; read -r _; kill -9 "$child" 2>/dev/null; wait'
)


@asynccontextmanager
async def nats_server(listen: str) -> AsyncIterator[str]:
    """A server of NATS of one's own; gives its URL."""
    program = os.environ.get("HAILWIRE_NATS_SERVER") or "nats-server"
    with TemporaryDirectory(prefix="hail-sdk-") as folder:
        words = [program, "--addr", listen, "--port", "-1", "--ports_file_dir", folder]
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", KILL_WITH_PARENT, "sh", *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            url = await nats_url(folder, process)
            if not url:
                raise RuntimeError("nats-server does not start: is it installed? (peers/install nats)")
            yield url
        finally:
            process.stdin.close()
            await process.wait()


async def nats_url(folder: str, process: asyncio.subprocess.Process) -> str:
    """What nats-server says in its file of ports, once it is ready; empty where it does not come up."""
    until = time.monotonic() + DEADLINE
    while process.returncode is None and time.monotonic() < until:
        for name in os.listdir(folder):
            try:
                with open(os.path.join(folder, name)) as file:
                    return json.load(file)["nats"][0]
            except ValueError:
                pass  # it is not written to its end
        await asyncio.sleep(0.01)
    return ""
