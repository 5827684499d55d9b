"""The processes that write one checkpoint together, in one file system. Used by `checkpoint`."""

from typing import Protocol

import jax
from jax.experimental import multihost_utils


class Peers(Protocol):
    """One process's view of them. All do the same in the same order."""

    @property
    def index(self) -> int:
        """Of this process; 0 writes the manifest."""
        ...

    def wait(self, what: str) -> None:
        """Until all have come to `what`. Raises where one does not."""
        ...


class Alone:
    """One process, that waits for nobody."""

    index = 0

    def wait(self, what: str) -> None:
        pass


class AllProcesses:
    """Those of `jax.distributed`."""

    @property
    def index(self) -> int:
        return jax.process_index()

    def wait(self, what: str) -> None:
        multihost_utils.sync_global_devices(what)


ALONE = Alone()
