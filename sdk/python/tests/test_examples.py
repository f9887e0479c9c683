"""The examples do what their first lines say."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import ROOT, Node

EXAMPLES = ROOT / "examples/python"


def members(node: Node) -> int:
    """How many agents the node has, each member of a group counted."""
    return sum(int(row["members"]) for row in json.loads(node.hail("agents", "--json")))


def output(node: Node, name: str, *arguments: str, given: bytes = b"", **environment: str) -> str:
    """What an example prints, which ends well."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments],
        input=given,
        capture_output=True,
        env={**node.environment, **environment},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@contextmanager
def running(
    node: Node, name: str, *arguments: str, agents: int = 0, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """An example that runs until it is told to end, with so many agents more than there were."""
    before = members(node)
    program = subprocess.Popen(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments],
        stdout=subprocess.PIPE,
        env={**node.environment, **environment},
    )
    try:
        until = time.monotonic() + 30
        while members(node) < before + agents:
            assert time.monotonic() < until and program.poll() is None
        yield program
    finally:
        program.terminate()
        assert program.stdout is not None
        program.stdout.close()
        assert program.wait(20) in (0, -15), "it ends in order"


def test_an_agent_and_a_caller(node: Node) -> None:
    with running(node, "shout", agents=1):
        assert output(node, "ask", "shout", "hello") == "HELLO\n"
        assert output(node, "without_a_loop") == "shout: returns a text in capitals; methods: (any)\n"
    failed = subprocess.run(
        [sys.executable, str(EXAMPLES / "ask.py"), "shout", "x"], capture_output=True, env=node.environment, check=False
    )
    assert failed.returncode == 1 and failed.stderr.startswith(b"not_found: ") and b"\nhint: " in failed.stderr


def test_methods_with_types(node: Node) -> None:
    with running(node, "calculator", agents=1):
        assert node.hail("call", "calculator", "--method", "divide", '{"a": 6, "b": 3}').strip() == "2.0"
        described = node.hail("describe", "calculator")
        assert "The sum of two numbers." in described and "divide" in described


def test_an_agent_over_a_language_model(node: Node) -> None:
    with running(node, "model_stand_in") as model:
        assert model.stdout is not None
        address = model.stdout.readline().decode().strip()
        with running(node, "llm_agent", agents=1, OPENAI_BASE_URL=address):
            assert node.hail("call", "assistant", "blue sky the is why").strip() == "why is the sky blue"


def test_sound_becomes_captions_while_it_plays(node: Node) -> None:
    with running(node, "transcribe", agents=3):
        sound = subprocess.run(
            [sys.executable, str(EXAMPLES / "play_morse.py"), "sos we are sinking"],
            capture_output=True,
            env=node.environment,
            check=True,
        ).stdout
        answered = subprocess.run(
            [node.program, "call", "caption", "-"],
            input=sound,
            capture_output=True,
            env=node.environment,
            check=True,
        )
        assert answered.stdout.decode().split() == ["sos", "we", "are", "sinking"]


def test_a_graph_of_agents(node: Node) -> None:
    article = output(node, "graph", "tea")
    assert article.startswith("On tea. ") and article.count("Nobody has looked up") == 2


def test_a_long_task(node: Node) -> None:
    assert output(node, "long_task").splitlines()[-1] == "there are 9592"


def test_a_whiteboard(node: Node) -> None:
    with running(node, "whiteboard", "watch", "1") as watcher:
        assert watcher.stdout is not None
        assert watcher.stdout.readline() == b"watching\n"
        output(node, "whiteboard", "write", "color", "green")
        assert watcher.stdout.readline() == b"color is green now\n"
        assert watcher.wait(20) == 0


@pytest.fixture
def typescript(tmp_path: Path) -> Path:
    """The examples for Node, where a user would have them: beside the installed package."""
    package = ROOT / "sdk/typescript"
    if not (package / "dist/esm/index.js").exists():
        pytest.skip("the TypeScript package is not built: npm ci && npm run build in sdk/typescript")
    folder = tmp_path / "app"
    shutil.copytree(ROOT / "examples/typescript", folder, ignore=shutil.ignore_patterns("node_modules"))
    (folder / "node_modules").mkdir()
    (folder / "node_modules/hailwire").symlink_to(package)
    return folder


def test_the_examples_for_node(node: Node, typescript: Path) -> None:
    def asked(*arguments: str) -> subprocess.CompletedProcess[str]:
        program = ["node", str(typescript / "ask.mjs"), *arguments]
        return subprocess.run(program, capture_output=True, text=True, env=node.environment, timeout=60, check=False)

    with running(node, "shout", agents=1):
        assert asked("shout", "hello").stdout == "HELLO\n"
    failed = asked("shout", "hello")
    assert failed.returncode == 1 and failed.stderr.startswith("not_found: ") and "\nhint: " in failed.stderr
    numbering = subprocess.Popen(["node", str(typescript / "lines.mjs")], env=node.environment)
    try:
        while members(node) < 1:
            assert numbering.poll() is None
        text = "".join(f"line {number}\n" for number in range(100_000))
        program = [node.program, "call", "number-lines", "-"]
        numbered = subprocess.run(program, input=text, capture_output=True, text=True, env=node.environment, check=True)
        assert numbered.stdout.splitlines()[-1] == "100000 line 99999"
    finally:
        numbering.terminate()
        assert numbering.wait(20) == 0


def test_an_orchestrator_over_twenty_workers(node: Node, typescript: Path) -> None:
    workers = []
    try:
        for _ in range(10):
            workers.append(subprocess.Popen([sys.executable, str(EXAMPLES / "worker.py")], env=node.environment))
        for _ in range(10):
            workers.append(subprocess.Popen(["node", str(typescript / "worker.mjs")], env=node.environment))
        until = time.monotonic() + 60
        while members(node) < 20:
            assert time.monotonic() < until
        names = [str(path) for path in sorted((ROOT / "docs").rglob("*.md"))[:40]]
        first, *words = output(node, "orchestrator", *names).splitlines()
        assert first == f"{len(names)} documents for 20 workers"
        assert words[0].split()[1] == "the"
    finally:
        for worker in workers:
            worker.terminate()
        assert {worker.wait(20) for worker in workers} <= {0}
