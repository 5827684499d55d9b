"""`slipstream export` on real runs: the checkpoint under Hugging Face names, with tokenizer and config; wrong calls are refused."""

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer as Backend
from tokenizers import models

from slipstream.config.load import dump_config, load_config, parse_config
from slipstream.core.errors import UsageError
from slipstream.models.lora import Adapted, LoraSpec, initial_adapters, merge
from slipstream.models.parameters import initialise
from slipstream.runtime.export import export
from slipstream.telemetry.run_directory import RunDirectory
from slipstream.train.arrays import read_tree, write_tree
from slipstream.train.checkpoint import write_checkpoint
from slipstream.weights.files import read_params, read_texts, write_model
from slipstream.weights.hf_config import read_spec
from slipstream.weights.special_ids import SpecialIds, read_special_ids
from tests.cli.test_usage import refused, slipstream
from tests.runtime.runs import tiny
from tests.weights.models import TINY

CONFIG = Path(__file__).parents[1] / "runtime" / "tiny.toml"
SPECIAL = SpecialIds(bos=1, eos=(2,), pad=None)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run from scratch, with checkpoints of steps 3 and 6."""
    run = tmp_path_factory.mktemp("trained") / "runs" / "run"
    tiny(run, ["run.steps=6", "checkpoint.keep_best=false"])  # which one is best is no matter here
    return run


@pytest.fixture
def fine_tuned(tmp_path: Path) -> Path:
    """The directory of a run on a pretrained model, as far as an export reads it: configuration, model, one checkpoint."""
    model = tmp_path / "model"
    write_model(model, TINY, initialise(TINY, 1), special=SPECIAL)
    tokens = {token: id for id, token in enumerate("abcdefgh")}
    Backend(models.WordLevel(tokens, unk_token="a")).save(str(model / "tokenizer.json"))
    (model / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}", "note": "é"}')
    (model / "generation_config.json").write_text('{"bos_token_id": 1, "eos_token_id": 2, "temperature": 0.6}')
    config = load_config("sums", [f"model.source.path={model}"])
    run = RunDirectory.create(tmp_path / "run", dump_config(config))
    write_checkpoint(run.checkpoints, 4, lambda path: write_tree(path / "params.safetensors", initialise(TINY, 2)), {})
    return run.path


def test_adapters_are_merged_into_what_is_exported(fine_tuned: Path, tmp_path: Path) -> None:
    run = RunDirectory.open(fine_tuned)
    source = parse_config(run.config.read_text()).model.source
    config = load_config("sums", [f"model.source.path={source.path}", "model.lora.rank=2", 'model.lora.targets=["q","down"]'])  # pyright: ignore[reportAttributeAccessIssue]
    run.config.write_text(dump_config(config))
    start = initial_adapters(TINY, LoraSpec(rank=2, alpha=32.0, targets=("q", "down")), seed=0)
    learned = jax.tree.map(lambda leaf: leaf + 0.01, start)
    policy = Adapted(base=initialise(TINY, 2), adapters=learned)
    write_checkpoint(run.checkpoints, 6, lambda path: write_tree(path / "params.safetensors", policy), {})
    export(fine_tuned, tmp_path / "out", step=6, dtype="float32")
    found, expected = read_params(tmp_path / "out", read_spec(tmp_path / "out")), merge(policy.base, learned)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert not np.array_equal(np.asarray(found.layers.q), np.asarray(policy.base.layers.q))  # pyright: ignore[reportAttributeAccessIssue]


def test_a_run_from_scratch_becomes_a_model_directory(trained: Path, tmp_path: Path) -> None:
    done = slipstream("export", str(trained), "--out", str(tmp_path / "model"), "--dtype", "float32", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    spec = read_spec(tmp_path / "model")
    params, _ = read_tree(trained / "checkpoints" / "000006" / "params.safetensors", initialise(spec, 0))
    jax.tree.map(np.testing.assert_array_equal, read_params(tmp_path / "model", spec), params)
    assert (result["step"], result["architecture"]) == (6, "LlamaForCausalLM")
    assert result["parameters"] == sum(leaf.size for leaf in jax.tree.leaves(params))
    backend = Backend.from_file(str(tmp_path / "model" / "tokenizer.json"))
    assert backend.get_vocab_size() == spec.vocab
    assert backend.decode(backend.encode("1+2=3").ids) == "1+2=3"
    assert read_special_ids(tmp_path / "model").eos == (0,)


def test_the_step_and_the_type_can_be_chosen(trained: Path, tmp_path: Path) -> None:
    export(trained, tmp_path / "half", step=3)
    spec = read_spec(tmp_path / "half")
    params, _ = read_tree(trained / "checkpoints" / "000003" / "params.safetensors", initialise(spec, 0))
    rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    jax.tree.map(np.testing.assert_array_equal, read_params(tmp_path / "half", spec, jnp.bfloat16), rounded)
    assert {str(tensor.dtype) for tensor in load_file(tmp_path / "half" / "model.safetensors").values()} == {"bfloat16"}


def test_a_fine_tuned_model_keeps_its_tokenizer_template_and_generation_settings(fine_tuned: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = export(fine_tuned, out, dtype="float32", max_shard_bytes=4000)
    assert made.step == 4
    assert read_texts(out) == read_texts(tmp_path / "model")
    assert json.loads((out / "generation_config.json").read_text())["temperature"] == 0.6
    assert read_spec(out) == TINY
    jax.tree.map(np.testing.assert_array_equal, read_params(out, TINY), initialise(TINY, 2))
    assert len(list(out.glob("model-*.safetensors"))) == 3


def test_wrong_calls_are_refused_with_what_there_is(trained: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    assert "checkpoints has no checkpoint of step 5; there are: 3, 6" in refused("export", str(trained), "--step", "5", "--out", out)
    assert "absent is not a directory" in refused("export", str(tmp_path / "absent"), "--out", out)
    assert "holds no run" in refused("export", str(tmp_path), "--out", out)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").write_text("")
    assert "is not an empty directory" in refused("export", str(trained), "--out", str(tmp_path / "full"))
    assert not (tmp_path / "out").exists()


def test_a_run_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", dump_config(load_config(str(CONFIG))))
    with pytest.raises(UsageError, match="has no whole checkpoint; there are: none"):
        export(run.path, tmp_path / "out")


def test_a_damaged_checkpoint_is_passed_over_unless_asked_for(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    with (run / "checkpoints" / "000006" / "params.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x55")
    assert export(run, tmp_path / "older").step == 3
    with pytest.raises(UsageError, match="a damaged checkpoint of step 6; there are: 3, 6"):
        export(run, tmp_path / "out", step=6)


def test_a_pretrained_model_that_is_gone_or_another_one_is_named(fine_tuned: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    (model / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    with pytest.raises(UsageError, match=r"has no tokenizer\.json"):
        export(fine_tuned, tmp_path / "out")
    (tmp_path / "tokenizer.json").rename(model / "tokenizer.json")
    tree = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(tree | {"num_hidden_layers": 4}))
    with pytest.raises(
        UsageError, match=r"not of the model that the run's configuration names now; they differ in \.layers\.attention_norm"
    ):
        export(fine_tuned, tmp_path / "out")
    shutil.rmtree(model)
    with pytest.raises(UsageError, match="is no model directory"):
        export(fine_tuned, tmp_path / "out")
