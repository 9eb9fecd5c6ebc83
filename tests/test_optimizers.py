"""The optimizer: every parameter in exactly one group, with the right decay and rate."""

import torch

from configs.schema import ModelConfig, OptimizerConfig
from model.language_model import LanguageModel
from training.optimizers import make_optimizer

CONFIG = OptimizerConfig(lr=1e-3, table_lr=1e-2, weight_decay=0.3, beta1=0.8, beta2=0.9)


def test_matrices_decay_and_tables_do_not() -> None:
    model = LanguageModel(ModelConfig(n_layer=2, positions="learned"), 11)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    matrices, tables = make_optimizer(model, CONFIG).param_groups
    assert (matrices["weight_decay"], matrices["lr"], matrices["peak_lr"]) == (0.3, 1e-3, 1e-3)
    assert (tables["weight_decay"], tables["lr"], tables["peak_lr"]) == (0.0, 1e-2, 1e-2)
    assert matrices["betas"] == tables["betas"] == (0.8, 0.9)
    in_matrices = {names[id(parameter)] for parameter in matrices["params"]}
    in_tables = {names[id(parameter)] for parameter in tables["params"]}
    assert in_matrices | in_tables == set(names.values())
    assert in_tables == {name for name in names.values() if "embedding" in name or "bigram" in name}
    assert not in_matrices & in_tables


def test_a_table_alone_has_one_group() -> None:
    (group,) = make_optimizer(LanguageModel(ModelConfig(n_layer=0, n_previous=0), 11), CONFIG).param_groups
    assert group["lr"] == 1e-2


def test_a_step_is_adamw() -> None:
    model = LanguageModel(ModelConfig(n_layer=1), 11)
    head = model.stream.head.weight  # type: ignore[union-attr]
    torch.nn.init.ones_(head)
    head.grad = torch.full_like(head, 0.5)
    make_optimizer(model, CONFIG).step()
    # The first step of Adam is lr * sign(gradient); decay takes lr * weight_decay off beforehand.
    assert torch.allclose(head, torch.full_like(head, 1 * (1 - 1e-3 * 0.3) - 1e-3), atol=1e-6)
