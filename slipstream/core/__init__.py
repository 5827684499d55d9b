"""The vocabulary every room shares: records, ports, ids, clock, counter-based randomness, errors.

Imports the standard library and numpy only, so any room may import it.
"""
