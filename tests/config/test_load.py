"""From recipe and overrides to a checked tree and back: every problem is told at once, with a path that --set takes."""

import re
from pathlib import Path

import pytest

from slipstream.config.load import dump_config, load_config, parse_config, recipe_names
from slipstream.config.schema import RowsTask, RunConfig, ScratchModel, SumsTask
from slipstream.core.errors import ConfigError, Problem, UsageError


def problems(recipe: str, *overrides: str) -> dict[str, Problem]:
    """What is wrong, by field."""
    with pytest.raises(ConfigError) as caught:
        load_config(recipe, overrides)
    found = {problem.field: problem for problem in caught.value.problems}
    assert len(found) == len(caught.value.problems)
    return found


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_loads_and_survives_its_own_file(name: str) -> None:
    config = load_config(name)
    assert config.run.recipe == name
    assert parse_config(dump_config(config)) == config


def test_a_configuration_far_from_the_defaults_survives_its_own_file() -> None:
    config = load_config(
        "gsm8k",
        [
            "run.seed=18446744073709551615",
            "task.instruction='Say \"#### n\" ünd \\ nothing'",
            "task.train=/data/with space/train.jsonl",
            "optimizer.learning_rate=1e-300",
            "mode.kind=lagged",
            "mode.eta=3",
            "sampling.temperature=0.1",
        ],
    )
    assert config.run.seed == 2**64 - 1
    assert isinstance(config.task, RowsTask)
    assert config.task.instruction == 'Say "#### n" ünd \\ nothing'
    assert config.task.train == "/data/with space/train.jsonl"
    assert parse_config(dump_config(config)) == config


def test_overrides_are_toml_or_plain_text_and_the_last_one_counts() -> None:
    config = load_config("quickstart", ["run.steps=3", "run.steps = 4", "warm_start.stages=[]", "run.recipe=my run", "mode.kind='lagged'"])
    assert (config.run.steps, config.warm_start.stages, config.run.recipe, config.mode.kind) == (4, (), "my run", "lagged")


def test_a_file_is_a_recipe_named_by_its_stem(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[run]\nsteps = 7\n")
    config = load_config(str(path), ["run.seed=5"])
    assert (config.run.recipe, config.run.steps, config.run.seed) == ("mine", 7, 5)
    assert isinstance(config.model.source, ScratchModel)


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("quikstart", "did you mean quickstart?"),
        ("zzz", "known: arithmetic, "),
        ("", "known: arithmetic, "),
        ("x" * 5_000, "known: arithmetic, "),
    ],
)
def test_an_unknown_recipe_is_told_with_the_near_ones(recipe: str, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        load_config(recipe)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        (b"[run\nsteps = 3", "is not valid TOML"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b"run = 3\n", "run = 3: this is a section"),
        (b"run = 3\n[mode]\nkind = 'sink'\n", "2 configuration problems"),
    ],
)
def test_a_file_that_is_no_recipe_is_told(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "recipe.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=re.escape(words)):
        load_config(str(path))


def test_a_saved_configuration_that_was_damaged_is_told() -> None:
    with pytest.raises(UsageError, match="saved configuration is not valid TOML"):
        parse_config("[run\n")
    with pytest.raises(ConfigError, match=r"run.stepz = 3: no such field; did you mean steps\?"):
        parse_config("[run]\nstepz = 3\n")


def test_all_problems_are_told_at_once_with_value_and_fix() -> None:
    found = problems("quickstart", "run.seeds=3", "batch.group_size=1", "task.digitz=4", "mode.kind=async", "sampling.temperature=0")
    assert found["run.seeds"].fix == "no such field; did you mean seed or steps?"
    assert (found["batch.group_size"].value, found["batch.group_size"].fix) == ("1", "Input should be greater than or equal to 2")
    assert found["task.digitz"].fix == "no such field; did you mean digits?"
    assert "'sync', 'lagged' or 'inflight'" in found["mode.kind"].fix
    assert set(found) == {"run.seeds", "batch.group_size", "task.digitz", "mode.kind", "sampling.temperature"}


def test_all_contradictions_are_told_at_once() -> None:
    found = problems(
        "quickstart", "mode.kind=sync", "batch.minibatches=5", "sampling.max_new_tokens=32", "model.source={kind='scratch', heads=3}"
    )
    assert set(found) == {"mode.eta", "batch.minibatches", "batch.row_tokens", "model.source.kv_heads", "model.source.d_model"}


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("task.digitz=3", "task.digitz"),
        ("task.held_out=7", "task.held_out"),
        ("model.source={kind='scratch', d_modle=3}", "model.source.d_modle"),
        ("model.source={kind='scratch', layers=0}", "model.source.layers"),
        ("model.source={kind='pretrained'}", "model.source.path"),
        ("model.source.d_model=128", "model.source.kind"),
        ("model.source.kind=scrach", "model.source.kind"),
        ("task.kind=maths", "task.kind"),
        ("task=3", "task"),
        ("batch=3", "batch"),
        ("mode.inflight=3", "mode.inflight"),
        ("sections.none=3", "sections"),
        ("warm_start.stages=[{steps=0, worked_share=1}]", "warm_start.stages"),
        ("warm_start.stages=[{steps=1}]", "warm_start.stages"),
        ("warm_start.stages=3", "warm_start.stages"),
    ],
)
def test_a_problem_names_a_path_that_can_be_set(override: str, field: str) -> None:
    """The path in the message, given to --set again, reaches the same field."""
    assert field in problems("quickstart", override)


@pytest.mark.parametrize("text", ["", "=3", "run.steps", "run..steps=3", ".=3", "run.steps.x=3", "warm_start.stages.0.steps=3"])
def test_an_override_that_is_none_is_told(text: str) -> None:
    with pytest.raises(ConfigError):
        load_config("quickstart", [text])


def test_a_choice_between_sections_is_told_with_its_choices() -> None:
    assert problems("quickstart", "task.kind=sum")["task.kind"].fix == "did you mean sums?"
    absent = problems("quickstart", "model.source.d_model=128")["model.source.kind"]
    assert (absent.value, absent.fix.endswith("known: scratch, pretrained")) == ("(absent)", True)
    assert "set its fields one by one" in problems("quickstart", "task=3")["task"].fix


def test_a_list_problem_names_the_entry() -> None:
    found = problems("quickstart", "warm_start.stages=[{steps=1, worked_share=1.0}, {steps=1, worked_shar=1.0, worked_share=0}]")
    assert found["warm_start.stages"].fix == "entry 1, worked_shar: no such field; did you mean worked_share?"


def test_only_the_chosen_section_is_offered() -> None:
    """`operation` belongs to another task: it is refused, and not suggested."""
    found = problems("sums", "task.operatio=addition")
    assert "operation" not in found["task.operatio"].fix
    assert set(SumsTask.model_fields) >= set(re.findall(r"\w+", found["task.operatio"].fix.partition("known:")[2]))


def test_settings_cannot_be_changed_in_place() -> None:
    config = RunConfig()
    with pytest.raises(ValueError, match="frozen"):
        config.run.steps = 3  # type: ignore[misc]
