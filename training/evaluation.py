"""The loss on a whole text: exact, in order, without a random number."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from model.language_model import LanguageModel, evaluating
from training import distributed
from training.device import Setup
from training.precision import in_precision

_CHARACTERS_AT_ONCE = 2048  # a matter of speed and memory; the result does not depend on it but for rounding


@dataclass(frozen=True)
class Evaluation:
    """A mean over `characters` predicted characters, in nats."""

    nats: float
    characters: int
    nats_by_position: list[float]  # [t]: the mean where the model saw t + 1 characters
    characters_by_position: list[int]  # [t]: over how many

    @property
    def bits_per_char(self) -> float:
        return self.nats / math.log(2)

    @property
    def perplexity(self) -> float:
        """The number of equally likely characters that would be as hard to guess; infinite where floats do not reach."""
        try:
            return math.exp(self.nats)
        except OverflowError:
            return math.inf


@torch.no_grad()
def evaluate(
    model: LanguageModel,
    ids: Tensor,
    setup: Setup,
    stride: int | None = None,
    between: Callable[[int], object] = lambda counted: None,
    characters_at_once: int = _CHARACTERS_AT_ONCE,
    together: bool = False,
) -> Evaluation:
    """The mean of -log P over every character of ids (N,) but the first, which nothing precedes; N at least 2.

    Windows of block_size begin every `stride` characters, 1 to block_size, the last one as short as it comes. Each
    character is counted once, in the first window that reaches it: those of the first window see what precedes them, all
    others at least block_size - stride + 1 characters. Without a stride the windows do not overlap.

    `together`: each of the processes that share a run reads a part of the batches, and all get the same sums.

    Sums are kept in float64. `between` is called before each batch with the number of characters counted so far, and what
    it raises ends the evaluation. The model's mode is put back, even then.
    """
    block_size = model.config.block_size
    stride = stride or block_size
    seen_before = block_size - stride  # positions of a window that the one before has counted
    targets = len(ids) - 1
    whole = max(0, (targets - block_size) // stride + 1)
    sums = torch.zeros(block_size, dtype=torch.float64)
    counts = torch.zeros(block_size, dtype=torch.int64)
    window = torch.arange(block_size + 1)
    network = in_precision(model, setup.precision)
    with evaluating(model):
        windows_at_once = max(1, characters_at_once // block_size)
        batches = range(0, whole, windows_at_once)
        number, shares = (distributed.rank(), distributed.count()) if together else (0, 1)
        for turn in range(math.ceil(len(batches) / shares)):  # equally many for each process
            between(int(counts.sum()))
            if turn * shares + number >= len(batches):
                continue
            first = batches[turn * shares + number]
            starts = torch.arange(first, min(first + windows_at_once, whole)) * stride
            nats = _nats(network, ids[starts[:, None] + window], setup.device)
            sums[seen_before:] += nats[:, seen_before:].sum(0)
            counts[seen_before:] += len(nats)
            if first == 0:
                sums[:seen_before] += nats[0, :seen_before]
                counts[:seen_before] += 1
        rest = targets - (block_size + (whole - 1) * stride if whole else 0)
        if rest:
            between(targets - rest)
        if rest and number == 0:
            nats = _nats(network, ids[whole * stride :][None], setup.device)[0]
            uncounted = slice(len(nats) - rest, len(nats))
            sums[uncounted] += nats[uncounted]
            counts[uncounted] += 1
    if together:
        counts, sums = distributed.total(counts), distributed.total(sums)
    reached = int((counts > 0).sum())
    by_position = (sums[:reached] / counts[:reached]).tolist()
    return Evaluation(float(sums.sum() / targets), targets, by_position, counts[:reached].tolist())


def position_groups(length: int) -> list[slice]:
    """Positions 1, 2, 3 to 4, 5 to 8 and so on, as slices from 0: single positions are too noisy to be compared."""
    return [slice(0, 1)] + [
        slice(2**power, min(2 ** (power + 1), length)) for power in range((length - 1).bit_length())
    ]


def _nats(network: Callable[..., Tensor], windows: Tensor, device: torch.device) -> Tensor:
    """-log P (W, T) in float64 of each character of windows (W, T + 1) but the first."""
    windows = windows.to(device).long()
    logits = network(windows[:, :-1])
    wanted = windows[:, 1:]
    nats = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none")
    return nats.view(wanted.shape).cpu().double()
