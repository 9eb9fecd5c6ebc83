"""How fast sample.py writes on the CPU, against a model that reads its whole window again for each character, as is common.

    python benchmarks/sampling.py [KEY=VALUE ...]        the sizes of experiment=nanogpt_gpu, or others, without training

All ways are timed in turn in one run, and medians count. Printed is one JSON line: characters a second of one text that is
`recomputed`, of one text and of `many_texts` at once as `sample.py` writes them, and how many times as fast these are
(`one_ratio`, `many_ratio`); how long a late character takes compared with an early one (`late_over_early`); and the seconds
from the start of `python sample.py` to its first character, less those that `import torch` takes.
"""

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from benchmarks.runs import VOCAB_SIZE, train_config
from benchmarks.timing import median_seconds
from configs.command_line import run_script
from configs.schema import UserError
from model.generation import Choice, draw, generate, next_distribution
from model.language_model import LanguageModel

ROOT = Path(__file__).parents[1]
LENGTH, MANY, ROUNDS = 500, 32, 3
CHOICE = Choice(temperature=0.8)


def main(arguments: list[str]) -> None:
    config = train_config(arguments or ["experiment=nanogpt_gpu"])
    model = LanguageModel(config.model, VOCAB_SIZE).eval()
    moments: list[float] = []  # at which the characters of one text came

    def one() -> None:
        moments[:] = [time.perf_counter() for _ in written(model, 1)]

    jobs: dict[str, Callable[[], object]] = {
        "recomputed": lambda: recomputed(model),
        "one": one,
        "many": lambda: list(written(model, MANY)),
    }
    seconds = median_seconds(jobs, ROUNDS)
    speeds = {name: LENGTH * (MANY if name == "many" else 1) / seconds[name] for name in jobs}
    waits = [after - before for before, after in itertools.pairwise(moments)]
    figures = {
        **{f"{name}_chars_per_s": round(speed) for name, speed in speeds.items()},
        "one_ratio": round(speeds["one"] / speeds["recomputed"], 1),
        "many_texts": MANY,
        "many_ratio": round(speeds["many"] / speeds["recomputed"], 1),
        "late_over_early": round(statistics.mean(waits[-100:]) / statistics.mean(waits[:100]), 2),
        "first_character_s": round(seconds_to_the_first_character(), 2),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }
    print(json.dumps(figures))


def written(model: LanguageModel, count: int) -> Iterator[list[int]]:
    """What sample.py does for so many texts."""
    return generate(model, torch.tensor([0]), LENGTH, [torch.Generator() for _ in range(count)], CHOICE)


@torch.no_grad()
def recomputed(model: LanguageModel) -> None:
    """The same for one text, with the last block_size characters read again for each."""
    text, generators = torch.zeros(1, 1, dtype=torch.long), [torch.Generator()]
    for _ in range(LENGTH):
        logits = model(text[:, -model.config.block_size :])[:, -1]
        drawn = draw(next_distribution(logits, CHOICE), generators)
        text = torch.cat((text, drawn[:, None]), dim=1)


def seconds_to_the_first_character() -> float:
    """The median seconds until a new process of sample.py has written a character, less those of importing torch."""
    with tempfile.TemporaryDirectory() as folder:
        small = [sys.executable, str(ROOT / "train.py"), "debug=smoke", "hydra.run.dir=run"]
        if subprocess.run(small, cwd=folder, capture_output=True).returncode:
            raise UserError("train.py debug=smoke failed")
        jobs = {
            "sample": lambda: write_a_character(Path(folder) / "run"),
            "torch": lambda: subprocess.run([sys.executable, "-c", "import torch"], check=True),
        }
        seconds = median_seconds(jobs, ROUNDS)
    return seconds["sample"] - seconds["torch"]


def write_a_character(run: Path) -> None:
    """Start sample.py, and end it once its first character is there. Raises UserError if there is none."""
    command = [sys.executable, str(ROOT / "sample.py"), f"checkpoint={run}", "length=100000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        if not process.stdout.read(1):
            raise UserError("sample.py wrote nothing")
        process.kill()


if __name__ == "__main__":
    run_script(main, __doc__)
