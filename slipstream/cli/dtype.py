"""The types that weights can be written as, for the commands that write model directories."""

from enum import StrEnum


class Dtype(StrEnum):
    """A value of --dtype."""

    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
