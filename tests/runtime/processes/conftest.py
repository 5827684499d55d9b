"""Runs in many processes that end with their test."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.runtime.processes.supervised import Supervised


@pytest.fixture
def supervised() -> Iterator[Callable[..., Supervised]]:
    """Starts runs."""
    with ExitStack() as running:

        def begin(*arguments: object) -> Supervised:
            one = Supervised(*arguments)  # type: ignore[arg-type]
            running.callback(one.close)
            return one

        yield begin
