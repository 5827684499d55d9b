"""REINFORCE with and without importance correction (Williams 1992; token-level truncated importance sampling:
Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training")."""

import jax
import jax.numpy as jnp


def reinforce(current: jax.Array, advantages: jax.Array) -> tuple[jax.Array, jax.Array]:
    """-A log pi: right for fresh data only; drifts on stale data."""
    return -advantages * current, jnp.zeros_like(current)


def reinforce_is(current: jax.Array, behaviour: jax.Array, advantages: jax.Array, weight_cap: float) -> tuple[jax.Array, jax.Array]:
    """-min(r, weight_cap) A log pi with r = pi_current / pi_behaviour as a constant, and where the weight was cut."""
    ratio = jnp.exp(jax.lax.stop_gradient(current) - behaviour)
    return -jnp.minimum(ratio, weight_cap) * advantages * current, (ratio > weight_cap).astype(jnp.float32)
