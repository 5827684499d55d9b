"""The versions that can be fetched, as the learner announced them: the newest few, in memory. Pure but for its one list.

A coordinator that starts anew knows none; the learner sees the new term and announces again. Called by `coordinator.desk`.
"""

from collections.abc import Collection

from slipstream.runtime.coordinator.messages import Announcement, Canary, MessageError, Publish


class Announcements:
    """Keeps the newest `keep` versions of the newest lineage."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._kept: dict[int, Publish] = {}
        self._digests: dict[int, str] = {}  # of all versions of the lineage: samples may be handed in long after their version has gone

    def publish(self, message: Publish) -> bool:
        """False when it is known already. Raises MessageError for a stale lineage, or other weights under a version's name."""
        lineage = max((one.lineage for one in self._kept.values()), default=message.lineage)
        if message.lineage < lineage:
            raise MessageError(f"version {message.version} is of lineage {message.lineage}; the run is at lineage {lineage}", 409)
        if message.lineage > lineage:
            self.clear()
        known = self._kept.get(message.version)
        if known is not None and known.digest != message.digest:
            raise MessageError(f"version {message.version} of lineage {lineage} is published already, with digest {known.digest}", 409)
        if known == message:
            return False
        self._kept[message.version] = message
        self._digests[message.version] = message.digest
        for version in sorted(self._kept)[: -self._keep]:
            del self._kept[version]
        return True

    def clear(self) -> None:
        """Nothing can be fetched any more: the learner starts anew."""
        self._kept.clear()
        self._digests.clear()

    def digest(self, version: int) -> str | None:
        """Of a version as it was announced; None where that was not (yet, or since the learner or the coordinator started anew)."""
        return self._digests.get(version)

    def canary(self, version: int) -> Canary | None:
        """The learner's, of a version that can still be fetched."""
        found = self._kept.get(version)
        return found.canary if found else None

    @property
    def newest(self) -> int:
        """-1 where there is none."""
        return max(self._kept, default=-1)

    @property
    def names(self) -> list[str]:
        """One a version; another one when it is announced anew."""
        return [f"{one.lineage}.{version}.{one.digest}@{','.join(one.sources)}" for version, one in sorted(self._kept.items())]

    def but(self, names: Collection[str]) -> list[Announcement]:
        """All but those of these names, oldest first."""
        return [
            Announcement(lineage=one.lineage, version=one.version, manifest=one.manifest, sources=one.sources)
            for name, (_, one) in zip(self.names, sorted(self._kept.items()), strict=True)
            if name not in names
        ]
