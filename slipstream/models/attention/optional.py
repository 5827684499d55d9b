"""Attention kernels of other packages, for accelerators: used where the package is installed and the probe finds it right."""

import jax

from slipstream.models.attention.rule import AttentionRule, PackedRows, related


def tokamax(q: jax.Array, k: jax.Array, v: jax.Array, rows: PackedRows, window: int | jax.Array, rule: AttentionRule) -> jax.Array:
    """q [b, t, h, k], k and v [b, t, g, k] -> [b, t, h, k] by the package tokamax (Pallas kernels for GPU and TPU).

    The mask is an array of a byte for each pair of tokens; scores are never held. Raises ImportError where the package is absent.
    """
    from tokamax import dot_product_attention  # pyright: ignore[reportMissingImports] - optional

    mask = related(rows, rows, window)[:, None]
    return dot_product_attention(q, k, v, mask=mask, scale=rule.scale, logits_soft_cap=rule.softcap)
