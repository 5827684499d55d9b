"""Supervised fine-tuning and further pre-training: cross-entropy on the tokens of a corpus."""

from slipstream.train.objectives.tokens import TokenLoss, Tokens, nothing


def sft(tokens: Tokens) -> TokenLoss:
    """-log pi of the target; nothing else of `tokens` is used."""
    return TokenLoss(-tokens.current, nothing(tokens), nothing(tokens))
