"""Dropout: each number by itself, the share that was asked for, the same mean, and its own derivative."""

import pytest
import torch

from model.dropout import Dropout, drop


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_a_share_is_zero_and_the_rest_is_scaled_up(share: float, precision: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.full((3, 111_111), 2.0, dtype=precision, requires_grad=True)  # a size that four does not divide
    y = drop(x, share)
    assert (y.dtype, y.shape) == (precision, x.shape)
    kept = y != 0
    deviation = (share * (1 - share) / x.numel()) ** 0.5
    assert float(kept.double().mean()) == pytest.approx(1 - share, abs=5 * deviation)
    assert torch.allclose(y[kept].float(), torch.tensor(2 / (1 - share)), rtol=0.02)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, (y / 2).detach())


def test_numbers_are_dropped_independently_of_their_neighbours() -> None:
    torch.manual_seed(0)
    kept = (drop(torch.ones(400_000), 0.25) != 0).double()
    for distance in (1, 2, 3, 4, 5, 8):
        both = float((kept[:-distance] * kept[distance:]).mean())
        assert both == pytest.approx(0.75**2, abs=0.004), distance


def test_each_draw_differs_and_the_seed_decides() -> None:
    torch.manual_seed(1)
    first, second = drop(torch.ones(100), 0.5), drop(torch.ones(100), 0.5)
    torch.manual_seed(1)
    assert torch.equal(drop(torch.ones(100), 0.5), first)
    assert not torch.equal(first, second)


def test_nothing_is_dropped_for_a_share_of_zero_or_in_evaluation() -> None:
    x = torch.randn(10)
    assert torch.equal(drop(x, 0.0), x)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert not torch.equal(Dropout(0.5)(x), x)
    assert drop(torch.ones(0), 0.5).shape == (0,)


def test_the_smallest_and_the_largest_share_leave_finite_numbers() -> None:
    assert torch.equal(drop(torch.ones(100), 1e-9), torch.ones(100))
    assert torch.isfinite(drop(torch.ones(200_000), 1 - 1e-9)).all()
