#!/usr/bin/env python3
"""An inspection agent: blocks /admin, names itself to the upstream, and stops bodies that carry a secret.

python3 callout_agent.py /tmp/agent.sock
"""

import sys

from hailwire import callout

agent = callout.Agent("no-secrets", version="1.0")


@agent.request_headers
async def check_target(request: callout.RequestHeaders) -> callout.Decision:
    if request.uri.startswith("/admin"):
        audit = callout.Audit(tags=["admin"], reason_codes=["ADMIN_PATH"])
        return callout.block(403, "not here\n", audit=audit)
    return callout.allow(request_headers=[callout.set_header("x-checked-by", agent.name)])


@agent.request_body
async def check_chunk(chunk: callout.BodyChunk) -> callout.Decision:
    # A secret that lies across two chunks is not found: an agent that looks for more keeps the end of the last one.
    if b"BEGIN PRIVATE KEY" in chunk.data:
        return callout.block(422)
    return callout.allow(needs_more=not chunk.is_last)


if __name__ == "__main__":
    agent.run(sys.argv[1], ready=lambda: print("ready", flush=True))
