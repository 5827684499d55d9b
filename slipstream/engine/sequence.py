"""A sequence: a request as the scheduler sees it, from its submission to its end, and the states it goes through. Called by it only."""

from dataclasses import dataclass, field
from enum import StrEnum

from slipstream.core.errors import TransitionError
from slipstream.engine.plan import RequestKey


class State(StrEnum):
    """Where a sequence stands."""

    WAITING = "waiting"  # never admitted so far
    RUNNING = "running"  # has a row and pages; prefills or decodes
    PREEMPTED = "preempted"  # has a row and its tokens, but no pages; will be prefilled again
    FINISHED = "finished"
    ABORTED = "aborted"


ALLOWED: dict[State, frozenset[State]] = {
    State.WAITING: frozenset({State.RUNNING, State.ABORTED}),
    State.RUNNING: frozenset({State.PREEMPTED, State.FINISHED, State.ABORTED}),
    State.PREEMPTED: frozenset({State.RUNNING, State.ABORTED}),
    State.FINISHED: frozenset(),
    State.ABORTED: frozenset(),
}


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """A request that has not ended."""

    key: RequestKey
    tokens: list[int]  # prompt, then what was drawn
    given: int  # of them at the start
    most_tokens: int  # prompt + max_new_tokens
    state: State = State.WAITING
    row: int = -1  # from its first admission to its end
    epoch: int = -1  # when it got its pages
    table: list[int] = field(default_factory=list[int])
    computed: int = 0  # positions from 0 on whose keys and values are in its pages, or will be after the present plan

    @property
    def newest(self) -> int:
        """Position of the newest token; prefill ends before it."""
        return len(self.tokens) - 1

    @property
    def steps_left(self) -> int:
        return self.most_tokens - len(self.tokens)

    def become(self, state: State) -> None:
        """Raises TransitionError where that is not allowed."""
        if state not in ALLOWED[self.state]:
            raise TransitionError(f"request {self.key} is {self.state} and cannot become {state}")
        self.state = state
