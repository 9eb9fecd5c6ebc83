"""How many characters a second the default model trains on, is evaluated on, and writes, on this machine.

    python benchmarks/throughput.py [KEY=VALUE ...]      for example model.block_size=128 trainer.precision=bfloat16

The three are timed in turn, several rounds in one run, and the median of each is printed as one JSON line. Figures of
different machines, or of different runs on a shared one, are best compared as ratios.
"""

import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.nn.functional as F
from omegaconf import OmegaConf
from torch import nn

from configs.command_line import run_script
from configs.overrides import OverrideReader
from configs.schema import TrainConfig, UserError
from model.generation import generate
from model.language_model import LanguageModel
from training.device import choose_setup
from training.evaluation import evaluate
from training.optimizers import make_optimizer

ROUNDS = 5
VOCAB_SIZE = 65


def main(arguments: list[str]) -> None:
    overrides, problems = OverrideReader(TrainConfig, {}, sweeping=False).read(arguments)
    if problems:
        raise UserError("; ".join(problems))
    config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(TrainConfig), OmegaConf.from_dotlist(overrides)))
    assert isinstance(config, TrainConfig)
    setup = choose_setup(config.trainer)
    model = LanguageModel(config.model, VOCAB_SIZE).to(setup.device)
    optimizer = make_optimizer(model, config.optimizer)
    ids = torch.randint(VOCAB_SIZE, (20_000,))
    windows = torch.randint(VOCAB_SIZE, (config.trainer.batch_size, config.model.block_size + 1)).to(setup.device)

    def train(steps: int = 10) -> int:
        for _ in range(steps):
            with setup.forward_precision():
                logits = model(windows[:, :-1])
            loss = F.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.grad_clip).item()  # waits for a GPU, too
            optimizer.step()
            optimizer.zero_grad()
        loss.item()
        return int(steps * config.trainer.batch_size * config.model.block_size)

    def write() -> int:
        return len(list(generate(model, ids[:1], 100, torch.Generator())))

    jobs = {"train": train, "evaluate": lambda: evaluate(model, ids, setup).characters, "write": write}
    speeds: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(ROUNDS + 1):
        for name, job in jobs.items():
            started = time.perf_counter()
            characters = job()
            speeds[name].append(characters / (time.perf_counter() - started))
    figures = {f"{name}_chars_per_s": round(statistics.median(rounds[1:])) for name, rounds in speeds.items()}
    print(
        json.dumps(
            {**figures, "device": str(setup.device), "precision": str(setup.precision), "threads": setup.threads}
        )
    )


if __name__ == "__main__":
    run_script(main, __doc__)
