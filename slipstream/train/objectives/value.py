"""The loss of a value head: half the squared error of the values, bounded as the policy's step is (Schulman et al. 2017, PPO, eq. 9).

The bound is that of the paper's published code ("value clipping", described in Huang et al. 2022, "The 37 implementation details of
PPO", 9). Andrychowicz et al. 2021 (arXiv 2006.05990, 3.2) measured no gain by it, so it is off unless asked for.
"""

import jax
import jax.numpy as jnp


def value_loss(values: jax.Array, returns: jax.Array, before: jax.Array | None = None, clip: float = 0.0) -> jax.Array:
    """(V - R)^2 / 2 of each token; with `clip` the larger of this and that of V held within `clip` of `before`.

    values V, returns R and `before` (the values at the start of the step) are of one shape [...].
    """
    free = jnp.square(values - returns)
    if before is None or not clip:
        return free / 2
    held = before + jnp.clip(values - before, -clip, clip)
    return jnp.maximum(free, jnp.square(held - returns)) / 2
