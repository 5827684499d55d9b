"""What the learner's work on packed rows is predicted to cost: linear plus quadratic in length. Pure; called by packing.

In floating-point operations of the forward pass; the backward pass is the same multiple of all of it.
"""

import math
from dataclasses import dataclass

from slipstream.models.parameters import declarations
from slipstream.models.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The two coefficients, and what the second counts."""

    linear: float = 1.0  # a computed position, padding or not
    quadratic: float = 0.0  # a pair of query and key
    whole_rows: bool = False  # the attention computes all pairs of a row (dense), not only those that may see each other

    def of_row(self, row_tokens: int, pairs: int) -> float:
        """Of one row whose sequences have `pairs` pairs that see each other."""
        return self.linear * row_tokens + self.quadratic * (row_tokens**2 if self.whole_rows else pairs)


BY_POSITIONS = Cost()
"""Nothing but computed positions counts."""


def model_cost(spec: ModelSpec, whole_rows: bool) -> Cost:
    """Coefficients of a model: each matrix entry a token meets is a multiply and an add, and so is each channel of q k and a v."""
    met = 0.0
    for declaration in declarations(spec):
        if declaration.fan_in and declaration.path != ("embed",):
            visited = spec.experts.per_token / spec.experts.count if spec.experts and "expert" in declaration.stack else 1.0
            met += math.prod(declaration.shape(spec)) * visited
    output = spec.vocab * spec.d_model if spec.tied else 0
    return Cost(linear=2 * (met + output), quadratic=4.0 * spec.layers * spec.heads * spec.head_dim, whole_rows=whole_rows)
