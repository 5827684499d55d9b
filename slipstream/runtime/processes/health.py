"""What a supervisor says to its coordinator and asks it. Short calls that fail quietly: the coordinator may be the one that died."""

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

DEADLINE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What the coordinator says of the run."""

    names: frozenset[str]  # of the workers that are here
    version: int


def health(url: str) -> Health | None:
    """None where the coordinator does not answer."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=DEADLINE_S) as response:
            told = json.load(response)
            return Health(names=frozenset(told["names"]), version=told["version"])
    except (OSError, ValueError, KeyError):
        return None


class Notes:
    """Events of the supervisor, kept until the coordinator has taken them."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._waiting: list[dict[str, Any]] = []

    def add(self, kind: str, **fields: Any) -> None:
        self._waiting.append({"role": "supervisor", "kind": kind, "fields": fields})

    def flush(self) -> None:
        """Hand over what waits, if the coordinator is there."""
        if not self._waiting:
            return
        body = json.dumps({"events": self._waiting}).encode()
        request = urllib.request.Request(f"{self._url}/v1/note", body, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S):
                self._waiting.clear()
        except OSError:
            return
