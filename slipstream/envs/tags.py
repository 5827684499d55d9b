"""Answers between <answer> and </answer>. Pure; for graders that ask for them."""

OPEN, CLOSE = "<answer>", "</answer>"


def last_answer(text: str) -> str | None:
    """What stands between the last closed pair of tags; None where there is none. Linear in the text."""
    end = text.rfind(CLOSE)
    start = text.rfind(OPEN, 0, end) if end >= 0 else -1
    return text[start + len(OPEN) : end].strip() if start >= 0 else None
