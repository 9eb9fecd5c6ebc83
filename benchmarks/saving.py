"""What a safe save costs: the state of the default model, written plainly and as train.py does it, side by side.

    python benchmarks/saving.py [FOLDER]        on the disk of this folder, the temporary one if none is named

Plain is torch.save to the final name, as many programs do. Safe adds the checksum, a file of its own, fsync, the state
before under its own name, and fsync of the folder. The median of each is printed as one JSON line, in milliseconds, beside
the time of one training step.
"""

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from benchmarks.runs import model_to_step
from benchmarks.timing import median_seconds
from configs.command_line import run_script
from configs.schema import TrainConfig, TrainerConfig
from training import checkpoint as checkpoints
from training.device import choose_setup

ROUNDS = 9


def main(arguments: list[str]) -> None:
    config = TrainConfig(trainer=TrainerConfig(device="cpu"))
    model, optimizer, step = model_to_step(config, choose_setup(config.trainer))
    step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    with tempfile.TemporaryDirectory(dir=arguments[0] if arguments else None) as name:
        folder = Path(name)
        jobs = {
            "plain": lambda: torch.save(state, folder / "plain.pt"),
            "safe": lambda: checkpoints.save(folder / "last.pt", state, folder / "previous.pt"),
            "step": step,
        }
        seconds = median_seconds(jobs, ROUNDS)
        size = (folder / "last.pt").stat().st_size
    figures = {f"{job}_ms": round(1000 * median, 1) for job, median in seconds.items()}
    print(json.dumps({**figures, "megabytes": round(size / 1e6, 1)}))


if __name__ == "__main__":
    run_script(main, __doc__)
