"""The package as others get it: built, installed into an empty environment, documented."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, Node

import hailwire
from hailwire import sync

PACKAGE = ROOT / "sdk/python"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source archive."""
    into = tmp_path_factory.mktemp("dist")
    built = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(into), str(PACKAGE)]
    subprocess.run(built, check=True, capture_output=True)
    assert len(list(into.glob("*.tar.gz"))) == 1
    return next(into.glob("*.whl"))


def test_the_wheel_brings_no_other_package_and_finds_the_node(wheel: Path, tmp_path: Path, node: Node) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True)
    python = tmp_path / "env/bin/python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check", str(wheel)]
    subprocess.run(install, check=True)
    frozen = [str(python), "-m", "pip", "freeze", "--disable-pip-version-check"]
    packages = subprocess.run(frozen, check=True, capture_output=True, text=True).stdout.split("\n")
    assert [line.split(" ")[0] for line in packages if line] == ["hailwire"]
    environment = {name: value for name, value in node.environment.items() if name != "PYTHONPATH"}
    program = """
import asyncio, hailwire, hailwire.sync, hailwire.callout
async def main():
    async with hailwire.connect() as hail:
        print((await hail.status())["id"])
asyncio.run(main())
"""
    said = subprocess.run([str(python), "-c", program], env=environment, check=True, capture_output=True, text=True)
    assert len(said.stdout.strip()) == 52
    assert next((tmp_path / "env").rglob("hailwire/py.typed")).exists()
    assert wheel.stat().st_size < 150_000


def test_every_public_item_says_what_it_is() -> None:
    silent = []
    for module in (hailwire, sync):
        for name in module.__all__:
            item = getattr(module, name)
            if not inspect.isclass(item) and not inspect.isroutine(item):
                continue
            if not inspect.getdoc(item):
                silent.append(name)
            if inspect.isclass(item):
                members = [(key, value) for key, value in vars(item).items() if not key.startswith("_")]
                documented = (property, type(lambda: None))
                silent += [
                    f"{name}.{key}" for key, value in members if isinstance(value, documented) and not value.__doc__
                ]
    assert not silent


def test_the_reference_is_made(tmp_path: Path) -> None:
    made = [sys.executable, "-m", "pdoc", "--output-directory", str(tmp_path), "hailwire", "hailwire.sync"]
    subprocess.run(
        made, check=True, capture_output=True, env={"PYTHONPATH": str(PACKAGE / "src"), "PATH": "/usr/bin:/bin"}
    )
    assert "Prepares a call" in (tmp_path / "hailwire.html").read_text()


def test_versions_agree() -> None:
    workspace = (ROOT / "Cargo.toml").read_text()
    version = workspace.split("[workspace.package]")[1].split('version = "')[1].split('"')[0]
    assert hailwire.__version__ == version
    assert f'version = "{version}"' in (PACKAGE / "pyproject.toml").read_text()
