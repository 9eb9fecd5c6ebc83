"""The optimizer: which parameters decay, and which learn at which rate."""

import torch
from torch import nn

from configs.schema import OptimizerConfig


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """AdamW over all parameters, each in exactly one group: the matrices of linear layers, and the tables.

    A table's row learns only when its character comes by. So tables have a higher rate, and no decay, which would wear
    away the rows of rare characters. Each group keeps its highest rate as `peak_lr`.
    """
    matrices = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    ids = {id(parameter) for parameter in matrices}
    tables = [parameter for parameter in model.parameters() if id(parameter) not in ids]
    grouped = sorted(map(id, [*matrices, *tables]))
    assert grouped == sorted(map(id, model.parameters())), "every parameter is in exactly one group"
    groups = [
        {"params": matrices, "lr": config.lr, "peak_lr": config.lr, "weight_decay": config.weight_decay},
        {"params": tables, "lr": config.table_lr, "peak_lr": config.table_lr, "weight_decay": 0.0},
    ]
    fused = all(parameter.device.type in ("cpu", "cuda") for parameter in model.parameters())
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        betas=(config.beta1, config.beta2),
        fused=fused,
    )
