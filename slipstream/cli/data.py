"""`slipstream data`: what is in a data file, and a better file made of it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from slipstream.envs.catalog.entry import Entry
    from slipstream.envs.curation.curate import Dropped, Unseen
    from slipstream.envs.datasets import Dataset

data_app = typer.Typer(help="Look at data files, and curate them.", no_args_is_help=True)
TaskOption = Annotated[str, typer.Option("--task", help="Task of the catalogue to read the rows by; auto: the one that fits most of them.")]
ModelOption = Annotated[Path | None, typer.Option(help="Model directory whose tokenizer counts tokens.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@data_app.command("inspect")
def inspect_command(
    what: Annotated[str, typer.Argument(help="A .jsonl, .jsonl.gz or .parquet file, hub:OWNER/NAME[:CONFIG]:SPLIT, or a task's name.")],
    task: TaskOption = "auto",
    model: ModelOption = None,
    samples: Annotated[int, typer.Option(min=0, help="Rows to show.")] = 3,
    as_json: JsonOption = False,
) -> None:
    """Rows, fields, lengths, kinds of answers and duplicates of a file; or what the catalogue knows of a task.

    Example: slipstream data inspect train.jsonl.gz --task gsm8k
    """
    from slipstream.envs.catalog.registry import find_entry
    from slipstream.envs.curation.inspection import inspect
    from slipstream.envs.datasets import read_dataset

    if what.replace("_", "").isalnum() and not Path(what).exists():
        found = _described(find_entry(what, "NAME"))
    else:
        data = read_dataset(what)
        sizes = {"characters": len, **({"tokens": _token_counter(model)} if model else {})}
        found = inspect(data, _entry(task, data), sizes, samples)
    typer.echo(json.dumps(found) if as_json else _table(found))


@data_app.command("curate")
def curate_command(
    source: Annotated[str, typer.Argument(metavar="IN", help="Rows, as for inspect.")],
    out: Annotated[Path, typer.Option(help=".jsonl, .jsonl.gz or .parquet to write; OUT.dropped.jsonl tells what went, and why.")],
    against: Annotated[list[str] | None, typer.Option(help="Evaluation rows that must not be trained on; may be given again.")] = None,
    task: TaskOption = "auto",
    words: Annotated[int, typer.Option(min=0, help="Words in a row shared with an evaluation row that are too many; 0: whole texts.")] = 13,
    near: Annotated[float, typer.Option(min=0.1, max=1.0, help="Similarity of near duplicates; 1: the same text only.")] = 0.8,
    pass_rates: Annotated[Path | None, typer.Option(help="JSONL of id and pass_rate, a run directory, or its rollouts.")] = None,
    min_pass: Annotated[float | None, typer.Option(min=0, max=1, help="Least pass rate; default: more than none right.")] = None,
    max_pass: Annotated[float | None, typer.Option(min=0, max=1, help="Largest pass rate; default: less than all right.")] = None,
    min_chars: Annotated[int | None, typer.Option(min=0, help="Shortest question.")] = None,
    max_chars: Annotated[int | None, typer.Option(min=1, help="Longest question.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest question in tokens of --model.")] = None,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Drop what cannot be used, duplicates, overlaps with evaluation rows, and rows that are too long, too hard or too easy.

    Example: slipstream data curate train.jsonl --out better.jsonl --against test.jsonl --pass-rates runs/gsm8k-1
    """
    from slipstream.core.errors import UsageError
    from slipstream.envs.curation.curate import Rules, counts, curate
    from slipstream.envs.curation.files import check_outputs, dropped_path, write_dropped, write_rows
    from slipstream.envs.curation.inspection import read_as
    from slipstream.envs.curation.pass_rates import read_pass_rates
    from slipstream.envs.datasets import read_dataset

    if max_tokens is not None and (model is None or min_chars is not None or max_chars is not None):
        raise UsageError("--max-tokens needs --model DIR for its tokenizer, and goes without --min-chars and --max-chars")
    if pass_rates is None and (min_pass is not None or max_pass is not None):
        raise UsageError("--min-pass and --max-pass need --pass-rates FILE")
    check_outputs(out, [source, *(against or ())])
    data = read_dataset(source)
    entry = _entry(task, data)
    items, skipped = read_as(entry, data)
    rules = Rules(
        least=min_chars or 0,
        most=max_tokens if max_tokens is not None else max_chars,
        unit="characters" if max_tokens is None else "tokens",
        similarity=near,
        words=words,
        min_pass=min_pass,
        max_pass=max_pass,
        rates=read_pass_rates(pass_rates) if pass_rates else None,
    )
    size = _token_counter(model) if model and max_tokens is not None else len
    kept, dropped = curate(items, skipped, rules, [_unseen(name, entry) for name in against or ()], size)
    if not kept:
        raise UsageError(f"no row of {source} is left: {', '.join(f'{count} {why}' for why, count in counts(dropped).items())}")
    write_rows(out, kept)
    write_dropped(dropped_path(out), dropped)
    _report(out, entry, len(kept), dropped, counts(dropped), as_json)


