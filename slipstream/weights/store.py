"""Published weights of an embedded run: shared by reference, the newest few kept. Implements `core.ports.WeightStore`."""

import threading

from slipstream.core.errors import RunFailed
from slipstream.core.records import WeightVersion


class MemoryStore:
    """Thread-safe. Keeps the newest `keep` versions; eta + 2 are always enough for samplers and audits."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._versions: dict[int, WeightVersion] = {}
        self._lock = threading.Lock()

    def publish(self, weights: WeightVersion) -> None:
        """Make a version available. Raises ValueError when it is not newer than all published ones."""
        with self._lock:
            newest = max(self._versions, default=-1)
            if weights.version <= newest:
                raise ValueError(f"version {weights.version} is not newer than version {newest}; versions are immutable")
            self._versions[weights.version] = weights
            for version in sorted(self._versions)[: -self._keep]:
                del self._versions[version]

    def newest(self) -> int:
        with self._lock:
            return max(self._versions, default=-1)

    def has(self, version: int) -> bool:
        with self._lock:
            return version in self._versions

    def get(self, version: int) -> WeightVersion:
        """Exactly this version. Raises RunFailed when it has gone or never was; never something newer."""
        with self._lock:
            if version not in self._versions:
                raise RunFailed(f"weights of version {version} are not in the store (it holds {sorted(self._versions)})")
            return self._versions[version]
