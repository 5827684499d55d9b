"""The shape of a decoder: every number that its mathematics needs, and the size of each logical axis."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A Llama-style decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU (Touvron et al. 2023, arXiv 2302.13971)."""

    vocab: int  # rows of the embedding
    d_model: int  # width of the residual stream
    layers: int
    heads: int  # query heads
    kv_heads: int  # key/value heads; each serves heads / kv_heads query heads
    head_dim: int
    d_ff: int  # width of the gated feed-forward
    rope_theta: float  # base of the rotary frequencies
    norm_eps: float  # added to the mean square in RMSNorm
    tied: bool  # the output projection is the embedding, transposed
    context: int  # longest sequence the model was made for, tokens

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads = {self.kv_heads} does not divide heads = {self.heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim = {self.head_dim} is odd; rotary positions turn pairs")

    def axis_size(self, axis: str) -> int:
        """Length of a logical axis as named in the parameter declarations."""
        return {
            "vocab": self.vocab,
            "embed": self.d_model,
            "layer": self.layers,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "mlp": self.d_ff,
        }[axis]
