"""Real `slipstream serve` processes on a tiny model, and the real client of OpenAI to talk to them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from openai import AsyncOpenAI, OpenAI

from slipstream.text.tokenizer import character_tokenizer
from tests.goldens.read import write_directory

ALPHABET = "\n" + "".join(chr(code) for code in range(32, 125))  # 95 ids of 96 rows of the embedding
TEMPLATE = "{% for message in messages %}{{ message['role'][0] + ':' + message['content'] + ' ' }}{% endfor %}a:"
KEY = "k-test"
PATIENCE_S = 120.0  # a deadline for hung processes, not a performance check


def write_tiny_model(directory: Path) -> None:
    """A two-layer model with one token a character, the stop token first."""
    write_directory("llama", directory)
    character_tokenizer(ALPHABET).save(directory)
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A server that answers."""

    process: subprocess.Popen[str]
    model: Path
    url: str

    def client(self, key: str = KEY) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=PATIENCE_S)

    def async_client(self, key: str = KEY) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=PATIENCE_S)

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=PATIENCE_S) as response:
            return response.read().decode()

    def figure(self, name: str) -> float:
        """A figure of /metrics, its labels as they stand there; 0 where it is not."""
        found = re.search(rf"^slipstream_{re.escape(name)} (\S+)$", self.get("/metrics"), re.MULTILINE)
        return float(found[1]) if found else 0.0

    def wait_idle(self) -> None:
        """Until no sample runs or waits."""
        self.wait_for("requests_running", 0)
        self.wait_for("requests_waiting", 0)

    def wait_for(self, name: str, value: float) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while (found := self.figure(name)) != value:
            assert time.monotonic() < deadline, f"{name} is {found}, not {value}"
            time.sleep(0.02)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> str:
        """Signal it, wait for exit code 0, return its standard error."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == 0, errors
        return errors


@contextmanager
def serving(folder: Path, *options: str, key: str | None = KEY) -> Iterator[Running]:
    """A server of the tiny model; killed at the end if it still runs."""
    model = folder / "tiny"
    write_tiny_model(model)
    environment = os.environ | {"SLIPSTREAM_CACHE": str(folder.parent / "cache"), "PYTHONWARNINGS": "error"}
    environment |= {"SLIPSTREAM_API_KEY": key} if key else {}
    command = [sys.executable, "-m", "slipstream.cli.main", "serve", "--model", str(model), "--port", "0", "--json", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            yield Running(process=process, model=model, url=json.loads(line)["url"])
        finally:
            process.kill()
