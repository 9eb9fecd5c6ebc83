"""Print finished runs as the table of README.md, the counting baselines in their places among them.

    python docs/results_table.py runs/SWEEP/* runs/NAME
    python docs/results_table.py --write runs/SWEEP/* runs/NAME        puts it into README.md

Each folder holds one run. The loss is that of its best evaluation, the line is the first long one of the sample beside it.
"""

import math
import shlex
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from configs.command_line import run_script
from configs.schema import UserError
from training.files import write_text
from training.folders import SAMPLES
from training.previews import samples_by_step
from training.results import code, ended_in_order, read_summary, refuse_different_texts
from training.tracking import changed_on_the_way

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- results: made by docs/results_table.py -->\n", "<!-- end of results -->\n"
HEADER = """| model | command | steps | nats | bits | parameters | minutes | a line it writes |
|---|---|--:|--:|--:|--:|--:|---|
"""


def table_of(folders: list[Path]) -> str:
    """The table, the largest loss first."""
    folders = [folder for folder in folders if not folder.is_file()]  # a sweep has a file beside its runs
    if not folders:
        raise UserError("name the folders of the runs that belong in the table")
    runs = [read_run(folder) for folder in folders]
    refuse_different_texts(summary for summary, _ in runs)
    baselines = runs[0][0]["baselines"]
    rows = [(nats, f"| counted {order}-gram | every run | | {loss(nats)} | | | |") for order, nats in baselines.items()]
    rows += [(summary["loss_val"], line) for summary, line in runs]
    return HEADER + "".join(f"{line}\n" for _, line in sorted(rows, reverse=True))


def write(table: str, readme: Path = README) -> None:
    """Put the table in its place in the README."""
    text = readme.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not after:
        raise UserError(f"{readme} has no place for the table: the lines {BEGIN.strip()} and {END.strip()}")
    write_text(readme, before + BEGIN + table + END + after)


def read_run(folder: Path) -> tuple[dict[str, Any], str]:
    """summary.json of a run that has ended in order, and its line of the table."""
    summary = read_summary(folder)
    if not ended_in_order(summary):
        raise UserError(f"{folder} holds a run that has not ended in order: it is {summary['status']}")
    return summary, row(folder, summary)


def row(folder: Path, summary: dict[str, Any]) -> str:
    """One line of the table."""
    command = code(shlex.join(["python", "train.py", *summary["overrides"]]))
    for again in changed_on_the_way(summary):
        command += f", after step {again['step']:,} {code(shlex.join(again['overrides']))}"
    steps, size, minutes = f"{summary['steps']:,}", f"{summary['parameters']:,}", f"{summary['train_seconds'] / 60:.2f}"
    if summary["best_step"] != summary["steps"]:
        steps = f"{summary['best_step']:,} of {steps}"
    line = written_line(folder, summary["best_step"])
    return f"| {summary['model']} | {command} | {steps} | {loss(summary['loss_val'])} | {size} | {minutes} | {line} |"


def loss(nats: float) -> str:
    """A loss in nats and in bits, as two cells."""
    return f"{nats:.4f} | {nats / math.log(2):.4f}"


def written_line(folder: Path, step: int) -> str:
    """The first line of some length, or its beginning, that the model wrote after this step; nothing without samples."""
    samples = folder / SAMPLES
    if not samples.exists():
        return ""
    texts = samples_by_step(samples.read_text(encoding="utf-8", errors="replace"))
    line = next((line for line in texts.get(step, "").splitlines() if len(line) >= 20), "")
    return code(line[:40]) if line else ""


def main(arguments: list[str]) -> None:
    names = [name for name in arguments if name != "--write"]
    if unknown := [name for name in names if name.startswith("-")]:
        raise UserError(f"there is no option {unknown[0]}: there is --write")
    table = table_of([Path(name) for name in names])
    if names != arguments:
        write(table)
    else:
        print(table, end="")


if __name__ == "__main__":
    run_script(main, __doc__)
