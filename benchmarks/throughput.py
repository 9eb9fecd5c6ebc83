"""How fast a model trains, is evaluated and writes on this machine, and how much of what the machine can do that is.

    python benchmarks/throughput.py [KEY=VALUE ...]      for example experiment=nanogpt_cpu, or model.block_size=128
    python benchmarks/throughput.py --sizes              several widths and block sizes, and experiment=nanogpt_cpu

Each model is a process of its own and prints one JSON line. All is timed in turn, several rounds in one run, and medians
count: characters a second; the gigaflops that training comes to; the largest matrix product's, which is what the machine
can do in that precision (`share_of_peak` is their ratio); and the most memory that the process has held, in megabytes.
Figures of different machines, or of different runs on a shared one, are best compared as ratios.
"""

import json
import resource
import subprocess
import sys
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from torch import Tensor

from benchmarks.runs import VOCAB_SIZE, model_to_step, train_config
from benchmarks.timing import median_seconds
from configs.command_line import run_script
from configs.schema import ModelConfig, UserError
from model.generation import Choice, generate
from model.language_model import LanguageModel, block_matrices
from training.device import choose_setup
from training.evaluation import evaluate

ROUNDS = 5
TRAINED_STEPS, WRITTEN = 10, 100  # in a round
LARGE = {"cpu": 2048, "cuda": 8192, "mps": 4096}  # what keeps the device busy, and not for too long
SIZES = [["experiment=nanogpt_cpu"]] + [
    [f"model.n_embd={width}", f"model.head_size={width // 4}", f"model.block_size={block_size}"]
    for width, block_size in product((64, 128, 256, 384), (64, 256))
]


def main(arguments: list[str]) -> None:
    if "--sizes" in arguments:
        rest = [argument for argument in arguments if argument != "--sizes"]
        for options in SIZES:
            if subprocess.run([sys.executable, __file__, *options, *rest]).returncode:
                raise UserError(f"no figures for {' '.join(options)}")
        return
    print(json.dumps({"options": " ".join(arguments), **figures_of(arguments)}))


def figures_of(arguments: list[str]) -> dict[str, object]:
    """The figures of one model."""
    config = train_config(arguments)
    setup = choose_setup(config.trainer, dropout=config.model.dropout)
    model, _, step = model_to_step(config, setup)
    ids = torch.randint(VOCAB_SIZE, (20_000,))
    large = LARGE[setup.device.type]
    factor = torch.randn(large, large, device=setup.device, dtype=setup.precision)

    def train() -> None:
        losses = [step() for _ in range(TRAINED_STEPS)]
        losses[-1].item()  # waits for a GPU, too

    jobs = {
        "train": train,
        "evaluate": lambda: evaluate(model, ids, setup),
        "write": lambda: list(generate(model, ids[:1], WRITTEN, [torch.Generator()], Choice())),
        "product": lambda: (factor @ factor)[0, 0].item(),
    }
    trained = TRAINED_STEPS * config.trainer.batch_size * config.model.block_size
    characters = {"train": trained, "evaluate": len(ids) - 1, "write": WRITTEN}
    seconds = median_seconds(jobs, ROUNDS)
    gigaflops = flops_per_character(config.model, model) * trained / seconds["train"] / 1e9
    peak = 2 * large**3 / seconds["product"] / 1e9
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    if setup.device.type == "cuda":
        held = torch.cuda.max_memory_allocated(setup.device) / 2**20
    return {
        **{f"{name}_chars_per_s": round(characters[name] / seconds[name]) for name in characters},
        "gigaflops": round(gigaflops),
        "peak_gigaflops": round(peak),
        "share_of_peak": round(gigaflops / peak, 3),
        "memory_mb": round(held),
        **setup.facts(),
    }


def flops_per_character(config: ModelConfig, model: LanguageModel) -> int:
    """Additions and multiplications that training on one character needs, tables, norms and the optimizer left out.

    Two for each weight of a matrix, and in attention two for each number of a key and of a value that is looked at, which
    are half of block_size on average; the way back costs twice the way there (Kaplan et al., "Scaling Laws for Neural
    Language Models", 2020, section 2.1).
    """
    matrices: list[Tensor] = [*block_matrices(model).values()]
    if model.stream is not None:
        matrices.append(model.stream.head.weight)
    looked_at = config.n_layer * config.n_head * config.head_size * config.block_size // 2
    return 3 * 2 * (sum(matrix.numel() for matrix in matrices) + 2 * looked_at)


if __name__ == "__main__":
    run_script(main, __doc__)
