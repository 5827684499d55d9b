"""One decoder for learner and engine: declared parameters, pure forward functions. Imports jax."""
