"""An agent that answers with a language model: it passes the model's words on as they come.

It speaks the chat API that OpenAI's servers, llama.cpp, vLLM and Ollama have in common, with what Python brings along.

    OPENAI_BASE_URL=http://127.0.0.1:8080/v1 OPENAI_MODEL=llama python examples/python/llm_agent.py
    hail call assistant "why is the sky blue?"

A caller who leaves early closes the connection to the model; one whose time is short tells the model's server so.
"""

import http.client
import json
import os
from collections.abc import Iterator
from urllib.parse import urlsplit

import hailwire

BASE = urlsplit(os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1"))
MODEL = os.environ.get("OPENAI_MODEL", "gpt-4o-mini")

hail = hailwire.connect()


@hail.agent("assistant", description="answers questions with a language model", max_concurrency=8)
def assistant(request: hailwire.Request, question: str) -> Iterator[str]:
    kind = http.client.HTTPSConnection if BASE.scheme == "https" else http.client.HTTPConnection
    connection = kind(BASE.netloc, timeout=request.time_left or 60)
    try:
        yield from words(connection, question)
    finally:
        connection.close()


def words(connection: http.client.HTTPConnection, question: str) -> Iterator[str]:
    """The model's answer, piece by piece, from its stream of events."""
    asked = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": question}]}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', '')}"}
    try:
        connection.request("POST", f"{BASE.path}/chat/completions", json.dumps(asked), headers)
        answer = connection.getresponse()
    except OSError as error:
        raise hailwire.HailError("unavailable", f"the model's server cannot be reached: {error}") from error
    if answer.status != 200:
        code = (
            "resource_exhausted"
            if answer.status == 429
            else "unavailable"
            if answer.status >= 500
            else "failed_precondition"
        )
        raise hailwire.HailError(
            code, f"the model's server answered {answer.status}", details=answer.read(8192).decode(errors="replace")
        )
    for line in answer:
        data = line.removeprefix(b"data: ").strip()
        if line.startswith(b"data: ") and data != b"[DONE]":
            piece = json.loads(data)["choices"][0]["delta"].get("content")
            if piece:
                yield piece


if __name__ == "__main__":
    hail.run()
