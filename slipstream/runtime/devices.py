"""Settings of jax for a run: a persistent compilation cache, so that a second start skips compiling."""

import os
from pathlib import Path


def configure_jax() -> None:
    """Point jax at the compilation cache: $SLIPSTREAM_CACHE, or slipstream/ in the user's cache directory."""
    import jax

    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = Path(os.environ.get("SLIPSTREAM_CACHE") or base / "slipstream") / "compiled"
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
