"""Writes down what a real vLLM server answers, for the tests to hold the client and the fake server to.

    python -m tests.runtime.vllm.record URL MODEL NAME

Needs a server of a model with at least 1,000 tokens and a context of 512, in development mode, that nobody else uses: the last
exchange is a reload that fails, after which the server draws no more. Writes `recorded/NAME.json`: a list of exchanges, each with
what was sent and what came back, streams as their lines.
"""

import json
import re
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.core.records import SampleRequest
from slipstream.runtime.vllm.wire import body, probe_bodies

PROMPT = [504, 260, 253, 314]
PATIENCE_S = 120.0


def lines(url: str, method: str, path: str, sent: Any = None) -> Iterator[tuple[int, str]]:
    """Status and line, as they come."""
    data = None if sent is None else json.dumps(sent).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            for line in response:
                if line.strip():
                    yield response.status, line.decode().strip()
    except urllib.error.HTTPError as error:
        yield error.code, error.read().decode().strip()


def exchange(url: str, name: str, method: str, path: str, sent: Any = None) -> dict[str, Any]:
    found = list(lines(url, method, path, sent))
    told = [re.sub(r'"root":"[^"]*"', '"root":"model"', line) for _, line in found]  # no paths of the machine
    return {"name": name, "method": method, "path": path, "sent": sent, "status": found[0][0], "lines": told}


def interrupted(url: str, name: str, sent: Any, mode: str, after: int) -> dict[str, Any]:
    """A stream that is paused after some lines; with `keep` it is let go on."""
    told = threading.Event()
    threading.Thread(target=lambda: told.wait(PATIENCE_S) and list(lines(url, "POST", f"/pause?mode={mode}"))).start()
    found: list[str] = []
    for _, line in lines(url, "POST", "/v1/completions", sent):
        found.append(line)
        if len(found) == after:
            told.set()
    list(lines(url, "POST", "/resume"))
    return {"name": name, "method": "POST", "path": "/v1/completions", "sent": sent, "status": 200, "lines": found}


def record(url: str, model: str) -> list[dict[str, Any]]:
    def ask(name: str, **fields: Any) -> dict[str, Any]:
        plain: dict[str, Any] = {"seed": 7, "max_new_tokens": 4, "temperature": 1.0, "stop_ids": ()}
        return body(SampleRequest(key=(name, 0), prompt_ids=np.array(PROMPT, np.int32), **plain | fields), model, range(0))

    def completion(name: str, **fields: Any) -> dict[str, Any]:
        return exchange(url, name, "POST", "/v1/completions", ask(name, **fields))

    one, half = probe_bodies(model)
    found = [
        exchange(url, "models", "GET", "/v1/models"),
        exchange(url, "version", "GET", "/version"),
        exchange(url, "is_paused", "GET", "/is_paused"),
        exchange(url, "probe at 1", "POST", "/v1/completions", one),
        exchange(url, "probe at 0.5", "POST", "/v1/completions", half),
        completion("plain"),
        completion("again"),
        completion("another seed", seed=8),
        completion("temperature 0.5", temperature=0.5),
        completion("greedy", temperature=0.0),
    ]
    second = json.loads(found[-1]["lines"][1].removeprefix("data: "))["choices"][0]["token_ids"][0]
    found += [
        completion("stop", temperature=0.0, stop_ids=(second,)),
        completion("stop held back", temperature=0.0, stop_ids=(second,), min_new_tokens=3),
        completion("bias", temperature=0.0, logit_bias=((999, 100.0),)),
        completion("top-k, top-p, min-p", top_k=5, top_p=0.9, min_p=0.1),
        exchange(url, "wrong model", "POST", "/v1/completions", ask("wrong") | {"model": "nobody"}),
        completion("too long", max_new_tokens=1000),
        interrupted(url, "paused and ended", ask("long", max_new_tokens=200), "abort", 6),
        exchange(url, "pause", "POST", "/pause?mode=abort"),
        exchange(url, "abort", "POST", "/abort_requests", {}),
        exchange(url, "resume", "POST", "/resume"),
        exchange(url, "reload of nothing", "POST", "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": "/nowhere"}}),
    ]
    return found


if __name__ == "__main__":
    address, served, out = sys.argv[1:]
    written = json.dumps(record(address, served), indent=1, ensure_ascii=False)
    (Path(__file__).parent / "recorded" / f"{out}.json").write_text(written + "\n")
