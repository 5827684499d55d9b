"""What a learner has published, told to the coordinator; and told again to one that was started anew. Called by `processes.learner`."""

import threading

import numpy as np

from slipstream.runtime.coordinator.messages import Canary
from slipstream.runtime.join.caller import Caller
from slipstream.runtime.join.ledger import RemoteLedger
from slipstream.runtime.processes.manifests import manifest_to_json
from slipstream.weights.manifest import Manifest


class Announcer:
    """Called by the thread that publishes, and by the learner's."""

    def __init__(self, ledger: RemoteLedger, caller: Caller, url: str, keep: int, computed_by: str) -> None:
        """`computed_by`: device kind and precision of the learner's canaries."""
        self._ledger, self._caller, self._url, self._keep = ledger, caller, url, keep
        self._computed_by = computed_by
        self._manifests: dict[int, Manifest] = {}
        self._canaries: dict[int, Canary] = {}
        self._term = 0  # of the coordinator that knows them
        self._lock = threading.Lock()

    def expect(self, version: int, logprobs: np.ndarray) -> None:
        """What the learner computes of the canary with a version; before it is announced."""
        with self._lock:
            self._canaries[version] = Canary(computed_by=self._computed_by, logprobs=logprobs.tolist())

    def announce(self, manifest: Manifest) -> None:
        """A version is served."""
        with self._lock:
            self._manifests[manifest.version] = manifest
            for version in sorted(self._manifests)[: -self._keep]:
                del self._manifests[version]
                self._canaries.pop(version, None)
            self._tell(manifest)
            self._term = self._term or self._caller.term

    def look(self) -> None:
        """Tell a coordinator of a new term everything: it keeps no manifests over its restarts."""
        with self._lock:
            if self._term and self._caller.term != self._term:
                for version in sorted(self._manifests):
                    self._tell(self._manifests[version])
                self._term = self._caller.term

    def _tell(self, manifest: Manifest) -> None:
        canary = self._canaries.get(manifest.version)
        self._ledger.publish(manifest.lineage, manifest.version, manifest.digest, manifest_to_json(manifest), [self._url], canary)
