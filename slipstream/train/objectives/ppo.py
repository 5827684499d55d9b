"""Proximal policy optimisation, clipped against the behaviour policy (Schulman et al. 2017, arXiv 1707.06347, eq. 7).

Its trust region is centred on the policy that sampled, so it stalls on stale data; kept as the baseline to compare with.
"""

import jax
import jax.numpy as jnp


def ppo(current: jax.Array, behaviour: jax.Array, advantages: jax.Array, clip_low: float, clip_high: float) -> tuple[jax.Array, jax.Array]:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) with r = pi_current / pi_behaviour, and where the clip acted."""
    ratio = jnp.exp(current - behaviour)
    return clipped_surrogate(ratio, advantages, clip_low, clip_high)


def clipped_surrogate(ratio: jax.Array, advantages: jax.Array, clip_low: float, clip_high: float) -> tuple[jax.Array, jax.Array]:
    """The pessimistic surrogate loss of a ratio, and 1.0 where its gradient is cut."""
    free = ratio * advantages
    clipped = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high) * advantages
    return -jnp.minimum(free, clipped), (clipped < free).astype(jnp.float32)
