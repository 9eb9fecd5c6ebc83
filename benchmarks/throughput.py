"""How many characters a second the default model trains on, is evaluated on, and writes, on this machine.

    python benchmarks/throughput.py [KEY=VALUE ...]      for example model.block_size=128 trainer.precision=bfloat16

The three are timed in turn, several rounds in one run, and the median of each is printed as one JSON line. Figures of
different machines, or of different runs on a shared one, are best compared as ratios.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.nn.functional as F
from omegaconf import OmegaConf
from torch import nn

from benchmarks.timing import median_seconds
from configs.command_line import run_script
from configs.overrides import OverrideReader
from configs.schema import TrainConfig, UserError
from model.generation import generate
from model.language_model import LanguageModel
from training.device import choose_setup
from training.evaluation import evaluate
from training.optimizers import make_optimizer

ROUNDS = 5
TRAINED_STEPS, WRITTEN = 10, 100  # in a round
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

    def train() -> None:
        for _ in range(TRAINED_STEPS):
            with setup.forward_precision():
                logits = model(windows[:, :-1])
            loss = F.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.grad_clip).item()  # waits for a GPU, too
            optimizer.step()
            optimizer.zero_grad()
        loss.item()

    jobs = {
        "train": train,
        "evaluate": lambda: evaluate(model, ids, setup),
        "write": lambda: list(generate(model, ids[:1], WRITTEN, torch.Generator())),
    }
    characters = {
        "train": TRAINED_STEPS * config.trainer.batch_size * config.model.block_size,
        "evaluate": len(ids) - 1,
        "write": WRITTEN,
    }
    seconds = median_seconds(jobs, ROUNDS)
    figures = {f"{name}_chars_per_s": round(characters[name] / seconds[name]) for name in jobs}
    print(
        json.dumps(
            {**figures, "device": str(setup.device), "precision": str(setup.precision), "threads": setup.threads}
        )
    )


if __name__ == "__main__":
    run_script(main, __doc__)
