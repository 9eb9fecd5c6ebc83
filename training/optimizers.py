"""The optimizer: which parameters learn by which rule, at which rate, and which of them decay."""

import inspect
import math
from typing import Any

import torch
from torch import Tensor, nn

from configs.schema import OptimizerConfig
from model.attention import MultiHeadAttention
from model.language_model import NGramEmbedding, block_matrices


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> "Optimizer":
    """Every parameter of the model in exactly one group, which has a rule, a highest rate `peak_lr`, and perhaps decay.

    The matrices of linear layers learn by AdamW or, those of blocks, by Muon, which is made for what stands between input and
    output; the head then learns with the tables. A table's row learns only when its character comes by: so tables have a
    higher rate, and no decay, which would wear away the rows of rare characters. Rows of n-grams are rarer still.
    """
    modules = list(model.modules())
    n_grams = {module.table.weight for module in modules if isinstance(module, NGramEmbedding)}
    matrices = {module.weight for module in modules if isinstance(module, nn.Linear)}
    joined: set[Tensor] = set()  # query, key and value in one: three matrices to Muon
    if config.name == "muon":
        matrices = set(block_matrices(model).values())
        joined = {
            module.qkv.weight for module in modules if isinstance(module, MultiHeadAttention) and not module.uniform
        }
    tables = set(model.parameters()) - matrices - n_grams
    of_matrices = {"rule": config.name, "lr": config.lr, "weight_decay": config.weight_decay}
    kinds: list[tuple[set[Any], dict[str, Any]]] = [
        (matrices - joined, {**of_matrices, "parts": 1}),
        (joined, {**of_matrices, "parts": 3}),
        (tables, {"rule": "adamw", "lr": config.table_lr, "weight_decay": 0.0}),
        (n_grams, {"rule": "adagrad", "lr": config.n_gram_lr, "weight_decay": 0.0}),
    ]
    groups = [
        {"params": [parameter for parameter in model.parameters() if parameter in kind], "peak_lr": rule["lr"], **rule}
        for kind, rule in kinds
        if kind
    ]
    return Optimizer(groups, config)


class Optimizer(torch.optim.AdamW):
    """Groups of parameters, each of which learns by its own `rule`: adamw, muon or adagrad."""

    # Around these torch has wrapped its compiler, which would take two seconds to import.
    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)
    _adamw = inspect.unwrap(torch.optim.AdamW.step)

    def __init__(self, groups: list[dict[str, Any]], config: OptimizerConfig) -> None:
        devices = {parameter.device.type for group in groups for parameter in group["params"]}
        super().__init__(groups, betas=(config.beta1, config.beta2), fused=devices <= {"cpu", "cuda"})
        self.momentum = config.momentum

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of all parameters that have a gradient."""
        for group in self.param_groups:
            learning = [parameter for parameter in group["params"] if parameter.grad is not None]
            if group["rule"] == "muon":
                for shape in {parameter.shape for parameter in learning}:
                    self._muon([parameter for parameter in learning if parameter.shape == shape], group)
            elif group["rule"] == "adagrad":
                for parameter in learning:
                    self._adagrad(parameter, group["lr"])
        self._adamw()  # those that still have a gradient

    def clip_gradients(self, largest: float) -> Tensor:
        """Scale all gradients so that their norm is at most `largest`, 0 meaning any; returns the norm before.

        Those of Adagrad's rows stay out of it: however large they are, their updates are not.
        """
        counted = [one for group in self.param_groups if group["rule"] != "adagrad" for one in group["params"]]
        return nn.utils.clip_grad_norm_(counted, largest or math.inf)

    def _muon(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        """An update of matrices (R, C) by lr sqrt(max(1, R / C)) times the momentum of their gradients, made orthogonal.

        Parameters are so many matrices as the group has `parts`, one below the other.

        So all directions of a matrix are learned alike, the weak ones too (Jordan et al., "Muon: An optimizer for hidden
        layers in neural networks", 2024). torch.optim.Muon takes matrices one by one, and in bfloat16, which is slow on
        processors without instructions for it.
        """
        directions = []
        for matrix in matrices:
            assert matrix.grad is not None
            momentum = self._memory(matrix, "momentum", matrix.shape)
            momentum.lerp_(matrix.grad, 1 - self.momentum)
            directions.append(matrix.grad.lerp(momentum, self.momentum))  # Nesterov's
            matrix.grad = None
        stacked = torch.stack(directions).unflatten(1, (group["parts"], -1))  # (N, parts, R, C)
        updates = orthogonal(stacked.flatten(0, 1)).view(len(matrices), *matrices[0].shape)
        rate = group["lr"] * math.sqrt(max(1, stacked.size(2) / stacked.size(3)))
        for matrix, update in zip(matrices, updates, strict=True):
            matrix.mul_(1 - group["lr"] * group["weight_decay"])
            matrix.add_(update, alpha=-rate)

    def _adagrad(self, table: Tensor, lr: float) -> None:
        """An update of the rows of a table (R, C) by lr times their gradient over the root of a sum, one for each row.

        The sum is that of the mean squares of all gradients that the row has had (Duchi et al., "Adaptive Subgradient
        Methods", 2011, with one rate for a row instead of one for a number). Rows without a gradient stay as they are, so
        a sparse gradient, which only has those that came by, is a matter of speed. No update is larger than lr.
        """
        assert table.grad is not None
        gradient, table.grad = table.grad, None
        sums = self._memory(table, "sums", torch.Size((len(table), 1)))
        if gradient.is_sparse:
            gradient = gradient.coalesce()
            (rows,), of_rows = gradient.indices(), gradient.values()
            sums[rows] += of_rows.square().mean(-1, keepdim=True)
            table.index_add_(0, rows, of_rows / (sums[rows].sqrt() + 1e-20), alpha=-lr)
        else:
            sums += gradient.square().mean(-1, keepdim=True)
            table.addcdiv_(gradient, sums.sqrt() + 1e-20, value=-lr)

    def _memory(self, parameter: Tensor, name: str, shape: torch.Size) -> Tensor:
        """What is remembered of a parameter from step to step, zeros at first."""
        state = self.state[parameter]
        if not state:  # AdamW looks for its own "step" in every memory that is loaded
            state |= {"step": torch.zeros(()), name: torch.zeros(shape, device=parameter.device)}
        memory: Tensor = state[name]
        return memory


def orthogonal(matrices: Tensor, iterations: int = 5) -> Tensor:
    """(N, R, C) -> (N, R, C): each matrix with its singular values moved to about 1, from 0.7 to 1.2, by Newton and Schulz.

    An odd polynomial of a matrix acts on its singular values alone. An iteration makes small ones 3.4 times larger, so those
    below about 1/500 of the matrix's norm stay smaller than the rest. Coefficients: Jordan et al., 2024.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices if matrices.size(-2) <= matrices.size(-1) else matrices.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)  # no singular value is above 1 now
    for _ in range(iterations):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x if matrices.size(-2) <= matrices.size(-1) else x.mT
