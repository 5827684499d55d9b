"""The host's side of a dispatch: a plan's chunks and rows as the small arrays that the programs take. Pure numpy."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.engine.plan import Chunk, Decoding, Table
from slipstream.engine.programs import Rows, Units
from slipstream.engine.sampling import SamplingRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Sizes of the programs' arguments; fixed for the life of an engine."""

    rows: int  # of the largest decode program, and pages of one copy
    units: int  # of one prefill call
    unit_tokens: int
    table_pages: int
    page_tokens: int
    scratch: int  # the page that unused rows write to


def prefill_calls(chunks: Iterable[Chunk], shapes: Shapes) -> list[Units]:
    """The chunks cut into units, in order, as many a call as fit."""
    cut = [unit for chunk in chunks for unit in _cut(chunk, shapes.unit_tokens)]
    return [_units(cut[start : start + shapes.units], shapes) for start in range(0, len(cut), shapes.units)]


def decode_rows(decoding: Sequence[Decoding], sampling: SamplingRows, shapes: Shapes) -> Rows:
    """The sequences in the order given, in a program of as many rows as `sampling` has."""
    count = len(sampling.temperature)
    numbers = {name: np.zeros(count, np.int32) for name in ("token", "position", "last_position")}
    active = np.arange(count) < len(decoding)
    tables = np.full((count, shapes.table_pages), shapes.scratch, np.int32)
    for place, one in enumerate(decoding):
        numbers["token"][place] = one.token
        numbers["position"][place] = one.position
        numbers["last_position"][place] = one.position + one.steps_left
        tables[place, : len(one.table)] = one.table
    return Rows(**numbers, active=active, tables=tables, sampling=sampling)  # pyright: ignore[reportArgumentType] - numpy until the call


def copy_arguments(copies: Sequence[tuple[int, int]], shapes: Shapes) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(sources, targets) of a fixed length; what is left over copies scratch to itself."""
    for start in range(0, len(copies), shapes.rows):
        some = copies[start : start + shapes.rows]
        padded = [*some, *[(shapes.scratch, shapes.scratch)] * (shapes.rows - len(some))]
        sources, targets = np.array(padded, np.int32).T
        yield sources, targets


def _cut(chunk: Chunk, unit_tokens: int) -> Iterator[tuple[int, tuple[int, ...], Table]]:
    for start in range(0, len(chunk.token_ids), unit_tokens):
        yield chunk.start + start, chunk.token_ids[start : start + unit_tokens], chunk.table


def _units(cut: Sequence[tuple[int, tuple[int, ...], Table]], shapes: Shapes) -> Units:
    token_ids = np.zeros((shapes.units, shapes.unit_tokens), np.int32)
    positions = np.zeros_like(token_ids)
    places = np.full_like(token_ids, shapes.scratch)
    tables = np.full((shapes.units, shapes.table_pages), shapes.scratch, np.int32)
    for unit, (start, tokens, table) in enumerate(cut):
        held = np.arange(start, start + len(tokens))
        token_ids[unit, : len(tokens)], positions[unit, : len(tokens)] = tokens, held
        places[unit, : len(tokens)] = np.array(table, np.int32)[held // shapes.page_tokens]
        tables[unit, : len(table)] = table
    return Units(token_ids=token_ids, positions=positions, places=places, tables=tables)  # pyright: ignore[reportArgumentType]
