"""How speed and memory change with block_size, width, batch and the number of processes.

    python benchmarks/scaling.py [PICTURE] [KEY=VALUE ...]     draws docs/scaling.png; all else as in the default run

One thing changes at a time, by `benchmarks/throughput.py`, each in a process of its own; where block_size changes, a step keeps
its number of characters. Processes are real runs in turn, each with the same step: one with all threads, and torchrun's with
one thread each. Printed is one JSON line: [value, characters/s, megabytes] for each, `processes_ratio`, which is how many times
the speed of one process as many as there are cores come to (each figure the median of several runs), and what eight GPUs
would have to do for a step of experiment=nanogpt_gpu.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from PIL import Image

from benchmarks.runs import VOCAB_SIZE, train_config
from benchmarks.throughput import flops_per_character
from configs.command_line import run_script
from configs.schema import UserError
from model.language_model import LanguageModel
from training.folders import SUMMARY
from training.pictures import chart

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "scaling.png"
CHARACTERS = 8192  # of a step, where block_size changes
SIZES = {
    "block_size": [
        (size, [f"model.block_size={size}", f"trainer.batch_size={CHARACTERS // size}"])
        for size in (32, 64, 128, 256, 512, 1024, 2048)
    ],
    "n_embd": [
        (width, [f"model.n_embd={width}", f"model.head_size={width // 4}"]) for width in (32, 64, 128, 256, 512)
    ],
    "batch_size": [(size, [f"trainer.batch_size={size}"]) for size in (1, 4, 12, 48, 192)],
}
ROUNDS, STEPS = 3, 300
GPUS = 8


def main(arguments: list[str]) -> None:
    options = [argument for argument in arguments if "=" in argument]
    names = [argument for argument in arguments if "=" not in argument]
    if len(names) > 1:
        raise UserError("name one picture, or none")
    curves = {key: [[value, *measured([*changed, *options])] for value, changed in SIZES[key]] for key in SIZES}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    speeds = speeds_of_processes(cores, options)
    figures = {
        **curves,
        "processes": {name: round(speed) for name, speed in speeds.items()},
        "processes_ratio": round(speeds["a process for each core"] / speeds["a thread for each core"], 2),
        "eight_gpus": step_of_gpus(),
    }
    print(json.dumps(figures))
    picture_of(curves).save(names[0] if names else PICTURE, "PNG")


def picture_of(curves: dict[str, list[list[int]]]) -> Image.Image:
    """Speed and memory side by side, a row for each key; all from zero, so that heights can be compared."""
    rows = []
    for key, points in curves.items():
        speed = chart("speed", key, {"characters/s": [(x, y) for x, y, _ in points]}, {"": 0.0})
        memory = chart("memory", key, {"megabytes": [(x, y) for x, _, y in points]}, {"": 0.0})
        rows.append(np.concatenate([speed, memory], axis=1))
    return Image.fromarray(np.concatenate(rows))


def measured(options: list[str]) -> tuple[int, int]:
    """Characters a second in training, and the megabytes that the process holds."""
    command = [sys.executable, str(ROOT / "benchmarks" / "throughput.py"), *options]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise UserError(f"no figures for {' '.join(options)}: {result.stderr.strip()}")
    figures = json.loads(result.stdout)
    return figures["train_chars_per_s"], figures["memory_mb"]


def speeds_of_processes(cores: int, options: list[str]) -> dict[str, float]:
    """Characters a second of one process with a thread for each core, and of a process for each core."""
    train = [str(ROOT / "train.py"), "trainer.sample_length=0", "trainer.probe=''", f"trainer.max_steps={STEPS}"]
    train.append(f"trainer.batch_size={6 * cores}")  # 12 on two cores, as in the default run
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={cores}"]
    commands = {
        "a thread for each core": [sys.executable, *train, f"trainer.threads={cores}"],
        "a process for each core": [*torchrun, *train],
    }
    speeds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(ROUNDS):
        for name, command in commands.items():
            with tempfile.TemporaryDirectory() as folder:
                place = ["trainer.eval_interval=100000", "data.validation_fraction=0.01", f"hydra.run.dir={folder}/run"]
                result = subprocess.run([*command, *place, *options], capture_output=True, text=True)
                if result.returncode:
                    raise UserError(f"no figures for {name}: {result.stderr.strip()}")
                summary = json.loads((Path(folder) / "run" / SUMMARY).read_text())
                speeds[name].append(summary["chars_per_second"])
    return {name: statistics.median(of_one) for name, of_one in speeds.items()}


def step_of_gpus() -> dict[str, float]:
    """What each of eight GPUs computes in a step of experiment=nanogpt_gpu, and what it sends to average gradients.

    In a ring each sends 2 (n - 1) / n times the bytes of all gradients (Patarasuk and Yuan, "Bandwidth optimal all-reduce
    algorithms for clusters of workstations", 2009).
    """
    config = train_config(["experiment=nanogpt_gpu"])
    model = LanguageModel(config.model, VOCAB_SIZE)
    characters = config.trainer.batch_size * config.model.block_size
    gradients = 4 * sum(parameter.numel() for parameter in model.parameters())
    return {
        "teraflops_each": round(flops_per_character(config.model, model) * characters / GPUS / 1e12, 3),
        "gradient_megabytes": round(gradients / 1e6, 1),
        "sent_megabytes_each": round(gradients / 1e6 * 2 * (GPUS - 1) / GPUS, 1),
    }


if __name__ == "__main__":
    run_script(main, __doc__)
