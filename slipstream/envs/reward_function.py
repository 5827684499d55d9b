"""A reward that is a plain Python function of the user: found by its address, called as `reward(row, response) -> float`."""

import inspect
import math
from collections.abc import Callable
from copy import deepcopy
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, cast

from slipstream.core.errors import UsageError
from slipstream.core.records import Outcome, OutcomeKind
from slipstream.envs.datasets import Fields

RewardFunction = Callable[[dict[str, Any], str], float]


def find_reward(address: str) -> RewardFunction:
    """The function at "package.module:function" or "path/to/file.py:function".

    Raises UsageError when there is no such module, file or function, when it fails while it is loaded, and when it does not take
    two arguments.
    """
    where, separator, name = address.rpartition(":")
    if not separator or not where or not name:
        raise _problem(address, "write it as module:function or path/to/file.py:function")
    module = _load(address, where)
    function = getattr(module, name, None)
    if not callable(function):
        there = sorted(key for key, value in vars(module).items() if inspect.isfunction(value) and not key.startswith("_"))
        raise _problem(address, f"{where} has no function {name!r}; it has {', '.join(there) or 'none'}")
    if inspect.iscoroutinefunction(function):
        raise _problem(address, "it is a coroutine function; a plain one is needed")
    try:
        inspect.signature(function).bind({}, "")
    except TypeError as error:
        raise _problem(address, f"it is called as {name}(row, response), and {error}") from error
    return cast(RewardFunction, function)


def score(function: RewardFunction, fields: Fields, response: str, what: str = "the reward function") -> Outcome:
    """The outcome of one call. What the function raises, and a value that is no finite number, is a failure of the grader, not a 0."""

    def failure(how: str) -> Outcome:
        return Outcome(kind=OutcomeKind.INFRASTRUCTURE, reward=None, detail=f"{what} {how}"[:300])

    try:
        value = function(deepcopy(dict(fields)), response)
    except Exception as error:  # noqa: BLE001 - a function of the user may raise anything, and a run goes on
        return failure(f"raised {type(error).__name__}: {error}")
    try:
        reward = float(value)
    except (TypeError, ValueError, OverflowError):
        return failure(f"returned {type(value).__name__} {str(value)[:60]!r}, not a number")
    if not math.isfinite(reward):
        return failure(f"returned {reward}")
    return Outcome(kind=OutcomeKind.VALUE if reward > 0 else OutcomeKind.WRONG, reward=reward, detail=f"reward {reward:g}")


def _load(address: str, where: str) -> Any:
    try:
        if not where.endswith(".py"):
            return import_module(where)
        path = Path(where).expanduser()
        if not path.is_file():
            raise _problem(address, f"there is no file {path}")
        spec = spec_from_file_location(f"slipstream_reward_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
    except UsageError:
        raise
    except ModuleNotFoundError as error:
        raise _problem(address, f"{error}; a file is written as path/to/file.py:function") from error
    except Exception as error:
        raise _problem(address, f"{where} fails while it is loaded: {type(error).__name__}: {error}") from error
    return module


def _problem(address: str, what: str) -> UsageError:
    return UsageError(f"task.reward = {address!r}: {what}")
