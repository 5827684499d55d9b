"""`slipstream bench turns`: conversations with a tool, with and without the pages that are kept from one turn to the next.

The same conversations are drawn both ways: four prompts of 256 tokens (a task and its tools), four episodes of each, turns in which the
model draws 8 to 39 tokens and is answered with 40. What is drawn must be the same to the bit, or the benchmark fails.
"""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from slipstream.cli.precision import PrecisionOption
from slipstream.core.errors import RunFailed

if TYPE_CHECKING:
    from slipstream.core.records import Sample
    from slipstream.models.weight import Precision

PROMPTS, GROUP, PROMPT_TOKENS = 4, 4, 256
DRAWN_TOKENS, ANSWER_TOKENS = range(8, 40), 40
TOKENS_PER_DISPATCH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """All conversations, once."""

    samples: list["Sample"]
    seconds: float
    cpu_seconds: float  # of all threads: what other programs do beside it does not count
    prefilled_tokens: int
    reused_tokens: int


def turns_command(
    model: Annotated[Path | None, typer.Option("--model", help="Model directory; random weights of SmolLM2-135M's shape without.")] = None,
    precision: Annotated[list[PrecisionOption] | None, typer.Option(help="Repeatable; default f32.")] = None,
    exact: Annotated[bool, typer.Option(help="Also in exact numerics, where drawn tokens are kept too.")] = True,
    turns: Annotated[int, typer.Option(min=2, help="Turns of the model, an episode.")] = 4,
    page_tokens: Annotated[int, typer.Option(min=8, help="Positions of a page.")] = 64,
) -> None:
    """Seconds and prefilled tokens of episodes with several turns.

    Example: slipstream bench turns --model models/SmolLM2-135M-Instruct
    """
    from slipstream.cli.bench.machine import machine
    from slipstream.cli.bench.shape import model_or_random

    spec, params = model_or_random(model)
    chosen: list[Precision] = [cast("Precision", choice.value) for choice in precision or [PrecisionOption.F32]]
    kinds: list[tuple[Precision, bool]] = [(kind, exactly) for kind in chosen for exactly in ([False, True] if exact else [False])]
    rows = [row for kind, exactly in kinds for row in _compared(spec, params, kind, exactly, turns, page_tokens)]
    print(json.dumps({"benchmark": "turns", "model": str(model), "rows": rows, "machine": machine()}))


def _compared(spec, params, precision: "Precision", exact: bool, turns: int, page_tokens: int) -> list[dict[str, Any]]:
    """A row without and one with what is kept. Raises RunFailed where they draw different bits."""
    found: dict[bool, Played] = {}
    for keep in (False, True):
        engine = _engine(spec, params, precision, exact, turns, page_tokens, keep)
        _play(engine, spec, 2, seed=1)  # compiles
        found[keep] = _play(engine, spec, turns, seed=0)
    for one, other in zip(found[True].samples, found[False].samples, strict=True):
        if one.completion_ids.tolist() != other.completion_ids.tolist() or one.logprobs.tobytes() != other.logprobs.tobytes():
            raise RunFailed(f"{precision}, {'exact' if exact else 'fast'}: {one.key} is drawn otherwise where pages are kept")
    return [_told(precision, exact, turns, keep, played) for keep, played in found.items()]


def _engine(spec, params, precision: "Precision", exact: bool, turns: int, page_tokens: int, keep: bool):
    from slipstream.core.clock import SystemClock
    from slipstream.core.records import WeightVersion
    from slipstream.engine.engine import Engine

    engine = Engine(
        spec,
        id="bench",
        clock=SystemClock(),
        slots=PROMPTS * GROUP,
        max_tokens=PROMPT_TOKENS + turns * (DRAWN_TOKENS[-1] + ANSWER_TOKENS),
        tokens_per_dispatch=TOKENS_PER_DISPATCH,
        precision=precision,
        exact=exact,
        page_tokens=page_tokens,
        keep_ended=keep,
    )
    engine.load(WeightVersion(lineage=0, version=0, params=params))
    return engine


def _play(engine, spec, turns: int, seed: int) -> Played:
    """Every conversation goes on as soon as its turn has ended."""
    import numpy as np

    from slipstream.core.records import SampleRequest
    from slipstream.core.rng import generator

    known, samples = spec.known_tokens or spec.vocab, list[Any]()
    said = {(prompt, one): generator(seed, "bench turns", prompt).integers(0, known, PROMPT_TOKENS) for prompt, one in _episodes()}
    answers = {key: generator(seed, "bench turns answers", *key).integers(0, known, (turns, ANSWER_TOKENS)) for key in said}

    lengths = {key: generator(seed, "bench turns lengths", *key).choice(DRAWN_TOKENS, turns) for key in said}

    def ask(key: tuple[int, int], turn: int) -> None:
        ids, number = said[key].astype(np.int32), (key[0] * GROUP + key[1]) * turns + turn
        name = f"{seed} {key[0]} {turn}"
        engine.submit(
            SampleRequest(
                key=(name, key[1]), prompt_ids=ids, seed=number, max_new_tokens=int(lengths[key][turn]), temperature=1.0, stop_ids=()
            )
        )

    prefilled, reused, started, spent = engine.prefilled_tokens, engine.reused_tokens, time.perf_counter(), time.process_time()
    for key in said:
        ask(key, 0)
    while engine.waiting() or engine.running():
        for sample in engine.step():
            samples.append(sample)
            _, prompt, turn = map(int, sample.key[0].split())
            key = (prompt, sample.key[1])
            said[key] = np.concatenate([said[key], sample.completion_ids, answers[key][turn]])
            if turn + 1 < turns:
                ask(key, turn + 1)
    return Played(
        samples=sorted(samples, key=lambda sample: sample.key),
        seconds=time.perf_counter() - started,
        cpu_seconds=time.process_time() - spent,
        prefilled_tokens=engine.prefilled_tokens - prefilled,
        reused_tokens=engine.reused_tokens - reused,
    )


def _episodes() -> list[tuple[int, int]]:
    return [(prompt, one) for prompt in range(PROMPTS) for one in range(GROUP)]


def _told(precision: str, exact: bool, turns: int, keep: bool, played: Played) -> dict[str, Any]:
    row = {
        "precision": precision,
        "numerics": "exact" if exact else "fast",
        "kept": keep,
        "turns": turns,
        "seconds": round(played.seconds, 2),
        "cpu_seconds": round(played.cpu_seconds, 2),
        "drawn_tokens": sum(len(sample.completion_ids) for sample in played.samples),
        "prefilled_tokens": played.prefilled_tokens,
        "reused_tokens": played.reused_tokens,
    }
    words = "kept" if keep else "computed again"
    print(
        f"{precision} {row['numerics']:<5} {words:<14} {row['prefilled_tokens']:>6} tokens prefilled, {row['seconds']:>6.2f} s",
        file=sys.stderr,
    )
    return row
