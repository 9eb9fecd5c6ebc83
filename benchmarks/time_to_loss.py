"""How much sooner experiment=sprint reaches the final loss of experiment=nanogpt_cpu, in seconds of training.

    python benchmarks/time_to_loss.py [SEED ...]        seeds 1 2 3 without more

For each seed the sprint trains before and after the baseline, so that what slows the machine for a while is seen in both.
The whole validation part is evaluated at fixed intervals; that time does not count as training. Printed is one JSON line:
`ratio`, the median over the seeds of the seconds in which the baseline reaches its final loss over those in which the
sprint is first found to be as low; and what each run came to.
"""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.runs import TimedRun, trained
from configs.command_line import run_script
from configs.schema import UserError

BASELINE = ["experiment=nanogpt_cpu", "trainer.eval_interval=250"]
SPRINT = ["experiment=sprint", "trainer.eval_interval=10"]


def main(arguments: list[str]) -> None:
    if not all(argument.isdecimal() for argument in arguments):
        raise UserError("the arguments are seeds: whole numbers")
    results = [result_of(seed) for seed in map(int, arguments or ["1", "2", "3"])]
    print(json.dumps({"ratio": round(statistics.median(result["ratio"] for result in results), 2), "seeds": results}))


def result_of(seed: int) -> dict[str, Any]:
    """Both presets with one seed."""
    sprints = [trained([*SPRINT, f"seed={seed}"])]
    baseline = trained([*BASELINE, f"seed={seed}"])
    sprints.append(trained([*SPRINT, f"seed={seed}"]))
    wanted = baseline.curve[-1][1]
    baseline_seconds = seconds_to(wanted, baseline)
    sprint_seconds = statistics.mean(seconds_to(wanted, sprint) for sprint in sprints)
    return {
        "seed": seed,
        "ratio": round(baseline_seconds / sprint_seconds, 2),
        "loss": round(wanted, 4),
        "baseline_seconds": round(baseline_seconds, 4),
        "sprint_seconds": round(sprint_seconds, 4),
        "sprint_final_loss": round(sprints[0].curve[-1][1], 4),
        "evaluation_seconds": round(sum(run.seconds["eval"] for run in [baseline, *sprints]), 1),
    }


def seconds_to(loss: float, run: TimedRun) -> float:
    """After how many seconds of training it was first found to have this loss. Raises UserError if it never was."""
    seconds = [seconds for seconds, nats in run.curve if nats <= loss]
    if not seconds:
        raise UserError(f"the sprint ended at {run.curve[-1][1]:.4f} and never came to {loss:.4f}")
    return seconds[0]


if __name__ == "__main__":
    run_script(main, __doc__)
