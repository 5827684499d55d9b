"""Products as devices without code of ours make them, for tests on a CPU."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax
import pytest

from slipstream.models.cpu import packed


@contextmanager
def xla_products() -> Iterator[None]:
    """Programs are traced anew inside, and again behind it."""
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("SLIPSTREAM_PRODUCTS", "xla")
            packed.available.cache_clear()
            jax.clear_caches()
            yield
    finally:
        packed.available.cache_clear()
        jax.clear_caches()
