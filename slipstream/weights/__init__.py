"""Weights on disk and on their way: model directories in Hugging Face layout, GGUF import. Uses the models' declarations."""
