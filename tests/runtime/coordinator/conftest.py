"""Connections of a test's callers end with it."""

from collections.abc import Iterator

import pytest

from tests.runtime.coordinator.here import CALLERS


@pytest.fixture(autouse=True, scope="module")
def _callers_closed() -> Iterator[None]:
    yield
    while CALLERS:
        CALLERS.pop().close()
