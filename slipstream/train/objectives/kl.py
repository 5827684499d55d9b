"""One-sample estimates of the KL divergence from the current policy to a reference (Schulman 2020, "Approximating KL divergence").

Here for the loss; `loop.rewards` has the same three in numpy for the reward.
"""

import jax
import jax.numpy as jnp


def kl_estimate(name: str, current: jax.Array, reference: jax.Array) -> jax.Array:
    """KL(pi_current || pi_reference) from sampled tokens' log-probs, nats a token; d = log pi_current - log pi_reference.

    k1 = d: unbiased, may be negative. k2 = d^2 / 2: biased, but its gradient is the KL's on fresh samples. k3 = exp(-d) - 1 + d:
    unbiased and never negative; its gradient is that of the other direction of the KL.
    """
    gap = current - reference
    if name == "k1":
        return gap
    return jnp.square(gap) / 2 if name == "k2" else jnp.expm1(-gap) + gap
