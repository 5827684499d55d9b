"""An evaluation is of one version and in order; its answers depend on nothing else; failures of the grader are no wrong answers."""

from dataclasses import replace

import pytest

from slipstream.config.schema import ArithmeticTask, RowsTask, SumsTask
from slipstream.core.clock import ManualClock
from slipstream.core.errors import RunFailed
from slipstream.core.records import Outcome, OutcomeKind, PassAtK, Prompt, SampleRequest, Tally, WeightVersion
from slipstream.loop.eval_format import evaluation_format, format_differences, format_hash, problems_hash
from slipstream.loop.evaluate import Draw, Plan, answers, evaluate, outcome_counts, tallies
from slipstream.loop.intervals import wilson_interval
from slipstream.loop.pass_at_k import score
from tests.loop.at_once import AtOnce
from tests.loop.pure_run import FakeSampler, NumberTask

WEIGHTS = WeightVersion(lineage=0, version=6, params="w", digest="d6")
GREEDY = Draw(max_new_tokens=8)
PLAN = Plan(task="numbers", greedy=GREEDY, format_hash="f", samples_kept=3)


class Recorded(FakeSampler):
    """Remembers what it was asked."""

    def __init__(self, slots: int) -> None:
        super().__init__("evaluator", ManualClock(), slots, tokens_per_step=3)
        self.requests: list[SampleRequest] = []

    def submit(self, request: SampleRequest) -> None:
        self.requests.append(request)
        super().submit(request)


class EveryThird(NumberTask):
    """Every third prompt is answered rightly, every fifth has no verdict; sampled answers are right where they begin with 1."""

    def grade(self, prompt: Prompt, completion_text: str) -> Outcome:
        number = int(prompt.id[1:])
        if number % 5 == 4:
            return Outcome(kind=OutcomeKind.TIMEOUT, reward=None)
        right = number % 3 == 0
        return Outcome(
            kind=OutcomeKind.VALUE if right else OutcomeKind.WRONG, reward=float(right), format_ok=right, style="worked" if right else ""
        )


class FirstToken(NumberTask):
    """Right where the first token is 1 or 2; no verdict where it is 3."""

    def grade(self, prompt: Prompt, completion_text: str) -> Outcome:
        first = completion_text.split(" ")[0]
        if first == "3":
            return Outcome(kind=OutcomeKind.INFRASTRUCTURE, reward=None)
        right = first in ("1", "2")
        return Outcome(kind=OutcomeKind.VALUE if right else OutcomeKind.WRONG, reward=float(right))


def prompts(count: int) -> list[Prompt]:
    return [NumberTask().prompt(index) for index in range(count)]


def test_an_evaluation_is_greedy_in_order_and_of_one_version() -> None:
    task, sampler = EveryThird(), Recorded(slots=2)
    result = evaluate(sampler=sampler, weights=WEIGHTS, prompts=prompts(10), environments=AtOnce(task), codec=task, plan=PLAN)
    assert sampler.version == 6
    assert {(request.temperature, request.max_new_tokens) for request in sampler.requests} == {(0.0, 8)}
    assert (result.step, result.task, result.weight_digest, result.format_hash) == (6, "numbers", "d6", "f")
    assert (result.n, result.pass_at_1, result.drawn, result.pass_at_k) == (8, 3 / 8, 1, ())  # 0, 3 and 6; 4 and 9 have no verdict
    assert result.outcomes == {"value": 3, "wrong": 5, "timeout": 2}
    assert [sample["prompt"] for sample in result.samples] == ["n0", "n1", "n2"]
    assert [sample["reward"] for sample in result.samples] == [1.0, 0.0, 0.0]
    assert result.extra["style_share"] == 0.3
    assert result.extra["format_ok"] == 3 / 8
    assert result.ci == pytest.approx(wilson_interval(3, 8))


def test_samples_for_pass_at_k_are_drawn_beside_the_greedy_answers() -> None:
    task, sampler = FirstToken(), Recorded(slots=3)
    plan = replace(PLAN, sampled=Draw(samples=6, temperature=0.7, max_new_tokens=8), k=(4, 2))
    result = evaluate(sampler=sampler, weights=WEIGHTS, prompts=prompts(20), environments=AtOnce(task), codec=task, plan=plan)
    alone = evaluate(sampler=Recorded(slots=7), weights=WEIGHTS, prompts=prompts(20), environments=AtOnce(task), codec=task, plan=PLAN)
    assert (result.pass_at_1, result.ci, result.n) == (alone.pass_at_1, alone.ci, alone.n)
    assert [request.temperature for request in sampler.requests] == [0.0] * 20 + [0.7] * 120
    assert [(found.k, type(found)) for found in result.pass_at_k] == [(2, PassAtK), (4, PassAtK)]
    assert result.drawn == 6
    assert sum(result.outcomes.values()) == 140
    by_hand = answers(sampler=loaded(5), prompts=prompts(20), environments=AtOnce(task), codec=task, draw=plan.sampled or GREEDY)
    assert result.pass_at_k[0] == score(tallies(by_hand), 2)


