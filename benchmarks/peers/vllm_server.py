"""Starts a vLLM server and ends it. Standard library only: used by scripts of several environments."""

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

NAME = "policy"  # of the model for clients
START_S = 900.0  # importing torch, reading weights, compiling


@contextmanager
def serving(python: str, model: Path, log: Path, options: Sequence[str] = ()) -> Iterator[str]:
    """The URL of a server of `model` on a free loopback port, run by the interpreter of an environment that has vLLM; ended at the end.

    Raises RuntimeError with the end of its log where it does not start.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--served-model-name", NAME]
    command += ["--host", "127.0.0.1", "--port", str(port), "--generation-config", "vllm", "--disable-log-stats", *options]
    cores = len(os.sched_getaffinity(0))
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{cores - 1}",
        "VLLM_SERVER_DEV_MODE": "1",  # pauses and weights
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
    }
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out, env=settings | os.environ) as process:
        try:
            _wait(process, f"http://127.0.0.1:{port}", log)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            if process.poll() is not None or time.monotonic() > deadline:
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
                raise RuntimeError(f"the server did not start; the end of {log}:\n{tail}") from None
            time.sleep(0.5)
