"""What must be the same for two evaluations to compare: how problems are put, judged and answered. Pure.

Which problems were asked is apart from it: they have a hash of their own.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, cast

from slipstream.config.schema import Section
from slipstream.core.records import Prompt
from slipstream.loop.evaluate import Draw

Format = dict[str, Any]

NO_FORMAT = frozenset(
    {
        *("train", "test", "question_field", "answer_field", "id_field", "max_prompt_tokens", "bad_rows"),
        *("held_out", "one_digit_share", "size", "test_size", "seed"),
        *("decontaminate_words", "curriculum", "pass_rates"),
        *("instruction", "system", "shots"),
    }
)
"""Settings of tasks that say which problems there are, how they are trained on, or what the form's hash says already."""


def evaluation_format(task: Section, form: str, template: str, draws: Sequence[Draw]) -> Format:
    """What gives a score its meaning, as JSON values: `form` is the hash of what is said around a question (`Task.format_hash`),
    `template` the chat template's text with its special tokens.
    """
    return {
        "task": {name: value for name, value in task.model_dump(mode="json").items() if name not in NO_FORMAT},
        "form": form,
        "template": _hash(template),
        "draws": [{"temperature": draw.temperature, "max_new_tokens": draw.max_new_tokens} for draw in draws],
    }


def format_hash(format: Format) -> str:
    """16 hexadecimal digits; equal for equal formats."""
    return _hash(json.dumps(format, sort_keys=True))


def problems_hash(prompts: Sequence[Prompt]) -> str:
    """16 hexadecimal digits of ids, texts and answers, in any order."""
    return _hash(json.dumps(sorted([prompt.id, prompt.text, prompt.answer] for prompt in prompts)))


def format_differences(one: Format, other: Format) -> list[str]:
    """What differs, a phrase each, e.g. "task.instruction: 'a' against 'b'"."""
    first, second = _flat(one), _flat(other)
    names = sorted(first.keys() | second.keys())
    return [f"{name}: {first.get(name)!r} against {second.get(name)!r}" for name in names if first.get(name) != second.get(name)]


def _flat(tree: Any, path: str = "") -> dict[str, Any]:
    if isinstance(tree, dict):
        parts = cast(Format, tree)
    elif isinstance(tree, list):
        parts = {str(place): part for place, part in enumerate(cast(list[Any], tree))}
    else:
        return {path: tree}
    return {name: value for key, part in parts.items() for name, value in _flat(part, f"{path}.{key}".lstrip(".")).items()}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
