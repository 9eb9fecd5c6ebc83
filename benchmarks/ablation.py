"""What each choice of the default model is worth: every one turned off by itself, at equal steps and at equal seconds.

    python benchmarks/ablation.py [STEPS [SEED ...]]        400 steps and seeds 1 2 3 without more

Prints the table of docs/speed.md: mean and spread (largest less smallest) over the seeds of the whole validation part's
loss. The seeds go round all choices in turn, so that what disturbs the machine disturbs them alike. For equal seconds
each choice gets as many steps as it has time for in the seconds of the full model's, with a schedule of that length.
"""

import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.runs import trained
from configs.command_line import run_script
from configs.schema import UserError

CHOICES = {
    "the default model": [],
    "no n-grams": ["model.n_gram_order=0"],
    "no previous characters": ["model.n_previous=0"],
    "neither": ["model.n_gram_order=0", "model.n_previous=0"],
    "positions learned": ["model.positions=learned"],
    "no query/key normalisation": ["model.qk_norm=false"],
    "GELU": ["model.activation=gelu"],
    "root mean square norm": ["model.norm=rms_norm"],
    "bigram table from zero": ["model.bigram_init=zero"],
    "no bigram table": ["model.bigram=false"],
    "tables learn as matrices do": ["optimizer.table_lr=3e-3"],
    "Muon": ["optimizer=muon"],
}
HEADER = """| choice | loss at equal steps | spread | time of a step | loss at equal seconds | spread |
|---|--:|--:|--:|--:|--:|
"""


def main(arguments: list[str]) -> None:
    if not all(argument.isdecimal() for argument in arguments):
        raise UserError("the arguments are a number of steps and seeds: whole numbers")
    steps, *seeds = map(int, arguments or ["400"])
    print(table(steps, seeds or [1, 2, 3]), end="")


def table(steps: int, seeds: list[int]) -> str:
    """The table, a line for each choice."""
    equal_steps, seconds = losses_and_seconds(dict.fromkeys(CHOICES, steps), seeds)
    full = next(iter(CHOICES))
    slower = {choice: seconds[choice] / seconds[full] for choice in CHOICES}
    equal_seconds, _ = losses_and_seconds({choice: max(1, round(steps / slower[choice])) for choice in CHOICES}, seeds)
    lines = [
        f"| {choice} | {cells(equal_steps[choice])} | {slower[choice]:.2f} | {cells(equal_seconds[choice])} |\n"
        for choice in CHOICES
    ]
    return HEADER + "".join(lines)


def losses_and_seconds(steps: dict[str, int], seeds: list[int]) -> tuple[dict[str, list[float]], dict[str, float]]:
    """The final loss of each choice for each seed, and its median seconds of training."""
    losses: dict[str, list[float]] = {choice: [] for choice in CHOICES}
    seconds: dict[str, list[float]] = {choice: [] for choice in CHOICES}
    for seed in seeds:
        for choice, options in CHOICES.items():
            length = [f"trainer.max_steps={steps[choice]}", f"trainer.eval_interval={steps[choice]}"]
            run = trained([*options, *length, f"seed={seed}"])
            losses[choice].append(run.latest["loss_val"])
            seconds[choice].append(run.seconds["train"])
    return losses, {choice: statistics.median(of_choice) for choice, of_choice in seconds.items()}


def cells(losses: list[float]) -> str:
    """Mean and spread, as two cells."""
    return f"{statistics.mean(losses):.4f} | {max(losses) - min(losses):.4f}"


if __name__ == "__main__":
    run_script(main, __doc__)
