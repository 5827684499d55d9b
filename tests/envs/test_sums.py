"""Sums in words: the split is by hash and fixed, ids are unique, the reply must be the number and nothing else."""

from dataclasses import replace

import pytest

from slipstream.config.schema import SumsTask
from slipstream.core.records import OutcomeKind
from slipstream.envs.sums import Sums, sums
from tests.envs.small_chat import byte_tokenizer, chatml


def task(digits: int = 1, seed: int = 0) -> Sums:
    return sums(SumsTask(digits=digits), seed, byte_tokenizer(), chatml())


def test_the_prompt_is_the_chat_with_the_answer_opened() -> None:
    prompt = task().prompt(0)
    pair = prompt.id.removesuffix("@0")
    a, b = map(int, pair.split("+"))
    assert prompt.text == (f"<|im_start|>user\nWhat is {pair}? Reply with only the number.<|im_end|>\n<|im_start|>assistant\n{pair}=")
    assert prompt.answer == str(a + b)
    assert prompt.token_ids[0] == 0
    assert (prompt.token_ids == 0).sum() == 2


@pytest.mark.parametrize(("digits", "pairs"), [(1, 81), (2, 8100)])
def test_training_and_held_out_pairs_share_nothing(digits: int, pairs: int) -> None:
    found = task(digits)
    training = {prompt.id for prompt in found.training}
    held_out = {prompt.id for prompt in found.held_out(pairs)}
    assert len(training) + len(held_out) == pairs
    assert not training & held_out
    assert 0.1 < len(held_out) / pairs < 0.3
    assert {found.prompt(index).id.split("@")[0] for index in range(200)} <= training
    assert found.max_prompt_tokens >= max(len(found.prompt(index).token_ids) for index in range(50))


def test_prompts_follow_the_seed_and_held_out_ones_do_not() -> None:
    one, two = task(seed=1), task(seed=2)
    assert [one.prompt(index).text for index in range(20)] != [two.prompt(index).text for index in range(20)]
    assert [prompt.id for prompt in one.held_out(9)] == [prompt.id for prompt in two.held_out(9)]
    assert len({one.prompt(index).id for index in range(500)}) == 500


@pytest.mark.parametrize(
    ("reply", "kind", "form"),
    [
        (" 12\n", OutcomeKind.VALUE, True),
        ("13", OutcomeKind.WRONG, True),
        ("12.", OutcomeKind.WRONG, False),
        ("The sum is 12", OutcomeKind.WRONG, False),
        ("012", OutcomeKind.WRONG, True),
        ("twelve", OutcomeKind.UNPARSEABLE, False),
        ("", OutcomeKind.UNPARSEABLE, False),
        ("١٢", OutcomeKind.UNPARSEABLE, False),
    ],
)
def test_only_the_number_alone_earns_the_reward(reply: str, kind: OutcomeKind, form: bool) -> None:
    found = task()
    outcome = found.grade(replace(found.prompt(0), answer="12"), reply)
    assert (outcome.kind, outcome.reward, outcome.format_ok) == (kind, float(kind is OutcomeKind.VALUE), form)


def test_easy_prompts_stand_evenly_in_their_share() -> None:
    found = sums(SumsTask(digits=2, one_digit_share=0.25), 0, byte_tokenizer(), chatml())
    lengths = [len(found.prompt(index).id.split("+")[0]) for index in range(40)]
    assert lengths == [2, 2, 2, 1] * 10
    assert all(len(prompt.answer) >= 2 and int(prompt.id.split("+")[0]) >= 10 for prompt in found.held_out(50))
