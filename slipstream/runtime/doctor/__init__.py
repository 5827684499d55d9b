"""`slipstream doctor`: what this machine offers, and whether sampler, exactness, verifiers and weight files do what they promise here."""
