"""Learning: packed batches, objectives, optimizer, the update, checkpoints. Imports jax."""
