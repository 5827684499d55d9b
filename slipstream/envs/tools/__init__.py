"""Tools that a model may call, and the environment that runs its calls."""
