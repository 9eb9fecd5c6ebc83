"""The optimizer: every parameter in exactly one group, with the right decay and rate."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from configs.schema import ModelConfig, OptimizerConfig
from model.language_model import LanguageModel
from tests.models import RUNGS, woken
from tests.scripts import ROOT, SMALL, environment
from training.optimizers import Optimizer, make_optimizer, orthogonal

CONFIG = OptimizerConfig(lr=1e-3, table_lr=1e-2, n_gram_lr=0.1, weight_decay=0.3, beta1=0.8, beta2=0.9)


def test_matrices_decay_and_tables_do_not() -> None:
    model = LanguageModel(ModelConfig(n_layer=2, positions="learned"), 11)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    matrices, tables, rows = make_optimizer(model, CONFIG).param_groups
    assert (matrices["weight_decay"], matrices["lr"], matrices["peak_lr"]) == (0.3, 1e-3, 1e-3)
    assert (tables["weight_decay"], tables["lr"], tables["peak_lr"]) == (0.0, 1e-2, 1e-2)
    assert matrices["betas"] == tables["betas"] == (0.8, 0.9)
    in_matrices = {names[id(parameter)] for parameter in matrices["params"]}
    in_tables = {names[id(parameter)] for parameter in tables["params"]}
    assert [names[id(parameter)] for parameter in rows["params"]] == ["stream.n_gram_embedding.table.weight"]
    assert (rows["weight_decay"], rows["lr"], rows["peak_lr"]) == (0.0, 0.1, 0.1)
    assert len(in_matrices) + len(in_tables) + 1 == len(names)
    assert in_tables == {
        name for name in names.values() if re.search("(token|previous|position)_embedding|bigram", name)
    }
    assert not in_matrices & in_tables


def test_a_table_alone_has_one_group() -> None:
    (group,) = make_optimizer(
        LanguageModel(ModelConfig(n_layer=0, n_previous=0, n_gram_order=0), 11), CONFIG
    ).param_groups
    assert group["lr"] == 1e-2


def test_a_step_is_adamw() -> None:
    model = LanguageModel(ModelConfig(n_layer=1), 11)
    head = model.stream.head.weight  # type: ignore[union-attr]
    torch.nn.init.ones_(head)
    head.grad = torch.full_like(head, 0.5)
    make_optimizer(model, CONFIG).step()
    # The first step of Adam is lr * sign(gradient); decay takes lr * weight_decay off beforehand.
    assert torch.allclose(head, torch.full_like(head, 1 * (1 - 1e-3 * 0.3) - 1e-3), atol=1e-6)


MUON = replace(CONFIG, name="muon", lr=0.02, momentum=0.9)


def with_gradients(config: OptimizerConfig) -> tuple[LanguageModel, Optimizer, dict[str, Tensor]]:
    model = woken(RUNGS["gpt"])
    for weight in model.parameters():
        weight.grad = torch.randn_like(weight)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    return model, make_optimizer(model, config), before


def test_muon_is_for_the_matrices_of_blocks() -> None:
    model, optimizer, _ = with_gradients(MUON)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    whole, joined, tables, rows = ({names[id(one)] for one in group["params"]} for group in optimizer.param_groups)
    assert joined == {name for name in names.values() if "qkv" in name}
    assert whole | joined == {name for name in names.values() if "blocks" in name}
    assert tables | rows == set(names.values()) - whole - joined
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.3, 0.3, 0.0, 0.0]
    assert [group["peak_lr"] for group in optimizer.param_groups] == [0.02, 0.02, 1e-2, 0.1]
    (group,) = make_optimizer(woken(RUNGS["average"]), MUON).param_groups[:1]
    assert len(group["params"]) == 2  # with equal weights there are values alone


def test_singular_values_come_near_one_and_their_vectors_stay() -> None:
    torch.manual_seed(0)
    for rows, columns in ((6, 6), (12, 4), (4, 12)):
        left, _, right = torch.linalg.svd(torch.randn(5, rows, columns), full_matrices=False)
        values = torch.logspace(0, -2.4, min(rows, columns))  # down to 1/250
        matrices = left @ values.diag() @ right
        # In the singular vectors of what went in, what came out is diagonal.
        turned = left.mT @ orthogonal(matrices) @ right.mT
        diagonal = turned.diagonal(dim1=-2, dim2=-1)
        assert torch.allclose(turned, torch.diag_embed(diagonal), atol=1e-4)
        assert float(diagonal.min()) > 0.65
        assert float(diagonal.max()) < 1.25
    assert torch.equal(orthogonal(torch.zeros(1, 2, 3)), torch.zeros(1, 2, 3))


def test_two_steps_of_muon_are_the_formula() -> None:
    model, optimizer, before = with_gradients(MUON)
    gradients = [{name: torch.randn_like(weight) for name, weight in before.items()} for _ in range(2)]
    for gradient in gradients:
        for name, weight in model.named_parameters():
            weight.grad = gradient[name].clone()
        optimizer.step()
    for name, weight in model.named_parameters():
        if "blocks" in name:
            wanted, mean = before[name], torch.zeros_like(before[name])
            for gradient in gradients:
                mean = 0.9 * mean + 0.1 * gradient[name]
                parts = (0.1 * gradient[name] + 0.9 * mean).chunk(3 if "qkv" in name else 1)
                update = torch.cat([orthogonal(part[None])[0] for part in parts])
                taller = max(1, parts[0].size(0) / parts[0].size(1)) ** 0.5
                wanted = wanted * (1 - 0.02 * 0.3) - 0.02 * taller * update
            assert torch.allclose(weight, wanted, atol=1e-5), name


def test_what_is_no_matrix_is_learned_as_by_adamw() -> None:
    muon, muons, before = with_gradients(MUON)
    adamw, adamws, _ = with_gradients(CONFIG)
    for model, optimizer in ((muon, muons), (adamw, adamws)):
        for name, weight in model.named_parameters():
            weight.grad = torch.ones_like(before[name])
        optimizer.step()
    for (name, weight), wanted in zip(muon.named_parameters(), adamw.parameters(), strict=True):
        if "blocks" not in name and "head" not in name:
            assert torch.equal(weight, wanted), name
            assert not torch.equal(weight, before[name]), name


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.strided])
def test_two_steps_of_adagrad_are_the_formula_and_rows_that_did_not_come_by_stay(layout: torch.layout) -> None:
    model, optimizer, before = with_gradients(CONFIG)
    assert model.stream is not None
    assert model.stream.n_gram_embedding is not None
    table = model.stream.n_gram_embedding.table.weight
    wanted, sums = before["stream.n_gram_embedding.table.weight"], torch.zeros(50, 1)
    for came_by in ([3, 7, 8], [7, 9]):
        gradient = torch.zeros_like(table)
        gradient[came_by] = torch.randn(len(came_by), 10)
        if layout == torch.sparse_coo:  # as it comes from a batch in which every row came by twice
            table.grad = torch.sparse_coo_tensor(
                torch.tensor([came_by * 2]), gradient[came_by * 2] / 2, gradient.shape, check_invariants=True
            )
        else:
            table.grad = gradient.clone()
        optimizer.step()
        for row in came_by:
            sums[row] += gradient[row].square().mean()
            wanted[row] -= 0.1 * gradient[row] / sums[row].sqrt()
    assert torch.allclose(table, wanted, atol=1e-6)


def test_clipping_leaves_directions_and_rows_of_n_grams_alone() -> None:
    model, optimizer, _ = with_gradients(CONFIG)
    gradients = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    rows = "stream.n_gram_embedding.table.weight"
    norm = sum(float(gradient.square().sum()) for name, gradient in gradients.items() if name != rows) ** 0.5
    assert float(optimizer.clip_gradients(0)) == pytest.approx(norm, rel=1e-5)
    for name, weight in model.named_parameters():
        assert weight.grad is not None
        assert torch.equal(weight.grad, gradients[name])
    assert float(optimizer.clip_gradients(norm / 2)) == pytest.approx(norm, rel=1e-5)
    for name, weight in model.named_parameters():
        assert weight.grad is not None
        assert torch.allclose(weight.grad, gradients[name] * (1.0 if name == rows else 0.5), rtol=1e-4), name


def test_training_does_not_wait_for_a_compiler_that_it_does_not_use(tmp_path: Path) -> None:
    code = "import runpy, sys; sys.argv[0] = 'train.py'; runpy.run_path('train.py', run_name='__main__')"
    asked = [*SMALL, "data=playlet", f"hydra.run.dir={tmp_path / 'run'}"]
    end = "\nassert 'torch.optim.adamw' in sys.modules and 'torch._dynamo' not in sys.modules"
    result = subprocess.run(
        [sys.executable, "-c", code + end, *asked], cwd=ROOT, env=environment(), capture_output=True
    )
    assert result.returncode == 0, result.stderr
