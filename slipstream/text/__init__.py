"""Text to token ids and back: tokenizers, chat templates. Token ids are the truth; text is for people and graders."""
