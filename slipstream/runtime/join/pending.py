"""A sampler's replies on their way to verdicts: which have still to be asked for, which are waited for. Pure; called by `join.grading`."""

from collections.abc import Iterable, Sequence

from slipstream.runtime.coordinator.verdict_messages import Reply, Verdict

CHARACTERS = 4 << 20  # of a call's texts: twelve bytes each at most, and a body has a limit


class Pending:
    """The caller serialises access. Right whatever calls and answers are lost, repeated or late, and whoever is started anew."""

    def __init__(self) -> None:
        self._unasked: dict[str, Reply] = {}  # by name
        self._asked: dict[str, Reply] = {}
        self._had: dict[str, None] = {}  # verdicts that the coordinator has to be told we have

    def add(self, reply: Reply) -> None:
        self._unasked[reply.name] = reply

    def unasked(self, most: int) -> list[Reply]:
        """Some to be asked for in one call, the first ones first; at least one where there is one."""
        found: list[Reply] = []
        characters = 0
        for reply in self._unasked.values():
            characters += len(reply.text)
            if len(found) == most or (found and characters > CHARACTERS):
                break
            found.append(reply)
        return found

    def asked(self, replies: Iterable[Reply]) -> None:
        """The coordinator knows these."""
        for reply in replies:
            if self._unasked.pop(reply.name, None) is not None:  # else its verdict has come already
                self._asked[reply.name] = reply

    @property
    def waits(self) -> bool:
        """There is something to collect, or to say."""
        return bool(self._asked or self._had)

    def report(self) -> tuple[list[str], list[str]]:
        """Names of verdicts had, and of those waited for: what the next call to collect says."""
        return [*self._had], [*self._asked]

    def received(self, told: Iterable[str], verdicts: Sequence[Verdict], unknown: Iterable[str]) -> list[Verdict]:
        """The answer to that call: the verdicts that were not there before. `told`: those had, that the call said."""
        for name in told:
            self._had.pop(name, None)
        for name in unknown:
            if (reply := self._asked.pop(name, None)) is not None:
                self._unasked[name] = reply
        new: list[Verdict] = []
        for verdict in verdicts:
            wanted = [waiting.pop(verdict.name, None) for waiting in (self._asked, self._unasked)]
            self._had[verdict.name] = None
            if any(wanted):
                new.append(verdict)
        return new
