"""Rows of tables: Parquet files, and data sets of the Hugging Face hub (extra `hub`). Libraries are imported when a table is read."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from slipstream.core.errors import UsageError

HUB = "hub:"


def parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet file in its order. Raises UsageError when it is absent or no Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches():
                yield from batch.to_pylist()
    except FileNotFoundError:
        raise UsageError(f"data file {path} does not exist") from None
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"data file {path} cannot be read as Parquet: {error}") from error


def hub_rows(address: str) -> Iterator[dict[str, Any]]:
    """The rows of `hub:OWNER/NAME:SPLIT` or `hub:OWNER/NAME:CONFIG:SPLIT`.

    Raises UsageError for an address of another form, where the extra is not installed, and when the set cannot be had.
    """
    name, *rest = address.removeprefix(HUB).split(":")
    if not name or len(rest) not in (1, 2) or not all(rest):
        raise UsageError(f"{address}: a hub set is written hub:OWNER/NAME:SPLIT or hub:OWNER/NAME:CONFIG:SPLIT")
    try:
        library = import_module("datasets")
    except ImportError as error:
        raise UsageError(f"{address}: sets of the hub need the extra 'hub' (pip install 'slipstream[hub]'): {error}") from error
    config, split = (None, rest[0]) if len(rest) == 1 else rest
    try:
        yield from library.load_dataset(name, config, split=split)
    except (OSError, ValueError, LookupError, RuntimeError) as error:
        raise UsageError(f"{address} cannot be had: {error}") from error
