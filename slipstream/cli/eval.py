"""`slipstream eval`: scores of a model on a task, and two of them compared."""

import json
from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli.precision import PrecisionOption
from slipstream.core.errors import UsageError


def eval_command(
    model: Annotated[Path | None, typer.Option(help="Model directory in Hugging Face layout.")] = None,
    run: Annotated[Path | None, typer.Option(help="Evaluate a checkpoint of this run instead of a model directory.")] = None,
    step: Annotated[int | None, typer.Option(help="Which checkpoint of --run; default the newest.")] = None,
    task: Annotated[
        str | None, typer.Option(help="arithmetic, sums, rows, or a name of the catalogue such as gsm8k; default that of --run.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="The task's rows: .jsonl, .jsonl.gz, .parquet or hub:OWNER/NAME[:CONFIG]:SPLIT.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="A setting of the task, e.g. task.digits=2. Repeatable.")
    ] = None,
    k: Annotated[str, typer.Option(help="Which pass@k beside pass@1, e.g. 1,8,32.")] = "1",
    n: Annotated[int | None, typer.Option(help="Answers a problem; default the largest k.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Default: greedy (0) for one answer a problem, 1 for several.")] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Temperature 0.")] = False,
    limit: Annotated[int | None, typer.Option(help="Problems, always the same first ones of one fixed order; default all.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of sampled answers; default 0.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Most new tokens of an answer; default 256, or the run's.")] = None,
    slots: Annotated[int, typer.Option(help="Answers drawn at a time.")] = 8,
    precision: Annotated[PrecisionOption, typer.Option(help="Of weights and products.")] = PrecisionOption.F32,
    out: Annotated[Path | None, typer.Option(help="JSONL to write: every answer with its verdict.")] = None,
    compare: Annotated[
        tuple[Path, Path] | None, typer.Option(metavar="A.json B.json", help="Compare two saved results of --json; nothing is drawn.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress on standard error.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole result as one JSON object; save it for --compare.")] = False,
) -> None:
    """Score a model on a task: pass@k with 95 % intervals over problems.

    Example: slipstream eval --model models/SmolLM2-135M-Instruct --task gsm8k --data test.jsonl --k 1,8 --n 16 --json > a.json
    """
    if compare is not None:
        if model or run or task:
            raise UsageError("--compare reads two saved results and draws nothing; leave out --model, --run and --task")
        _compare(*compare, as_json)
        return
    from slipstream.runtime.devices import configure_jax
    from slipstream.runtime.eval_settings import EvalSettings

    configure_jax()
    _evaluate(
        EvalSettings(
            model=model,
            run=run,
            step=step,
            task=task,
            data=data,
            overrides=tuple(set_ or ()),
            k=_numbers(k),
            n=n,
            temperature=temperature,
            greedy=greedy,
            limit=limit,
            seed=seed,
            max_tokens=max_tokens,
            slots=slots,
            precision=precision.value,
            out=out,
            quiet=quiet,
        ),
        as_json,
    )


def _evaluate(settings, as_json: bool) -> None:
    from slipstream.runtime.eval_result import result_row
    from slipstream.runtime.evaluation import run_evaluation
    from slipstream.telemetry.evaluation_tables import score_table

    def tell(text: str) -> None:
        typer.echo(text, err=True)

    try:
        found = run_evaluation(settings, (lambda _: None) if settings.quiet else tell)
    except KeyboardInterrupt:
        tell("slipstream: stopped; nothing was written")
        raise typer.Exit(130) from None
    row = result_row(found)
    for warning in row["warnings"]:
        tell(f"warning: {warning}")
    if as_json:
        typer.echo(json.dumps(row, allow_nan=False))
    else:
        _print(score_table(row, [1, *(score.k for score in found.result.pass_at_k)]))


def _compare(one: Path, other: Path, as_json: bool) -> None:
    from dataclasses import asdict

    from slipstream.loop.comparison import compare
    from slipstream.runtime.eval_result import read_result, scored
    from slipstream.telemetry.evaluation_tables import difference_table

    rows = [read_result(path) for path in (one, other)]
    first, second = (scored(row, path) for row, path in zip(rows, (one, other), strict=True))
    differences = [asdict(difference) for difference in compare(first, second)]
    if as_json:
        typer.echo(json.dumps({"first": str(one), "second": str(other), "task": rows[0]["task"], "differences": differences}))
    else:
        _print(difference_table(str(one), str(other), differences))


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise UsageError(f"--k {text}: whole numbers with commas between them are needed, e.g. 1,8,32") from None


def _print(table) -> None:
    from rich.console import Console

    Console().print(table)
