"""A model with an output matrix of its own, for vLLM on CPUs. Pure. Called by `vllm.sampler` and by whoever makes a directory to serve.

There vLLM packs the output matrix when it starts. A reload packs anew what it reads, and of a tied model it reads the embedding
only: it would go on to draw with the old output matrix (found in 0.32.0 by `benchmarks/peers/vllm_client_check.py`).
"""

from dataclasses import replace

from slipstream.models.parameters import Params
from slipstream.models.spec import ModelSpec


def untied(spec: ModelSpec, params: Params) -> tuple[ModelSpec, Params]:
    """The same function of the same numbers, with the embedding twice where it was tied."""
    return (replace(spec, tied=False), replace(params, head=params.embed.T)) if spec.tied else (spec, params)
