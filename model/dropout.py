"""Dropout: in training, some numbers are left out, so that a model does not learn to rely on any one of them."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def drop(x: Tensor, share: float) -> Tensor:
    """x with each number zero with probability `share` and the others divided by 1 - share, so that the mean stays.

    On a CPU torch draws one random number after the other, which takes longer than the attention that they are for. Here 64
    random bits do for four numbers, and `share` counts in steps of 1 / 65,536. Source: Srivastava et al., "Dropout", 2014.
    """
    if share == 0 or x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, share)
    bits = torch.empty(math.ceil(x.numel() / 4), dtype=torch.int64).random_(-(2**63), None)
    numbers = bits.view(torch.int16)[: x.numel()].view(x.shape)  # each of -32,768 to 32,767 equally often
    dropped = min(round(share * 65_536), 65_535)
    return x * ((numbers >= dropped - 32_768).to(x.dtype) * (65_536 / (65_536 - dropped)))


class Dropout(nn.Module):
    """`drop` in training, and nothing in evaluation: (...) -> (...)."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        return drop(x, self.share) if self.training else x
