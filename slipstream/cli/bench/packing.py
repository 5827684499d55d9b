"""`slipstream bench packing`: what packing wastes and how evenly it shares work out, against two plainer ways."""

import gzip
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from slipstream.train.packing import Row
    from slipstream.train.shapes import Shapes

SOURCES = ("gsm8k", "math", "mbpp", "leetcode", "humaneval")  # folders of --data with worked solutions
ASKED, ANSWERED = ("question", "problem", "prompt"), ("solution",)
BYTES_PER_TOKEN = 4
SMALL_MODEL = {"linear": 2.7e8, "quadratic": 6.9e4}  # operations a token and a pair of SmolLM2-135M; their ratio is what counts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What a method came to: rows by microbatch, and for each index in a row its tokens."""

    microbatches: "list[tuple[Row | None, ...]]"
    tokens: Sequence[int]


def packing_command(
    data: Annotated[Path | None, typer.Option("--data", help="Directory with gsm8k, math, ...: folders of .jsonl[.gz] files.")] = None,
    model: Annotated[Path | None, typer.Option("--model", help="Model directory: its tokenizer counts, its shape prices.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Sequences a step.")] = 256,
    steps: Annotated[int, typer.Option(min=1, help="Steps drawn from each set of lengths.")] = 20,
    rows: Annotated[int, typer.Option(min=1, help="Rows of a full microbatch.")] = 16,
    devices: Annotated[int, typer.Option(min=1, help="Devices that share each microbatch.")] = 4,
    page_tokens: Annotated[int, typer.Option(min=1, help="Sequences start at multiples of this, as exact numerics have it.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
) -> None:
    """Padding, balance over microbatches and devices, and host time of largest differencing, sort + greedy and pad-to-longest.

    Example: slipstream bench packing --data data
    """
    from slipstream.cli.bench.machine import machine
    from slipstream.train.cost import Cost, model_cost

    counted = "tokens of the model's tokenizer" if model else f"bytes / {BYTES_PER_TOKEN} (no --model)"
    cost = Cost(linear=SMALL_MODEL["linear"], quadratic=SMALL_MODEL["quadratic"])
    if model:
        from slipstream.weights.hf_config import read_spec

        cost = model_cost(read_spec(model), whole_rows=False)
    found = []
    print(f"lengths in {counted}; {samples} sequences a step, {steps} steps, {rows} rows, {devices} devices", file=sys.stderr)
    for name, lengths in _length_sets(data, model, seed).items():
        shapes = _shapes(max(lengths), rows, devices, page_tokens, cost)
        for method, plan in METHODS.items():
            found.append({"lengths": name, "method": method} | _measure(plan, lengths, shapes, samples, steps, seed))
            _tell(found[-1], first=method == next(iter(METHODS)))
    settings = {"samples": samples, "steps": steps, "rows": rows, "devices": devices, "page_tokens": page_tokens, "seed": seed}
    print(json.dumps({"benchmark": "packing", "counted": counted, **settings, "rows_of_table": found, "machine": machine()}))


def _length_sets(data: Path | None, model: Path | None, seed: int) -> dict[str, list[int]]:
    """Named pools of sequence lengths, in tokens: prompt and worked solution of real problems, and a tenfold log-normal."""
    import numpy as np

    from slipstream.core.errors import UsageError

    drawn = np.exp(np.random.default_rng(seed).normal(np.log(1000 / 10**0.5), 0.5, 20_000))
    sets = {"lognormal 100-1000": [int(length) for length in drawn if 100 <= length <= 1000]}
    if data is None:
        return sets
    count = _counter(model)
    for name in SOURCES:
        lengths = [max(2, count(text)) for path in sorted((data / name).glob("*.jsonl*")) for text in _texts(path)]
        if lengths:
            sets[name] = lengths
    if len(sets) == 1:
        raise UsageError(f"--data {data}: none of {', '.join(SOURCES)} is a folder there with .jsonl or .jsonl.gz files with solutions")
    return sets


def _counter(model: Path | None) -> Callable[[str], int]:
    if model is None:
        return lambda text: len(text.encode()) // BYTES_PER_TOKEN
    from slipstream.text.tokenizer import read_tokenizer
    from slipstream.weights.special_ids import read_special_ids

    tokenizer = read_tokenizer(model, read_special_ids(model).eos)
    return lambda text: len(tokenizer.encode(text))


def _texts(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        for line in file:
            row = json.loads(line)
            parts = [next((row[name] for name in names if row.get(name)), None) for names in (ASKED, ANSWERED)]
            if all(isinstance(part, str) for part in parts):
                yield "\n".join(part for part in parts if part)


def _shapes(longest: int, rows: int, devices: int, page_tokens: int, cost: Any) -> "Shapes":
    """Rows of the power of two above the longest sequence, a half and a quarter of it."""
    from slipstream.train.shapes import Shapes

    row_tokens = max(64, page_tokens, 1 << (longest - 1).bit_length())
    ladder = tuple(row_tokens // part for part in (4, 2, 1) if row_tokens // part % page_tokens == 0)
    return Shapes(row_lengths=ladder, tokens=rows * row_tokens, halvings=4, devices=devices, align=page_tokens, cost=cost)


def _differencing(lengths: Sequence[int], shapes: "Shapes") -> _Plan:
    import numpy as np

    from slipstream.core.records import TrainingSequence
    from slipstream.train.packing import plan

    sequences = []
    for index, length in enumerate(lengths):
        zeros = np.zeros(length, np.float32)
        ids = np.full(length, index, np.int32)
        sequences.append(
            TrainingSequence(token_ids=ids, loss_mask=np.arange(length) > 0, advantages=zeros, behaviour_logprobs=zeros, versions=ids)
        )
    found = plan(sequences, shapes)
    return _Plan(microbatches=found.microbatches, tokens=[lengths[block.members[0]] - 1 for block in found.blocks])


def _sort_and_greedy(lengths: Sequence[int], shapes: "Shapes") -> _Plan:
    """Longest first, each into the first of the longest rows with room; rows, dearest first, to the device with the least."""
    from slipstream.train.blocks import aligned

    longest, own = shapes.row_lengths[-1], [length - 1 for length in lengths]
    bins: list[list[int]] = []
    for index in sorted(range(len(own)), key=lambda index: -own[index]):
        size = aligned(own[index], shapes.align)
        fits = (row for row in bins if sum(aligned(own[member], shapes.align) for member in row) + size <= longest)
        row = next(fits, None)
        if row is None:
            bins.append([index])
        else:
            row.append(index)
    made = sorted((_row(longest, members, own, shapes) for members in bins), key=lambda row: -row.cost)
    heights = shapes.cover(len(made), longest)
    shares = [(number, height // shapes.devices) for number, height in enumerate(heights) for _ in range(shapes.devices)]
    parts: list[list[Row]] = [[] for _ in shares]
    for row in made:
        open_parts = [index for index, (_, room) in enumerate(shares) if len(parts[index]) < room]
        parts[min(open_parts, key=lambda index: sum(row.cost for row in parts[index]))].append(row)
    microbatches: list[list[Row | None]] = [[] for _ in heights]
    for (number, room), part in zip(shares, parts, strict=True):
        microbatches[number] += [*part, *[None] * (room - len(part))]
    return _Plan(microbatches=[tuple(microbatch) for microbatch in microbatches], tokens=own)


def _pad_to_longest(lengths: Sequence[int], shapes: "Shapes") -> _Plan:
    """A sequence a row in the order given, each microbatch as wide as its longest: a shape of its own nearly every time."""
    from slipstream.train.blocks import aligned

    own = [length - 1 for length in lengths]
    height = max(1, shapes.tokens // max(lengths) // shapes.devices) * shapes.devices
    microbatches: list[tuple[Row | None, ...]] = []
    for first in range(0, len(own), height):
        members = range(first, min(first + height, len(own)))
        width = aligned(max(own[member] for member in members), shapes.align)
        rows = [_row(width, [member], own, shapes) for member in members]
        microbatches.append((*rows, *[None] * (-len(rows) % shapes.devices)))
    return _Plan(microbatches=microbatches, tokens=own)


METHODS: Mapping[str, Callable[[Sequence[int], "Shapes"], _Plan]] = {
    "karmarkar-karp": _differencing,
    "sort + greedy": _sort_and_greedy,
    "pad to longest": _pad_to_longest,
}


def _row(row_tokens: int, members: Sequence[int], own: Sequence[int], shapes: "Shapes") -> "Row":
    from slipstream.train.packing import Row

    pairs = sum(own[member] * (own[member] + 1) // 2 for member in members)
    return Row(tokens=row_tokens, blocks=tuple(members), cost=shapes.cost.of_row(row_tokens, pairs))


def _measure(
    method: Callable[[Sequence[int], "Shapes"], _Plan], pool: Sequence[int], shapes: "Shapes", samples: int, steps: int, seed: int
) -> dict[str, Any]:
    import numpy as np

    rng = np.random.default_rng(seed)
    figures, seconds, programs = [], [], set()
    for _ in range(steps):
        lengths = rng.choice(pool, samples).tolist()
        started = time.perf_counter()
        found = method(lengths, shapes)
        seconds.append(time.perf_counter() - started)
        programs |= {(len(rows), _width(rows)) for rows in found.microbatches}
        figures.append(_figures(found, shapes))
    mean = np.mean(figures, axis=0)
    return {
        "waste": round(float(mean[0]), 4),
        "waste_max": round(float(np.max(figures, axis=0)[0]), 4),
        "microbatches_max_over_mean": round(float(mean[1]), 4),
        "devices_max_over_mean": round(float(mean[2]), 4),
        "predicted_time": round(float(mean[3]), 4),
        "programs": len(programs),
        "host_milliseconds": round(1e3 * float(np.mean(seconds)), 2),
    }


def _figures(plan: _Plan, shapes: "Shapes") -> tuple[float, float, float, float]:
    """Share of positions without a token; dearest over mean microbatch, a row; dearest over mean device, which wait for each other
    in each microbatch; predicted time over that of the same tokens without padding, evenly shared."""
    cost, spent, waited, per_row, computed = shapes.cost, 0.0, 0.0, [], 0
    for rows in plan.microbatches:
        empty = cost.of_row(_width(rows), 0)
        costs = [row.cost if row else empty for row in rows]
        share = len(rows) // shapes.devices
        waited += shapes.devices * max(sum(costs[first : first + share]) for first in range(0, len(rows), share))
        spent += sum(costs)
        per_row.append(sum(costs) / len(costs) / _width(rows))
        computed += len(rows) * _width(rows)
    ideal = sum(cost.linear * tokens + cost.quadratic * tokens * (tokens + 1) / 2 for tokens in plan.tokens)
    return 1 - sum(plan.tokens) / computed, max(per_row) * len(per_row) / sum(per_row), waited / spent, waited / ideal


def _width(rows: "tuple[Row | None, ...]") -> int:
    return next(row.tokens for row in rows if row)


def _tell(row: Mapping[str, Any], first: bool) -> None:
    if first:
        print(f"\n{row['lengths']}\n  {'method':<16} waste  (worst)  microbatches  devices  time   programs  host ms", file=sys.stderr)
    print(
        f"  {row['method']:<16} {row['waste']:5.1%}  {row['waste_max']:6.1%}  {row['microbatches_max_over_mean']:12.3f}"
        f"  {row['devices_max_over_mean']:7.3f}  {row['predicted_time']:5.3f}  {row['programs']:8}  {row['host_milliseconds']:7.1f}",
        file=sys.stderr,
    )
