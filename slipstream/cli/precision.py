"""The precisions that an engine computes in, for the commands that sample."""

from enum import StrEnum


class PrecisionOption(StrEnum):
    """A value of --precision."""

    BF16 = "bf16"
    INT8 = "int8"
    FP8 = "fp8"
    F32 = "f32"
