"""Faults on purpose, in runs of many processes: what `slipstream bench chaos` and the tests of whole runs share. No jax here."""
