"""Finished runs side by side, by their summaries: what may stand in one table, and the table of a sweep."""

import csv
import io
import math
import statistics
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from configs.json_file import read_object
from configs.overrides import key_and_value, short
from configs.schema import UserError
from configs.sweeping import Record, records_of
from training.files import write_text
from training.folders import SUMMARY, refuse_several
from training.resuming import ENDINGS
from training.tracking import changed_on_the_way

RESULTS = "results.csv"  # in a sweep's folder
FIGURES = ("loss_val", "bits_per_char", "best_step", "steps", "parameters", "chars_per_second", "train_seconds")


def read_summary(folder: Path) -> dict[str, Any]:
    """What summary.json says of the run in a folder, with all that a table shows if it has ended in order.

    Raises UserError if there is none, or one that is not as a run writes it.
    """
    refuse_several(folder)
    try:
        summary = read_object(folder / SUMMARY)
        _prove(summary)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise UserError(f"{folder} holds no finished run, or a damaged one: {error}") from error
    return summary


def _prove(summary: dict[str, Any]) -> None:
    """Raises one of several errors unless the summary is as a run writes it."""
    commands = [summary["overrides"], *(again["overrides"] for again in summary["resumed"])]
    texts = [summary["status"], *(override for overrides in commands for override in overrides)]
    numbers = [again["step"] for again in summary["resumed"]]
    if ended_in_order(summary):
        texts += [summary["model"], summary["corpus"]["sha256"]]
        numbers += [*(summary[key] for key in FIGURES), *summary["baselines"].values()]
    as_written = [isinstance(part, list) for part in commands] + [isinstance(text, str) for text in texts]
    if not all(as_written) or not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
        raise ValueError("a value in it is of another kind than a run writes")


def ended_in_order(summary: dict[str, Any]) -> bool:
    """Whether the loss in a summary is what the run came to."""
    loss = summary["loss_val"]  # None where no evaluation came to a finite one
    return summary["status"] in ENDINGS and loss is not None and math.isfinite(loss)


def refuse_different_texts(summaries: Iterable[dict[str, Any]]) -> None:
    """Raises UserError unless all of them speak of the same text and the same part of it."""
    texts = [
        # Counted with other instructions, the last digits may be others.
        (summary["corpus"]["sha256"], {order: round(nats, 6) for order, nats in summary["baselines"].items()})
        for summary in summaries
    ]
    if any(text != texts[0] for text in texts):
        raise UserError(
            "these runs have different texts or validation parts, so their losses cannot stand in one table"
        )


def code(text: str) -> str:
    """Text as it is, in a cell of a table."""
    return "`" + " ".join(text.splitlines()).replace("`", "'").replace("|", "\\|") + "`"


@dataclass(frozen=True)
class Result:
    """A run, or a job of a sweep that came to none. Only what has ended in order has a summary, and figures."""

    folder: str
    typed: dict[str, str]  # the overrides
    status: str
    error: str = ""
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def to_counted(self) -> float | None:
        """Nats above the counted 5-gram, below it if negative; None where that was not counted."""
        counted = self.summary["baselines"].get("5")
        return None if counted is None else self.summary["loss_val"] - counted


def results_in(folders: Iterable[Path]) -> list[Result]:
    """The runs in folders that hold one, or a sweep of them. Raises UserError for a folder that holds neither."""
    results = []
    for folder in folders:
        if jobs := records_of(folder):
            results += [_result_of_job(folder, job) for job in jobs if job.status != "not begun"]
        else:
            results.append(_result_of_run(folder))
    return results


def _result_of_job(sweep: Path, job: Record) -> Result:
    folder = sweep / (job.folder or str(job.number))
    if job.folder is not None and (folder / SUMMARY).exists():
        return _result_of_run(folder, job.error or "")
    return Result(folder.name, dict(map(key_and_value, job.overrides)), job.status, job.error or "")


def _result_of_run(folder: Path, error: str = "") -> Result:
    summary = read_summary(folder)
    later = [override for again in changed_on_the_way(summary) for override in again["overrides"]]
    typed = dict(map(key_and_value, [*summary["overrides"], *later]))
    return Result(folder.name, typed, summary["status"], error, summary if ended_in_order(summary) else {})


