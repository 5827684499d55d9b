"""Serving a model: an engine in a thread of its own, and an OpenAI-compatible server that turns text into token ids and back."""
