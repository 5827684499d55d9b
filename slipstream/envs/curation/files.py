"""The files that curation writes: the rows that stay, with their ids, and a line for each that went."""

import gzip
import io
import json
from collections.abc import Sequence
from pathlib import Path

from slipstream.core.errors import UsageError
from slipstream.envs.catalog.entry import Item
from slipstream.envs.curation.curate import Dropped
from slipstream.telemetry.atomic import atomic_write_bytes

_ENDINGS = (".jsonl", ".jsonl.gz", ".parquet")


def dropped_path(out: Path) -> Path:
    """Where the rows that went are told."""
    name = next(out.name.removesuffix(ending) for ending in _ENDINGS if out.name.endswith(ending))
    return out.with_name(f"{name}.dropped.jsonl")


def check_outputs(out: Path, sources: Sequence[str]) -> None:
    """Raises UsageError where `out` has no known ending, its folder is absent, or it would overwrite a source."""
    if not out.name.endswith(_ENDINGS):
        raise UsageError(f"--out {out}: the name must end in {', '.join(_ENDINGS)}")
    if not out.absolute().parent.is_dir():
        raise UsageError(f"--out {out}: there is no directory {out.absolute().parent}")
    for source in sources:
        if out.exists() and Path(source).exists() and out.samefile(source):
            raise UsageError(f"--out {out} is a file that is read; write to another one")


def write_rows(out: Path, items: Sequence[Item]) -> None:
    """The rows as they were, each with its id, as JSON lines or Parquet by the name's ending. A whole file or none."""
    rows = [{"id": item.id, **item.row.fields, **({"id": item.id} if "id" in item.row.fields else {})} for item in items]
    if out.name.endswith(".parquet"):
        import pyarrow as pa
        import pyarrow.parquet as pq

        buffer = io.BytesIO()
        try:
            pq.write_table(pa.Table.from_pylist(rows), buffer, compression="zstd")
        except pa.ArrowException as error:
            raise UsageError(f"--out {out}: the rows are no table ({error}); write .jsonl instead") from error
        atomic_write_bytes(out, buffer.getvalue())
        return
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    atomic_write_bytes(out, gzip.compress(text, mtime=0) if out.name.endswith(".gz") else text)


def write_dropped(path: Path, dropped: Sequence[Dropped]) -> None:
    """One JSON object a row that went: id, line, reason, detail."""
    rows = ({"id": row.id, "line": row.line, "reason": str(row.reason), "detail": row.detail} for row in dropped)
    atomic_write_bytes(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
