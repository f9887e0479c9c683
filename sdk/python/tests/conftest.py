"""Real nodes for tests: the program `hail` that HAIL_PROGRAM names, else the one that was built last."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def hail_program() -> str | None:
    """The program under test."""
    if program := os.environ.get("HAIL_PROGRAM"):
        return program
    built = [ROOT / "target" / profile / "hail" for profile in ("release", "demo", "debug")]
    there = [path for path in built if path.exists()]
    return str(max(there, key=lambda path: path.stat().st_mtime)) if there else None


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A test that cannot run says so where those in Rust do, which `./x test` counts."""
    note = os.environ.get("HAILWIRE_SKIPPED")
    if report.skipped and note:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        with Path(note).open("a") as file:
            file.write(f"sdk/python {report.nodeid}: {reason.removeprefix('Skipped: ')}\n")


class Node:
    """A node of its own, with an empty data folder."""

    def __init__(self, program: str) -> None:
        self.program = program
        self.data = Path(tempfile.mkdtemp(prefix="hailwire-py-"))
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """For programs that use this node."""
        return {**os.environ, "HAIL_DATA": str(self.data), "PYTHONPATH": str(ROOT / "sdk/python/src")}

    def start(self) -> None:
        """Starts it, and waits until it listens."""
        log = (self.data / "out.log").open("ab")
        self.process = subprocess.Popen(
            [self.program, "up"], env=self.environment, stdout=log, stderr=log, start_new_session=True
        )
        log.close()
        self.hail("status", patience=30.0)

    def hail(self, *arguments: str, patience: float = 0.0) -> str:
        """What a command of the node prints; asked again, as long as it fails, for so many seconds."""
        until = time.monotonic() + patience
        while True:
            done = subprocess.run(
                [self.program, *arguments], env=self.environment, capture_output=True, text=True, check=False
            )
            if done.returncode == 0:
                return done.stdout
            if time.monotonic() >= until:
                raise AssertionError(f"hail {' '.join(arguments)}: {done.stderr}")

    def kill(self) -> None:
        """Kills it, as a power cut would."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def remove(self) -> None:
        """Leaves nothing behind."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        shutil.rmtree(self.data, ignore_errors=True)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A node that runs, to which `hailwire.connect()` attaches."""
    program = hail_program()
    if program is None:
        pytest.skip("there is no program hail: build it with `cargo build -p hailwire-cli`, or set HAIL_PROGRAM")
    one = Node(program)
    try:
        one.start()
        monkeypatch.setenv("HAIL_DATA", str(one.data))
        yield one
    finally:
        one.remove()