def changed_keys(results: list[Result]) -> list[str]:
    """The options in which these runs differ as they were typed, in the order of typing."""
    keys = dict.fromkeys(key for result in results for key in result.typed)
    return [key for key in keys if len({result.typed.get(key) for result in results}) > 1]


def table_of(results: list[Result]) -> str:
    """Markdown with a row for each combination of what was changed, the lowest mean loss first, over all its seeds.

    The standard deviation is that of a sample, and empty for one. Raises UserError for runs on different texts.
    """
    refuse_different_texts(result.summary for result in results if result.summary)
    keys = [key for key in changed_keys(results) if key != "seed"]
    groups: dict[tuple[str | None, ...], list[Result]] = {}
    for result in results:
        groups.setdefault(tuple(map(result.typed.get, keys)), []).append(result)
    rows = []
    for values, group in groups.items():
        ended = [result for result in group if result.summary]
        losses = [result.summary["loss_val"] for result in ended]
        statuses = Counter(result.status for result in group)
        cells = ["" if value is None else code(short(value)) for value in values] + [
            str(len(ended)),
            f"{statistics.mean(losses):.4f}" if losses else "",
            f"{statistics.stdev(losses):.4f}" if len(losses) > 1 else "",
            _mean([result.to_counted for result in ended], "+.4f"),
            _range([result.summary["parameters"] for result in ended]),
            _mean([result.summary["chars_per_second"] for result in ended], ",.0f"),
            _range([result.summary["best_step"] for result in ended]),
            ", ".join(status if len(statuses) == 1 else f"{count} {status}" for status, count in statuses.items()),
        ]
        rows.append((statistics.mean(losses) if losses else math.inf, cells))
    names = ["seeds", "nats", "std", "to counted 5-gram", "parameters", "characters/s", "best step", "ended"]
    return _markdown([*keys, *names], [cells for _, cells in sorted(rows, key=lambda row: row[0])], len(keys))


def _mean(values: list[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    return format(statistics.mean(known), form) if known else ""


def _range(values: list[int]) -> str:
    return " to ".join(f"{value:,}" for value in sorted({min(values), max(values)})) if values else ""


def _markdown(names: list[str], rows: list[list[str]], texts: int) -> str:
    """A table that can also be read as it is: the first so many columns and the last are texts, the others numbers."""
    left = [column < texts or column == len(names) - 1 for column in range(len(names))]
    widths = [max(3, *map(len, column)) for column in zip(names, *rows, strict=True)]
    rule = ["-" * width if is_left else "-" * (width - 1) + ":" for width, is_left in zip(widths, left, strict=True)]
    lines = [
        [
            f"{cell:<{width}}" if is_left else f"{cell:>{width}}"
            for cell, width, is_left in zip(cells, widths, left, strict=True)
        ]
        for cells in (names, rule, *rows)
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def csv_of(results: list[Result]) -> str:
    """A line for each run: its folder, how it ended, what was changed, and its figures in full."""
    keys, text = changed_keys(results), io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["folder", "status", *keys, *FIGURES, "to_counted_5_gram", "text", "error"])
    for result in results:
        figures = [result.summary.get(key) for key in FIGURES]
        read = [result.to_counted, result.summary["corpus"]["sha256"]] if result.summary else [None, None]
        writer.writerow([result.folder, result.status, *map(result.typed.get, keys), *figures, *read, result.error])
    return text.getvalue()


def show_sweep(sweep: Path) -> None:
    """Print what the jobs of a sweep came to, and write it to its folder. Raises UserError if that cannot be."""
    results = results_in([sweep])
    write_text(sweep / RESULTS, csv_of(results))  # of whatever texts: each line speaks of one run
    try:
        print(f"\n{table_of(results)}", flush=True)
    except UserError as reason:
        print(f"no table: {reason}", file=sys.stderr)
    print(f"Saved in {sweep}: {RESULTS}", flush=True)
