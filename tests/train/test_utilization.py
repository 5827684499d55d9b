"""Useful operations by hand, and the rate that they are compared with."""

import numpy as np
import pytest

from slipstream.models.parameters import declarations
from slipstream.train.packing import pack
from slipstream.train.utilization import ADAPTERS, product_rate, useful_flops
from tests.train.small import SPEC, learner
from tests.train.test_packing import sequences_of


def test_useful_operations_are_those_of_tokens_and_targets_whatever_the_packing() -> None:
    """By hand: prompts of 5 and 3 tokens, answers of 4, 6 and 2; the first two share a prompt, which is computed once."""
    one = learner()
    sequences = sequences_of([(5, [4, 6]), (3, [2])])
    matrices = {declaration.path: np.prod(declaration.shape(SPEC)) for declaration in declarations(SPEC) if declaration.fan_in}
    layers = sum(size for path, size in matrices.items() if path[0] not in ("embed", "output"))
    positions, targets = (5 - 1) + 4 + 6 + (3 - 1) + 2, 4 + 6 + 2  # nothing follows from a last token
    expected = 6 * (layers * positions + SPEC.vocab * SPEC.d_model * targets)
    found = [useful_flops(SPEC, pack(sequences, shapes)[0]) for shapes in (one._shapes, one._fast_shapes)]
    assert found == [expected] * 2
    assert useful_flops(SPEC, pack(sequences, one._shapes)[0], ADAPTERS) == pytest.approx(expected * 2 / 3)


def test_the_peak_of_one_device_is_measured_once() -> None:
    one = learner()
    assert one.peak_flops == product_rate("float32") > 1e8
