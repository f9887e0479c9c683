"""A stand-in for a language model's server, for trying `llm_agent.py` without one: it answers in the same form, with
the question turned round.

python examples/python/model_stand_in.py        # prints its address
"""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Chat(BaseHTTPRequestHandler):
    """`POST /v1/chat/completions` with `stream`."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/chat/completions" or not asked.get("stream"):
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        words = asked["messages"][-1]["content"].split()
        for word in reversed(words):
            event = {"choices": [{"index": 0, "delta": {"content": word + " "}}]}
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            self.wfile.flush()
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Chat)
    print(f"http://127.0.0.1:{server.server_port}/v1", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
