"""A reward that is a plain Python function of the user: found by its address, called as `reward(row, response) -> float`."""

import inspect
import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any, cast

from slipstream.core.records import Outcome, OutcomeKind
from slipstream.envs.datasets import Fields
from slipstream.envs.user_code import find_code, problem

FIELD = "task.reward"
RewardFunction = Callable[[dict[str, Any], str], float]


def find_reward(address: str) -> RewardFunction:
    """The function at "package.module:function" or "path/to/file.py:function".

    Raises UsageError when there is no such module, file or function, when it fails while it is loaded, and when it does not take
    two arguments.
    """
    function = find_code(address, FIELD, "function")
    if inspect.iscoroutinefunction(function):
        raise problem(address, FIELD, "it is a coroutine function; a plain one is needed")
    try:
        inspect.signature(function).bind({}, "")
    except TypeError as error:
        raise problem(address, FIELD, f"it is called as {address.rpartition(':')[2]}(row, response), and {error}") from error
    return cast(RewardFunction, function)


def score(function: RewardFunction, fields: Fields, response: str, what: str = "the reward function") -> Outcome:
    """The outcome of one call. What the function raises, and a value that is no finite number, is a failure of the grader, not a 0."""

    def failure(how: str) -> Outcome:
        return Outcome(kind=OutcomeKind.INFRASTRUCTURE, reward=None, detail=f"{what} {how}"[:300])

    try:
        value = function(deepcopy(dict(fields)), response)
    except Exception as error:  # noqa: BLE001 - a function of the user may raise anything, and a run goes on
        return failure(f"raised {type(error).__name__}: {error}")
    return rewarded(value, failure)


def rewarded(value: Any, failure: Callable[[str], Outcome]) -> Outcome:
    """The outcome of what code of the user gave as a reward; `failure` makes that of no finite number."""
    try:
        reward = float(value)
    except (TypeError, ValueError, OverflowError):
        return failure(f"returned {type(value).__name__} {str(value)[:60]!r}, not a number")
    if not math.isfinite(reward):
        return failure(f"returned {reward}")
    return Outcome(kind=OutcomeKind.VALUE if reward > 0 else OutcomeKind.WRONG, reward=reward, detail=f"reward {reward:g}")
