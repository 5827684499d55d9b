"""Control flow of a run against ports only: prompts to tickets to samples to batches to versions. No jax, no model, no I/O of its own."""