def loaded(slots: int) -> Recorded:
    sampler = Recorded(slots)
    sampler.load(WEIGHTS)
    return sampler


def test_answers_depend_on_their_prompt_and_seed_alone() -> None:
    task, draw = FirstToken(), Draw(samples=3, temperature=1.0, max_new_tokens=8, seed=5)

    def drawn(slots: int, asked: list[Prompt], draw: Draw) -> dict[tuple[str, int], str]:
        found = answers(sampler=loaded(slots), prompts=asked, environments=AtOnce(task), codec=task, draw=draw)
        return {(answer.prompt.id, answer.drawn.key[1]): answer.text for answer in found}

    whole = drawn(1, prompts(12), draw)
    assert list(whole) == [(f"n{index}", number) for index in range(12) for number in range(3)]
    assert drawn(12, prompts(12), draw) == whole
    assert drawn(5, prompts(12)[::-1], draw) == whole
    assert len(set(whole.values())) > 20  # the samples of a prompt are not copies of one another
    assert drawn(1, prompts(12), replace(draw, seed=6)) != whole


def test_failures_of_the_grader_are_counted_and_left_out() -> None:
    task, told = FirstToken(), []
    found = answers(
        sampler=loaded(4),
        prompts=prompts(9),
        environments=AtOnce(task),
        codec=task,
        draw=Draw(samples=5, max_new_tokens=8, temperature=1.0),
        on_answer=told.append,
    )
    counted = tallies(found)
    assert [tally.id for tally in counted] == [f"n{index}" for index in range(9)]
    failed = outcome_counts(found)["infrastructure"]
    assert failed > 0
    assert sum(tally.judged for tally in counted) == 45 - failed
    assert sum(tally.right for tally in counted) == outcome_counts(found)["value"]
    assert sorted(answer.drawn.key for answer in told) == sorted(answer.drawn.key for answer in found)
    firsts = [answer.text.split(" ")[0] for answer in found[:5]]
    assert counted[0] == Tally(id="n0", judged=5 - firsts.count("3"), right=firsts.count("1") + firsts.count("2"))


def test_nothing_to_evaluate_on_is_told() -> None:
    task = EveryThird()
    with pytest.raises(RunFailed, match="no held-out prompts"):
        evaluate(sampler=Recorded(1), weights=WEIGHTS, prompts=[], environments=AtOnce(task), codec=task, plan=PLAN)
    with pytest.raises(RunFailed, match="pass@1 cannot be told: none of 1 problems has 1 answers"):
        evaluate(sampler=Recorded(1), weights=WEIGHTS, prompts=prompts(5)[4:], environments=AtOnce(task), codec=task, plan=PLAN)


def test_two_problems_of_one_id_are_refused() -> None:
    with pytest.raises(ValueError, match="one id"):
        tallies(answers(sampler=loaded(1), prompts=[prompts(1)[0]] * 2, environments=AtOnce(EveryThird()), codec=EveryThird(), draw=GREEDY))


def test_the_format_changes_with_what_changes_a_scores_meaning() -> None:
    rows = RowsTask(train="a", test="b")

    def hashed(task=rows, form="f", template="t", draws=(GREEDY,)) -> str:
        return format_hash(evaluation_format(task, form, template, draws))

    others = [
        hashed(form="g"),
        hashed(template="u"),
        hashed(task=rows.model_copy(update={"grader": "exact"})),
        hashed(task=SumsTask()),
        hashed(task=ArithmeticTask(digits=2)),
        hashed(draws=(replace(GREEDY, temperature=0.5),)),
        hashed(draws=(replace(GREEDY, max_new_tokens=9),)),
        hashed(draws=(GREEDY, GREEDY)),
    ]
    assert len({hashed(), *others}) == 1 + len(others)
    same = [hashed(task=RowsTask(train="c", test="d", max_prompt_tokens=9)), hashed(draws=(replace(GREEDY, seed=3),))]
    assert set(same) == {hashed()}


def test_what_differs_between_formats_is_named() -> None:
    one = evaluation_format(SumsTask(), "f", "t", [GREEDY])
    other = evaluation_format(SumsTask(digits=1), "f", "t", [replace(GREEDY, temperature=1.0)])
    assert format_differences(one, other) == ["draws.0.temperature: 0.0 against 1.0", "task.digits: 2 against 1"]
    assert format_differences(one, one) == []


def test_problems_are_the_same_in_any_order_and_others_with_another_answer() -> None:
    asked = prompts(3)
    assert problems_hash(asked) == problems_hash(asked[::-1])
    assert problems_hash(asked) != problems_hash([replace(asked[0], answer="1"), *asked[1:]])
    assert problems_hash(asked) != problems_hash(asked[:2])
