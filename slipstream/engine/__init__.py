"""Generation: continuous batching over token ids. Knows no text and no reinforcement learning. Imports jax."""