def _report(out: Path, entry: "Entry", kept: int, dropped: "list[Dropped]", reasons: dict[str, int], as_json: bool) -> None:
    from slipstream.envs.curation.files import dropped_path

    found = {"out": str(out), "task": entry.name, "rows": kept + len(dropped), "kept": kept, "dropped": reasons}
    if as_json:
        typer.echo(json.dumps(found | {"dropped_file": str(dropped_path(out))}))
        return
    typer.echo(f"{out}: {kept} of {kept + len(dropped)} rows kept, read as {entry.name}")
    for reason, count in reasons.items():
        first = next(row for row in dropped if row.reason == reason)
        typer.echo(f"  {reason:15}{count:8}  e.g. {first.id or f'line {first.line}'}: {first.detail[:80]}")
    typer.echo(f"{dropped_path(out)} names them all")


def _entry(task: str, data: "Dataset") -> "Entry":
    from slipstream.envs.catalog.registry import find_entry
    from slipstream.envs.curation.inspection import guess_entry

    return guess_entry(data) if task == "auto" else find_entry(task, "--task")


def _unseen(source: str, entry: "Entry") -> "Unseen":
    """The questions of an evaluation file, whether or not their answers can be judged."""

    from slipstream.envs.catalog.entry import read_items
    from slipstream.envs.curation.curate import Unseen
    from slipstream.envs.curation.inspection import guess_entry
    from slipstream.envs.datasets import read_dataset, refusal

    data = read_dataset(source)
    items, skipped = read_items(entry, data)
    if skipped:
        items, skipped = read_items(guess_entry(data), data)
    if skipped:
        raise refusal(source, skipped, f"--against: {len(skipped)} rows have no question that can be compared")
    return Unseen(name=data.name, ids=[item.id for item in items], questions=[item.meaning.question for item in items])


def _token_counter(model: Path) -> Callable[[str], int]:
    from slipstream.text.tokenizer import read_tokenizer

    tokenizer = read_tokenizer(model, ())
    return lambda text: len(tokenizer.encode(text))


def _described(entry: "Entry") -> dict[str, Any]:
    return {
        "task": entry.name,
        "about": entry.about,
        "source": entry.source,
        "licence": entry.licence,
        "splits": entry.splits,
        "question": list(entry.question),
        "answer": list(entry.answer),
        "grader": entry.grader,
        "format_hash": entry.form.hash,
        "template": entry.form.template,
        "instruction": entry.form.instruction,
    }


def _table(found: dict[str, Any]) -> str:
    """Name and value a line; nested ones in one line each, sample rows cut."""
    lines = []
    for name, value in found.items():
        if isinstance(value, dict) and any(isinstance(inner, dict) for inner in value.values()):
            lines += [f"{name:16}"] + [f"  {key:14}{_flat(inner)}" for key, inner in value.items()]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for row in value:
                lines += ["", *(f"  {key:10}{str(inner)[:300]}" for key, inner in row.items())]
        elif isinstance(value, list) and len(value) > 3:
            lines += [f"{name:16}"] + [f"  {inner}" for inner in value]
        else:
            lines.append(f"{name:16}{_flat(value)}")
    return "\n".join(lines)


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {inner}" for key, inner in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(str(inner) for inner in value) or "none"
    return str(value)
