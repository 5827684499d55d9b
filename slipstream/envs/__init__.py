"""Tasks: where prompts come from and how answers are judged. No jax, no model."""
