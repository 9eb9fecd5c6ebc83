"""Which path of attention is faster here: plain or fused, and a cache or none?

    python benchmarks/attention.py [DEVICE]        about half a minute

Each pair is timed in turn, several rounds in one run. Printed is one JSON line of ratios, the median over the rounds:
`plain_over_fused`, forward and backward, for the models of the README and longer blocks (above 1 the fused path is faster);
`recomputed_over_cached`, for the default model writing its first block_size characters (above 1 the cache pays).
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from torch import Tensor

from configs.command_line import run_script
from configs.schema import ModelConfig, UserError
from model.attention import fused_attention, plain_attention
from model.language_model import LanguageModel
from training.device import choose_device

ROUNDS = 9
SECONDS_A_ROUND = 0.1
SHAPES = (  # B, H, T, S
    (12, 1, 8, 16),
    (12, 1, 64, 16),
    (12, 4, 64, 16),
    (12, 4, 64, 32),
    (12, 4, 128, 32),
    (12, 4, 256, 32),
)
KINDS = (
    ("float32", torch.float32, 0.0),
    ("bfloat16", torch.bfloat16, 0.0),
    ("float32 with dropout", torch.float32, 0.1),
)
BLOCK_SIZES = (64, 256)


def main(arguments: list[str]) -> None:
    if len(arguments) > 1:
        raise UserError("name one device, or none")
    device, _ = choose_device(arguments[0] if arguments else "auto", "DEVICE")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability()
    figures = {
        "plain_over_fused": {
            f"{words} B{shape[0]} H{shape[1]} T{shape[2]} S{shape[3]}": plain_over_fused(
                torch.randn(3, *shape, dtype=precision, device=device, requires_grad=True), dropout
            )
            for words, precision, dropout in KINDS
            for shape in SHAPES
        },
        "recomputed_over_cached": {f"T{time}": recomputed_over_cached(time, device) for time in BLOCK_SIZES},
    }
    print(json.dumps({**figures, "device": name, "threads": torch.get_num_threads()}))


def plain_over_fused(qkv: Tensor, dropout: float) -> float:
    """Forward and backward on queries, keys and values (3, B, H, T, S)."""

    def plain() -> Tensor:
        return torch.autograd.grad(plain_attention(*qkv, causal=True, dropout=dropout)[0].sum(), qkv)[0]

    def fused() -> Tensor:
        return torch.autograd.grad(fused_attention(*qkv, causal=True, dropout=dropout).sum(), qkv)[0]

    return ratio(plain, fused)


@torch.no_grad()
def recomputed_over_cached(block_size: int, device: torch.device) -> float:
    """The logits after each of block_size characters, one after the other, as in writing."""
    model = LanguageModel(ModelConfig(block_size=block_size), vocab_size=65).to(device).eval()
    ids = torch.randint(65, (1, block_size), device=device)

    def recomputed() -> Tensor:
        return [model(ids[:, :end])[0, -1] for end in range(1, block_size + 1)][-1]

    def cached() -> Tensor:
        cache = model.new_cache()
        return [model(ids[:, begin:end], cache)[0, -1] for begin, end in pairwise(range(block_size + 1))][-1]

    return ratio(recomputed, cached)


def ratio(first: Callable[[], Tensor], second: Callable[[], Tensor]) -> float:
    """How many times as long as the second the first one takes; each returns a tensor of its last piece of work."""

    def seconds(job: Callable[[], Tensor], repetitions: int) -> float:
        started = time.perf_counter()
        for _ in range(repetitions):
            result = job()
        result.flatten()[0].item()  # a GPU works in order, so this waits for all of it
        return (time.perf_counter() - started) / repetitions

    repetitions = max(1, int(SECONDS_A_ROUND / max(seconds(first, 2), seconds(second, 2))))
    rounds = [seconds(first, repetitions) / seconds(second, repetitions) for _ in range(ROUNDS)]
    return round(statistics.median(rounds), 2)


if __name__ == "__main__":
    run_script(main, __doc__)
