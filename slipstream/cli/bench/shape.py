"""The model a benchmark runs: one from a directory, or random weights of a well-known small shape. Lazy: it imports jax."""

from pathlib import Path


def model_or_random(model: Path | None):
    """(spec, params) of a model directory; of random weights in SmolLM2-135M's published shape where none is given."""
    from slipstream.models.parameters import initialise
    from slipstream.weights.files import read_params

    spec = spec_or_default(model)
    return spec, read_params(model, spec) if model else initialise(spec, seed=0)


def spec_or_default(model: Path | None):
    """The shape alone."""
    from slipstream.weights.hf_config import read_spec

    return read_spec(model) if model else _smollm2()


def _smollm2():
    from slipstream.models.spec import ModelSpec, RopeSpec

    return ModelSpec(
        vocab=49_152,
        d_model=576,
        layers=30,
        heads=9,
        kv_heads=3,
        head_dim=64,
        d_ff=1_536,
        rope=RopeSpec(theta=100_000.0),
        norm_eps=1e-5,
        tied=True,
        context=8_192,
    )
