"""The shape of a decoder: every number and choice that its mathematics needs, and the size of each logical axis.

One decoder serves all families; a family (`models/families`) says only which of these a config.json means.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary positions (Su et al. 2021, arXiv 2104.09864) and how their frequencies are stretched for longer contexts."""

    theta: float  # base of the frequencies
    scaling: Literal["none", "linear", "llama3"] = "none"  # linear: all frequencies / factor; llama3: only the low ones
    factor: float = 1.0  # frequencies are divided by this
    low_factor: float = 1.0  # llama3: wavelengths above original_context / low_factor are stretched wholly
    high_factor: float = 4.0  # llama3: wavelengths below original_context / high_factor are left alone
    original_context: int = 8192  # llama3: context before stretching, tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSpec:
    """A mixture of experts in place of the feed-forward (Shazeer et al. 2017, arXiv 1701.06538)."""

    count: int  # experts
    per_token: int  # experts that each token visits
    d_ff: int  # width of one expert
    normalise: bool  # the visited experts' weights are made to sum to 1

    def __post_init__(self) -> None:
        if not 1 <= self.per_token <= self.count:
            raise ValueError(f"{self.per_token} experts a token of {self.count} experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A decoder: RMSNorm, rotary positions, grouped-query attention, gated feed-forward or experts. Defaults are Llama's."""

    family: str = "llama"  # which config.json and tensor names it has in files: a key of `models.families.FAMILIES`
    vocab: int  # rows of the embedding
    known_tokens: int | None = None  # ids from here on are padding rows that are never sampled; None: there are none
    d_model: int  # width of the residual stream
    layers: int
    heads: int  # query heads
    kv_heads: int  # key/value heads; each serves heads / kv_heads query heads
    head_dim: int
    d_ff: int  # width of the gated feed-forward
    rope: RopeSpec
    local_rope: RopeSpec | None = None  # of layers with a window; None: the same
    windows: tuple[int, ...] | None = None  # tokens each layer sees, itself included; 0 = all; None: all layers see all
    norm_eps: float  # added to the mean square in RMSNorm
    norm_plus_one: bool = False  # norms multiply by 1 + weight, in float32 (Gemma)
    sandwich_norms: bool = False  # norms also after attention and feed-forward, before the residual sum (Gemma)
    qkv_bias: bool = False  # q, k and v have biases (Qwen 2)
    qk_norm: bool = False  # each head's query and key are normalised before rotation (Qwen 3, Gemma 3)
    activation: Literal["silu", "gelu_tanh"] = "silu"  # of the feed-forward's gate
    scale_embedding: bool = False  # token embeddings are multiplied by sqrt(d_model) (Gemma)
    query_scalar: float | None = None  # scores are divided by its square root; None: head_dim
    attention_softcap: float | None = None  # scores s become cap tanh(s / cap) (Gemma 2)
    logit_softcap: float | None = None  # the same for the logits
    experts: ExpertSpec | None = None  # None: a dense feed-forward
    tied: bool  # the output projection is the embedding, transposed
    context: int  # longest sequence the model was made for, tokens

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads = {self.kv_heads} does not divide heads = {self.heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim = {self.head_dim} is odd; rotary positions turn pairs")
        if self.windows is not None and len(self.windows) != self.layers:
            raise ValueError(f"{len(self.windows)} windows for {self.layers} layers")
        if self.known_tokens is not None and not 0 < self.known_tokens <= self.vocab:
            raise ValueError(f"known_tokens = {self.known_tokens} of a vocabulary of {self.vocab}")

    def axis_size(self, axis: str) -> int:
        """Length of a logical axis as named in the parameter declarations."""
        experts = self.experts
        return {
            "vocab": self.vocab,
            "embed": self.d_model,
            "layer": self.layers,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "mlp": self.d_ff,
            "expert": experts.count if experts else 0,
            "expert_mlp": experts.d_ff if experts else 0,
        }[axis]
