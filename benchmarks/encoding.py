"""How fast a large text is encoded on one core, in how much memory, and how soon training starts once it is.

    python benchmarks/encoding.py [MEGABYTES] [FILE]     1,000 of the Playlet, or of the text of a file, again and again

The text and what is made of it lie in a temporary folder for so long. Two processes train on it, each on one core and up to
the end of the first step, without the evaluation before it. The first finds nothing encoded: its megabytes of text a second
are printed, and the most memory that it has held until all was encoded and until the first step was done, all of PyTorch
included. The second finds the first one's work: its seconds are printed, from when everything is imported and the options
are read. All as one JSON line.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from benchmarks.runs import train_config
from configs.command_line import run_script
from configs.schema import UserError
from data import corpus as texts
from data import encoded, playlet
from data.batches import Batches
from data.reading import read_text
from train import loss_of
from training.run import Run

FIRST_STEP = "--first-step"  # what a process is told to do
NAME = "text.txt"


def main(arguments: list[str]) -> None:
    if arguments[:1] == [FIRST_STEP]:
        print(json.dumps(first_step(Path(arguments[1]))))
        return
    number, *file = arguments or ["1000"]
    if not number.isdecimal() or int(number) < 1 or len(file) > 1:
        raise UserError("give a number of megabytes, 1 or more, and the name of a file if you like")
    text = read_text(Path(file[0])) if file else playlet.write(1_000_000)[0]
    with tempfile.TemporaryDirectory() as name:
        size = write(text, Path(name) / NAME, int(number) * 1_000_000)
        first, second = (in_a_process(name) for _ in range(2))
    figures = {
        "megabytes": round(size / 1e6, 1),
        "megabytes_per_s": round(size / 1e6 / first["load_s"], 1),
        "encoding_memory_mb": round(first["load_mb"]),
        "first_step_memory_mb": round(first["memory_mb"]),
        "cached_first_step_s": round(second["load_s"] + second["step_s"], 2),
        "cached_memory_mb": round(second["memory_mb"]),
    }
    print(json.dumps(figures))


def write(text: str, path: Path, size: int) -> int:
    """Write a text again and again, until the file has `size` bytes or a few more; returns how many."""
    raw = text.encode()
    if not raw:
        raise UserError("an empty text never fills a file: name another")
    with open(path, "wb") as file:
        while file.tell() < size:
            file.write(raw)
        return file.tell()


def in_a_process(folder: str) -> dict[str, float]:
    """The figures of `first_step` in a process of its own."""
    result = subprocess.run([sys.executable, __file__, FIRST_STEP, folder], stdout=subprocess.PIPE)
    if result.returncode:
        raise UserError("no figures: the text could not be encoded")
    figures: dict[str, float] = json.loads(result.stdout)
    return figures


def first_step(folder: Path) -> dict[str, float]:
    """Load the text in a folder, where what is encoded is kept, too, and train on it by one step."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    encoded.FOLDER, encoded.SMALL = folder / "cache", 0
    config = train_config(["data=text", f"data.path={folder / NAME}", "trainer.threads=1", "trainer.device=cpu"])
    times = [time.perf_counter()]
    corpus = texts.load(config.data, config.model.block_size)
    times.append(time.perf_counter())
    loaded = held()
    run = Run(config, corpus, folder)
    windows = Batches(torch.from_numpy(corpus.train), config.model.block_size, config.trainer.batch_size, config.seed)
    loss_of(run.model, windows.windows(0)).backward()
    run.optimizer.step()
    times.append(time.perf_counter())
    return {"load_s": times[1] - times[0], "step_s": times[2] - times[1], "load_mb": loaded, "memory_mb": held()}


def held() -> float:
    """The most memory that this process has held, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


if __name__ == "__main__":
    run_script(main, __doc__)
