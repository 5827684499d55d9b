"""The coordinator: the one role that owns the ledger, over HTTP. No jax here, so that it starts at once and is small."""
