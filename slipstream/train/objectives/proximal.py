"""The proximal policy's log-probs without scoring: interpolated by version between behaviour and current policy.

AReaL's log-linear approximation ("Proximal log-probability approximation", AReaL documentation), which saves one forward pass a step.
"""

import jax
import jax.numpy as jnp


def interpolated(current: jax.Array, behaviour: jax.Array, versions: jax.Array, start: jax.Array, now: jax.Array) -> jax.Array:
    """log pi_b + a (log pi_t - log pi_b), a = (v_p - v_b) / (v_t - v_b), without gradient.

    `versions` v_b [r, t] drew the tokens, the step started at `start` v_p, and `now` v_t counts the step's minibatches as fractions of
    a version. Where v_t = v_b (the step's own samples before its first update) all three policies are one, and a is 1.
    """
    current = jax.lax.stop_gradient(current)
    span = now - versions
    share = jnp.where(span > 0, (start - versions) / jnp.where(span > 0, span, 1.0), 1.0)
    return behaviour + share * (current - behaviour)
