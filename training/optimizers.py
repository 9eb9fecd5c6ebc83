"""The optimizers: which parameters decay, which learn at which rate, and which as matrices."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from configs.schema import OptimizerConfig
from model.language_model import block_matrices


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """AdamW or Muon over all parameters, each in exactly one group: the matrices of linear layers, and the tables.

    A table's row learns only when its character comes by. So tables have a higher rate, and no decay, which would wear
    away the rows of rare characters. Muon is for the matrices of blocks, and the head, whose rows belong to characters
    too, then counts as a table. Each group keeps its highest rate as `peak_lr`.
    """
    muon = config.name == "muon"
    if muon:
        matrices: list[Tensor] = list(block_matrices(model).values())
    else:
        matrices = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    ids = {id(parameter) for parameter in matrices}
    tables = [parameter for parameter in model.parameters() if id(parameter) not in ids]
    grouped = sorted(map(id, [*matrices, *tables]))
    assert grouped == sorted(map(id, model.parameters())), "every parameter is in exactly one group"
    groups: list[dict[str, Any]] = [
        {"params": matrices, "lr": config.lr, "weight_decay": config.weight_decay, "orthogonal": muon},
        {"params": tables, "lr": config.table_lr, "weight_decay": 0.0, "orthogonal": False},
    ]
    groups = [{**group, "peak_lr": group["lr"]} for group in groups if group["params"]]
    fused = all(parameter.device.type in ("cpu", "cuda") for parameter in model.parameters())
    betas = (config.beta1, config.beta2)
    return Muon(groups, config.momentum, betas, fused) if muon else torch.optim.AdamW(groups, betas=betas, fused=fused)


class Muon(torch.optim.AdamW):
    """Orthogonal updates for matrices, AdamW for all else.

    The update of a matrix (R, C) is lr sqrt(max(1, R / C)) times the momentum of its gradient made orthogonal: all its
    directions are learned alike, the weak ones too (Jordan et al., "Muon: An optimizer for hidden layers in neural
    networks", 2024). torch.optim.Muon takes the matrices one by one, and in bfloat16, for which a processor without
    instructions needs a hundred times as long; here those of one shape are made orthogonal at once, in float32.
    """

    def __init__(self, groups: list[dict[str, Any]], momentum: float, betas: tuple[float, float], fused: bool) -> None:
        """Groups whose "orthogonal" is true are learned as matrices, all others as AdamW does."""
        super().__init__(groups, betas=betas, fused=fused)
        self.momentum = momentum

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of all parameters that have a gradient."""
        for group in (group for group in self.param_groups if group["orthogonal"]):
            of_shape: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    of_shape.setdefault(parameter.shape, []).append(parameter)
            for shape, parameters in of_shape.items():
                updates = orthogonal(torch.stack([self._direction(parameter) for parameter in parameters]))
                for parameter, update in zip(parameters, updates, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_(update, alpha=-group["lr"] * math.sqrt(max(1, shape[0] / shape[1])))
                    parameter.grad = None  # AdamW passes by
        super().step()

    def _direction(self, parameter: Tensor) -> Tensor:
        """Nesterov's momentum: the gradient, pulled towards the mean of all so far."""
        assert parameter.grad is not None
        state = self.state[parameter]
        if not state:  # AdamW looks for its own "step" in every memory that it loads
            state |= {"step": torch.zeros(()), "momentum": torch.zeros_like(parameter)}
        state["momentum"].lerp_(parameter.grad, 1 - self.momentum)
        return parameter.grad.lerp(state["momentum"], self.momentum)


def orthogonal(matrices: Tensor, iterations: int = 5) -> Tensor:
    """(N, R, C) -> (N, R, C): each matrix with its singular values moved to about 1, from 0.7 to 1.2, by Newton and Schulz.

    An odd polynomial of a matrix acts on its singular values alone. Coefficients: Jordan et al., 2024.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices if matrices.size(-2) <= matrices.size(-1) else matrices.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)  # no singular value is above 1 now
    for _ in range(iterations):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x if matrices.size(-2) <= matrices.size(-1) else x.mT
