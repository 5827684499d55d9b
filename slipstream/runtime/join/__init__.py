"""How a role takes part in a run from its own process: the client side of the coordinator. No jax here."""
