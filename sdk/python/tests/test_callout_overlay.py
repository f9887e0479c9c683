"""An inspection agent behind raw streams of the overlay passes the run that every agent passes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from conftest import ROOT, Node

AGENT = """
import sys
sys.path.insert(0, sys.argv[1])
import hailwire
from hailwire import callout

agent = callout.Agent("no-secrets", version="1.0")

@agent.request_headers
async def check(request: callout.RequestHeaders) -> callout.Decision:
    return callout.block(403, "not here\\n") if request.uri.startswith("/admin") else callout.allow()

hail = hailwire.connect()
hail.agent("no-secrets")(callout.on_streams(agent))
hail.run()
"""

CONFIG = """
agents {
    agent "no-secrets" {
        hail "no-secrets@NODE"
        events "request_headers"
    }
}
"""


def test_a_proxy_asks_an_agent_over_its_node(node: Node, tmp_path: Path) -> None:
    config = tmp_path / "callout.kdl"
    config.write_text(CONFIG.replace("NODE", node.hail("id").split()[0]))
    program = subprocess.Popen([sys.executable, "-c", AGENT, str(ROOT / "sdk/python/src")], env=node.environment)
    try:
        while "no-secrets" not in node.hail("agents"):
            assert program.poll() is None
        said = node.hail("callout", "test", "--small", "--config", str(config))
        assert "all 15 probes behaved as configured: 9 allowed, 6 blocked, 0 uninspected" in said, said
    finally:
        program.terminate()
        assert program.wait(20) == 0
