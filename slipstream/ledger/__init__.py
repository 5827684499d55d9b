"""The ledger: who samples what, what is trained when, and nothing twice. A pure state machine with a journal; no jax."""
