"""The linear layer of blocks: a matrix and nothing else."""

import math

import torch
from torch import Tensor, nn


class Projection(nn.Linear):
    """x (..., C) -> (..., D) by a matrix (D, C), without bias.

    In writing one text, each product has a single row and the time goes into fetching the matrix from memory. BLAS does that
    with one core. So on a CPU the matrix is cut into as many parts as there are threads, and each core fetches its own.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        if x.numel() != weight.size(1) or weight.numel() < LARGE or x.device.type != "cpu" or x.dtype != torch.float32:
            return super().forward(x)
        parts = math.gcd(weight.size(0), torch.get_num_threads())
        rows = x.reshape(1, 1, -1).expand(parts, 1, -1)
        products = torch.bmm(rows, weight.view(parts, -1, weight.size(1)).transpose(1, 2))  # (parts, 1, D / parts)
        return products.view(*x.shape[:-1], -1)


LARGE = 2**17  # numbers of a matrix from which on waking another core is worth it
