"""How much sooner a sweep of 16 tiny models is done by two workers of hydra/launcher=joblib than one after another.

    python benchmarks/sweeping.py [OPTION ...]        needs requirements-sweeps.txt

Each sweep is `python train.py -m` in a process of its own, with all that it takes from its start to its table. One after
another, the jobs have one thread, and then all cores; the faster of the two counts. Printed is one JSON line: `ratio`, the
seconds of that sweep over those with the workers, which have one thread each.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from configs.command_line import run_script
from configs.schema import UserError

ROOT = Path(__file__).parents[1]
JOBS = 16
TINY = [
    "data=playlet", "data.characters=200000", "model.n_layer=1", "model.n_embd=64", "model.head_size=16",
    "model.n_gram_order=0", "trainer.max_steps=150", "trainer.eval_interval=150", "trainer.sample_length=0",
    "trainer.probe=''",
]  # fmt: skip
WORKERS = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]


def main(arguments: list[str]) -> None:
    options = [*TINY, *arguments, f"seed=range({JOBS})"]
    one_thread = seconds([*options, "trainer.threads=1"])
    beside = seconds(
        [*options, *WORKERS]
    )  # between the two, so that what slows the machine for a while is seen in both
    all_cores = seconds(options)
    figures = {
        "ratio": round(min(one_thread, all_cores) / beside, 2),
        "jobs": JOBS,
        "two_workers_seconds": round(beside, 1),
        "one_after_another_seconds": {"one_thread": round(one_thread, 1), "all_cores": round(all_cores, 1)},
        "cores": os.cpu_count(),
    }
    print(json.dumps(figures))


def seconds(options: list[str]) -> float:
    """How long a sweep takes. Raises UserError with what it said if it did not succeed."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        command = [sys.executable, str(ROOT / "train.py"), "-m", *options]
        env = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
        result = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
        if result.returncode:
            raise UserError(result.stderr.strip().splitlines()[-1])
        return time.perf_counter() - started


if __name__ == "__main__":
    run_script(main, __doc__)
