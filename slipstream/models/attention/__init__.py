"""Attention as two pure functions: over packed rows (learning) and over a paged cache (generation). Several implementations each."""
