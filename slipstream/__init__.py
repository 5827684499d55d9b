"""Slipstream: asynchronous reinforcement learning of language models, JAX-native."""

__version__ = "0.1.0"
