"""Contradictions and settings without effect are refused; what is near them and fine is not."""

import pytest

from slipstream.config.load import load_config
from slipstream.core.errors import ConfigError

SYNC = ("mode.kind=sync", "mode.eta=0")
SCRATCH = "model.source={kind='scratch', heads=%d, kv_heads=%d, d_model=%d}"


@pytest.mark.parametrize(
    ("recipe", "overrides", "field"),
    [
        ("quickstart", ["mode.kind=sync"], "mode.eta"),
        ("quickstart", ["mode.eta=0"], "mode.eta"),
        ("quickstart", ["mode.kind=lagged", "mode.eta=0"], "mode.eta"),
        ("quickstart", ["mode.kind=lagged", "mode.eta=1", "mode.staleness=drop"], "mode.staleness"),
        ("quickstart", [*SYNC, "mode.staleness=requeue"], "mode.staleness"),
        ("quickstart", ["batch.minibatches=3"], "batch.minibatches"),
        ("quickstart", ["batch.minibatches=64"], "batch.minibatches"),
        ("quickstart", ["sampling.max_new_tokens=32"], "batch.row_tokens"),
        ("quickstart", ["objective.name=reinforce"], "objective.name"),
        ("quickstart", [SCRATCH % (4, 3, 64)], "model.source.kv_heads"),
        ("quickstart", [SCRATCH % (4, 2, 66)], "model.source.d_model"),
        ("quickstart", [SCRATCH % (4, 2, 60)], "model.source.d_model"),
        ("quickstart", ["model.source={kind='pretrained', path='p'}"], "task.kind"),
        ("sums", ["model.source={kind='scratch'}"], "model.source.kind"),
        ("sums", ["warm_start.stages=[{steps=1, worked_share=1.0}]"], "warm_start.stages"),
        ("quickstart", ["task.held_out=0"], "task.held_out"),
        ("quickstart", ["task.held_out=1.0"], "task.held_out"),
        ("quickstart", ["optimizer.b1=1.0"], "optimizer.b1"),
        ("quickstart", ["warm_start.b2=1.0"], "warm_start.b2"),
        ("quickstart", ["batch.row_lengths=[16,8]"], "batch.row_lengths"),
        ("quickstart", ["batch.row_lengths=[8,8]"], "batch.row_lengths"),
        ("quickstart", ["batch.row_lengths=[32]"], "batch.row_lengths"),
        ("quickstart", ["model.numerics=exact", "sampling.page_tokens=32", "batch.row_lengths=[16]"], "batch.row_lengths"),
        ("gsm8k", ["task.train="], "task.train"),
        ("gsm8k", ["grading.on=graders", "task.environment=e.py:E"], "grading.on"),
        ("gsm8k", ["grading.on=graders", "task.tools=['calculator']"], "grading.on"),
        ("quickstart", ["evaluation.samples=8", "evaluation.k=[16]"], "evaluation.k"),
        ("quickstart", ["evaluation.k=[2]"], "evaluation.k"),
        ("quickstart", ["optimizer.schedule=linear", "optimizer.warmup_steps=99"], "optimizer.schedule"),
        # no effect
        ("quickstart", ["batch.rows_per_microbatch=3", "batch.partial_microbatches=1"], "batch.partial_microbatches"),
        ("quickstart", ["optimizer.muon_momentum=0.9"], "optimizer.muon_momentum"),
        ("quickstart", ["optimizer.muon_iterations=6"], "optimizer.muon_iterations"),
        ("quickstart", ["optimizer.final_fraction=0.5"], "optimizer.final_fraction"),
        ("quickstart", ["objective.clip_low=0.1"], "objective.clip_low"),
        ("quickstart", ["objective.name=reinforce_is", "objective.clip_high=0.3"], "objective.clip_high"),
        ("quickstart", ["objective.name=ppo", *SYNC, "objective.clip_high=0.3"], "objective.clip_high"),
        ("quickstart", ["objective.name=ppo", "objective.weight_cap=2.0"], "objective.weight_cap"),
        ("quickstart", ["objective.name=reinforce", *SYNC, "objective.weight_cap=2.0"], "objective.weight_cap"),
        ("quickstart", ["objective.name=reinforce", *SYNC, "batch.minibatches=2"], "batch.minibatches"),
        ("quickstart", ["warm_start.stages=[]", "warm_start.b2=0.9"], "warm_start.b2"),
        ("quickstart", ["warm_start.stages=[]", "warm_start.samples_per_step=3"], "warm_start.samples_per_step"),
        ("quickstart", ["warm_start.stages=[]", "warm_start.learning_rate=1e-3"], "warm_start.learning_rate"),
        ("quickstart", ["warm_start.stages=[]", "warm_start.warmup_steps=3"], "warm_start.warmup_steps"),
        ("gsm8k", ["task.grader=exact", "task.format_weight=0.1"], "task.format_weight"),
        ("gsm8k", ["task.reward=judge.py:reward", "task.format_weight=0.1"], "task.format_weight"),
        ("gsm8k", ["task.reward=judge.py:reward", "task.grader=exact"], "task.grader"),
        ("gsm8k", ["task.curriculum=easy_first"], "task.curriculum"),
        ("gsm8k", ["task.pass_rates=rates.jsonl"], "task.pass_rates"),
        ("quickstart", [*SYNC, "sampling.kv_on_swap=recompute"], "sampling.kv_on_swap"),
        ("quickstart", ["sampling.kv_divergence_limit=0.1"], "sampling.kv_divergence_limit"),
        ("quickstart", ["evaluation.samples=8"], "evaluation.samples"),
        ("quickstart", ["evaluation.temperature=0.5"], "evaluation.temperature"),
    ],
)
def test_a_contradiction_is_refused_at_its_field(recipe: str, overrides: list[str], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(recipe, overrides)
    (problem,) = caught.value.problems
    assert problem.field == field
    assert problem.fix


@pytest.mark.parametrize(
    ("recipe", "overrides"),
    [
        ("quickstart", SYNC),
        ("quickstart", ["mode.kind=lagged", "mode.eta=1"]),
        ("quickstart", ["mode.staleness=drop"]),
        ("quickstart", ["sampling.kv_on_swap=auto", "sampling.kv_divergence_limit=0.1"]),
        ("quickstart", ["batch.minibatches=2", "objective.clip_low=0.1"]),
        ("quickstart", ["objective.name=ppo", "objective.clip_high=0.3"]),
        ("quickstart", ["objective.name=ppo", *SYNC, "batch.minibatches=2", "objective.clip_high=0.3"]),
        ("quickstart", ["objective.name=reinforce", *SYNC]),
        ("quickstart", ["objective.name=reinforce_is", "objective.weight_cap=2.0"]),
        ("quickstart", ["objective.weight_cap=2.0"]),
        ("quickstart", ["warm_start.stages=[]"]),
        ("quickstart", ["objective.clip_low=0.2"]),  # the default, as every saved run.toml has it
        ("gsm8k", ["task.format_weight=0.1"]),
        ("quickstart", ["optimizer.name=muon", "optimizer.muon_momentum=0.9", "optimizer.muon_iterations=6"]),
        ("quickstart", ["optimizer.schedule=cosine", "optimizer.final_fraction=0.5", "optimizer.warmup_steps=98"]),
        ("quickstart", ["batch.row_lengths=[8,16]", "batch.rows_per_microbatch=3", "batch.partial_microbatches=1"]),
    ],
)
def test_what_can_have_an_effect_is_allowed(recipe: str, overrides: list[str]) -> None:
    load_config(recipe, overrides)
