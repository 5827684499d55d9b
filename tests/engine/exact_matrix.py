"""Exact mode over the whole matrix: `python -m tests.engine.exact_matrix [FAMILY ...]` prints a table of counts, all families by default.

A line a family, precision and arrangement: log-probs compared, and those with the same 32 bits. Exit code 1 where any differ.
"""

import sys
import time

import jax

from tests.engine import exact
from tests.engine.exact import CHUNKS, Cell
from tests.goldens.read import FAMILIES

SAMPLER: dict[str, Cell] = {
    "sampler: alone": exact.alone,
    "sampler: other company": exact.other_company,
    "sampler: many rows and few": exact.many_rows_and_few,
    "sampler: joining, leaving": exact.joining_and_leaving,
    **{f"sampler: chunks of {tokens}": exact.chunks(tokens) for tokens in CHUNKS},
    "sampler: shuffled pages": exact.shuffled_pages,
    "sampler: two of them": exact.two_samplers,
    "sampler: turns, pages kept": exact.turns,
}
LEARNER: dict[str, Cell] = {
    "learner: packed, scan": exact.scored(),
    "learner: unrolled": exact.scored(layers="unroll"),
    "learner: remat, much padding": exact.scored(remat=True, row_tokens=256, rows=3),
    "learner: unrolled, remat, long row": exact.scored(layers="unroll", remat=True, row_tokens=128, rows=1),
    "learner: gradient's program": exact.differentiated,
    "learner: another process": exact.elsewhere(1),
    "learner: 4 devices elsewhere": exact.elsewhere(4),
}
CELLS = SAMPLER | LEARNER


def main(families: list[str]) -> int:
    if unknown := [family for family in families if family not in FAMILIES]:
        print(f"unknown {', '.join(unknown)}; known: {', '.join(FAMILIES)}", file=sys.stderr)
        return 2
    total, wrong = exact.NOTHING, 0
    for family in families or FAMILIES:
        for precision in ("f32", "bf16"):
            since = time.monotonic()
            for name, cell in CELLS.items():
                count = cell(family, precision)
                mark = "" if count.exact else "   DIFFERENT"
                print(f"{family:14} {precision:5} {name:34} {count.equal:6} of {count.compared:6}{mark}", flush=True)
                total, wrong = total + count, wrong + (not count.exact)
            print(f"{family:14} {precision:5} {time.monotonic() - since:.0f} s", flush=True)
            jax.clear_caches()  # thousands of programs are more pieces of memory than Linux lets a process have
    print(f"all: {total.equal} of {total.compared} log-probs have the same bits; {wrong} cells differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
