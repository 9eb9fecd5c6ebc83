"""The loss on a whole split: exact, in order, without a random number."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from model.language_model import LanguageModel, evaluating
from training.device import Setup

_CHARACTERS_AT_ONCE = 2048  # a matter of speed and memory; the result does not depend on it but for rounding


@dataclass(frozen=True)
class Evaluation:
    """A mean over `characters` predicted characters, in nats."""

    nats: float
    characters: int
    nats_by_position: list[float]  # [t]: the mean where the model saw t + 1 characters

    @property
    def bits_per_char(self) -> float:
        return self.nats / math.log(2)


@torch.no_grad()
def evaluate(
    model: LanguageModel, ids: Tensor, setup: Setup, characters_at_once: int = _CHARACTERS_AT_ONCE
) -> Evaluation:
    """The mean of -log P over every character of ids (N,) but the first, which nothing precedes; N at least 2.

    The text is cut into windows of block_size that do not overlap, the last one as short as it comes, so each character
    is counted once. Sums are kept in float64. The model's mode is put back, even after an exception.
    """
    block_size = model.config.block_size
    targets = len(ids) - 1
    whole = targets // block_size
    sums = torch.zeros(block_size, dtype=torch.float64)
    counts = torch.full((block_size,), whole, dtype=torch.float64)
    with evaluating(model):
        inputs = ids[: whole * block_size].view(whole, block_size)
        wanted = ids[1 : whole * block_size + 1].view(whole, block_size)
        windows_at_once = max(1, characters_at_once // block_size)
        for first in range(0, whole, windows_at_once):
            part = slice(first, first + windows_at_once)
            sums += _nats(model, inputs[part], wanted[part], setup).sum(0)
        rest = targets - whole * block_size
        if rest:
            sums[:rest] += _nats(model, ids[-rest - 1 : -1][None], ids[-rest:][None], setup)[0]
            counts[:rest] += 1
    seen = int((counts > 0).sum())
    return Evaluation(float(sums.sum() / targets), targets, (sums[:seen] / counts[:seen]).tolist())


def _nats(model: LanguageModel, inputs: Tensor, wanted: Tensor, setup: Setup) -> Tensor:
    """-log P (windows, T) in float64 of each wanted character."""
    inputs, wanted = inputs.to(setup.device).long(), wanted.to(setup.device).long()
    with setup.forward_precision():
        logits = model(inputs)
    nats = F.cross_entropy(logits.float().flatten(0, 1), wanted.flatten(), reduction="none")
    return nats.view(wanted.shape).cpu().double()
