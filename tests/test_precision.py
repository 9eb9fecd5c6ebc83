"""Half the bits where the work is, float32 where the result is decided."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models import RUNGS, V, woken
from tests.scripts import SMALL, script
from training.device import compiled
from training.precision import in_precision, loss_scale, unscale_gradients

HALVES = [torch.bfloat16, torch.float16]


def gradients(model: nn.Module, ids: Tensor, precision: torch.dtype) -> dict[str, Tensor]:
    model.zero_grad()
    logits = in_precision(model, precision)(ids)
    scale = loss_scale(precision, ids.numel())
    (F.cross_entropy(logits.flatten(0, 1), ids.flatten()) * scale).backward()
    unscale_gradients(model, scale)
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("precision", HALVES)
def test_matrices_of_blocks_multiply_in_it_and_nothing_else_does(precision: torch.dtype) -> None:
    model = woken(RUNGS["gpt"])
    dtypes: dict[str, torch.dtype] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            module.register_forward_hook(lambda _, __, output, name=name: dtypes.update({name: output.dtype}))
    assert in_precision(model, precision)(torch.randint(V, (2, 12))).dtype == torch.float32
    assert {name for name, dtype in dtypes.items() if dtype == precision} == {
        f"stream.blocks.{block}.{part}"
        for block in range(2)
        for part in ("attention.qkv", "attention.projection", "feed_forward.widen", "feed_forward.narrow")
    }
    assert {dtype for name, dtype in dtypes.items() if "blocks" not in name} == {torch.float32}
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("rung", RUNGS)
def test_gradients_are_float32_and_near_the_exact_ones(rung: str, precision: torch.dtype) -> None:
    model, ids = woken(RUNGS[rung]), torch.randint(V, (4, 12))
    exact, half = gradients(model, ids, torch.float32), gradients(model, ids, precision)
    assert exact.keys() == half.keys()
    for name, gradient in exact.items():
        assert half[name].dtype == torch.float32
        tolerance = 0.15 if precision == torch.bfloat16 else 0.05
        assert float((half[name] - gradient).norm()) < tolerance * float(gradient.norm()) + 1e-6, name


def test_the_loss_scale_is_a_power_of_two_that_grows_with_the_batch() -> None:
    assert [loss_scale(torch.float16, characters) for characters in (1, 1024, 1025, 16_384)] == [
        1024,
        1024,
        2048,
        16_384,
    ]
    assert loss_scale(torch.bfloat16, 16_384) == loss_scale(torch.float32, 16_384) == 1


def test_gradients_too_small_for_float16_are_not_lost() -> None:
    model, ids = woken(replace(RUNGS["gpt"], bigram=False)), torch.randint(V, (4, 12))
    assert model.stream is not None
    with torch.no_grad():
        model.stream.head.weight *= 1e-5  # what comes back to the blocks is as small
    exact, half = gradients(model, ids, torch.float32), gradients(model, ids, torch.float16)
    name = "stream.blocks.0.attention.qkv.weight"
    assert float((half[name] - exact[name]).norm()) < 0.05 * float(exact[name].norm())


def test_a_step_in_parts_has_the_gradient_of_the_whole() -> None:
    model, ids = woken(RUNGS["gpt"]), torch.randint(V, (4, 12))
    whole = gradients(model, ids, torch.bfloat16)
    model.zero_grad()
    network = in_precision(model, torch.bfloat16)  # cast once for all parts
    for part in ids.chunk(2):
        (F.cross_entropy(network(part).flatten(0, 1), part.flatten()) / 2).backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None
        assert float((weight.grad - whole[name]).norm()) < 0.02 * float(whole[name].norm()), name


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_it_trains_and_keeps_float32_weights_and_memory(precision: str, tmp_path: Path) -> None:
    result = script("train.py", *SMALL, f"trainer.precision={precision}", "hydra.run.dir=run", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    checkpoint = torch.load(tmp_path / "run" / "last.pt", weights_only=True)
    memories = [value for memory in checkpoint["optimizer"]["state"].values() for value in memory.values()]
    assert {weight.dtype for weight in [*checkpoint["model"].values(), *memories]} == {torch.float32}
    assert checkpoint["best"]["step"] == 20
    evaluated = script("evaluate.py", "checkpoint=run", "json=true", cwd=tmp_path)
    assert f'"loss": {checkpoint["best"]["loss_val"]!r}' in evaluated.stdout  # the same to the last bit


@pytest.mark.slow
def test_a_compiled_model_computes_in_it_too() -> None:
    model, ids = woken(RUNGS["gpt"]), torch.randint(V, (4, 12))
    plain = gradients(model, ids, torch.bfloat16)
    fast = compiled(model, lambda network: in_precision(network, torch.bfloat16)(ids).sum())
    assert fast is not model
    gradients(fast, ids, torch.bfloat16)
    for name, weight in model.named_parameters():
        assert weight.grad is not None
        assert float((weight.grad - plain[name]).norm()) < 0.05 * float(plain[name].norm()) + 1e-6, name
