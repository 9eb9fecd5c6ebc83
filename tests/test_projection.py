"""The linear layer of blocks is torch's, whatever the number of rows and threads."""

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

from model import projection
from model.projection import Projection


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("shape", [(1, 1, 48), (48,), (2, 1, 48), (1, 5, 48)])
@pytest.mark.parametrize("rows", [5, 6, 64])
def test_it_is_the_linear_layer_of_torch(
    threads: int, rows: int, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projection, "LARGE", 0)
    layer, x = Projection(48, rows), torch.randn(shape, requires_grad=True)
    expected = F.linear(x, layer.weight)
    output = layer(x)
    assert output.shape == expected.shape
    assert torch.allclose(output, expected, atol=1e-6)
    for parameter in (x, layer.weight):
        (ours,) = torch.autograd.grad(output.square().sum(), parameter, retain_graph=True)
        (theirs,) = torch.autograd.grad(expected.square().sum(), parameter, retain_graph=True)
        assert torch.allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_row_of_a_large_matrix_in_float32_is_cut_into_parts(dtype: torch.dtype) -> None:
    layer = Projection(512, 512).to(dtype)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        layer(torch.randn(1, 1, 512, dtype=dtype))
    assert ("aten::bmm" in {event.key for event in seen.key_averages()}) == (dtype == torch.float32)
