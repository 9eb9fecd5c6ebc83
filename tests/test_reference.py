"""The mathematics as loops and as matrices: the two agree, and both print what the studies behind this project printed."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from model.reference import (
    attention_by_loop,
    causal_average_by_loop,
    causal_average_by_matrix,
    unweighted_attention_by_loop,
    unweighted_attention_by_matrix,
)

SIZES = given(
    batch=st.integers(1, 3), time=st.integers(1, 9), channels=st.integers(1, 6), seed=st.integers(0, 2**31 - 1)
)
PRINTED = 5.1e-5  # what four decimals leave open


def close(found: Tensor, printed: list[float] | list[list[float]]) -> bool:
    return torch.allclose(found.double(), torch.tensor(printed, dtype=torch.float64), atol=PRINTED, rtol=0)


@SIZES
@settings(max_examples=200, deadline=None)
def test_the_average_by_loop_and_by_matrix(batch: int, time: int, channels: int, seed: int) -> None:
    x = torch.randn(batch, time, channels, generator=torch.Generator().manual_seed(seed))
    looped = causal_average_by_loop(x)
    assert torch.allclose(looped, causal_average_by_matrix(x), atol=1e-12)
    assert torch.allclose(looped[:, -1], x.double().mean(1), atol=1e-12)


@SIZES
@settings(max_examples=200, deadline=None)
def test_unweighted_attention_by_loop_and_by_matrix(batch: int, time: int, channels: int, seed: int) -> None:
    x = torch.randn(batch, time, channels, generator=torch.Generator().manual_seed(seed))
    whole = unweighted_attention_by_matrix(x)
    for b in range(batch):
        assert torch.allclose(unweighted_attention_by_loop(x[b]), whole[b], atol=1e-12)


def test_the_average_of_the_first_study() -> None:
    torch.manual_seed(1337)
    x = torch.randn(4, 8, 2)
    for average in (causal_average_by_loop(x), causal_average_by_matrix(x)):
        assert close(
            average[0],
            [
                [0.1808, -0.0700], [-0.0894, -0.4926], [0.1490, -0.3199], [0.3504, -0.2238],
                [0.3525, 0.0545], [0.0688, -0.0396], [0.0927, -0.0682], [-0.0341, 0.1332],
            ],
        )  # fmt: skip
        assert close(average[1:, 7], [[0.2527, 0.2149], [-0.3015, -0.2293], [1.1138, -0.1641]])
        assert close(average[1:, 0], [[1.3488, -0.1396], [-0.6631, -0.2513], [1.6455, -0.8030]])


def test_the_head_of_the_first_study() -> None:
    torch.manual_seed(1337)
    x = torch.randn(4, 8, 32)
    key, query, value = (nn.Linear(32, 16, bias=False) for _ in range(3))
    scores = query(x[0]) @ key(x[0]).T
    assert close(scores[1], [-3.3334, -1.6556, 0.1040, 3.3782, -2.1825, 1.0415, -0.0557, 0.2927])
    assert close(scores[7], [-1.8044, -0.4126, -0.8306, 0.5898, -0.7987, -0.5856, 0.6433, 0.6303])
    # That study did not divide by sqrt(S) yet, so its queries are multiplied beforehand.
    output, weights = attention_by_loop(math.sqrt(16) * query(x[0]), key(x[0]), value(x[0]), causal=True)
    assert output.shape == (8, 16)
    assert close(
        weights,
        [
            [1.0000, 0.0000, 0.0000, 0.0000, 0.0000, 0.0000, 0.0000, 0.0000],
            [0.1574, 0.8426, 0.0000, 0.0000, 0.0000, 0.0000, 0.0000, 0.0000],
            [0.2088, 0.1646, 0.6266, 0.0000, 0.0000, 0.0000, 0.0000, 0.0000],
            [0.5792, 0.1187, 0.1889, 0.1131, 0.0000, 0.0000, 0.0000, 0.0000],
            [0.0294, 0.1052, 0.0469, 0.0276, 0.7909, 0.0000, 0.0000, 0.0000],
            [0.0176, 0.2689, 0.0215, 0.0089, 0.6812, 0.0019, 0.0000, 0.0000],
            [0.1691, 0.4066, 0.0438, 0.0416, 0.1048, 0.2012, 0.0329, 0.0000],
            [0.0210, 0.0843, 0.0555, 0.2297, 0.0573, 0.0709, 0.2423, 0.2391],
        ],
    )


def test_the_first_row_of_the_second_study_by_hand() -> None:
    torch.manual_seed(0)
    torch.randn(1, 3, 2)
    x = torch.randn(3, 2)
    scores = [float(x[0] @ x[j]) for j in range(3)]
    total = sum(map(math.exp, scores))
    first = sum(math.exp(score) / total * x[j] for j, score in enumerate(scores))
    assert torch.allclose(unweighted_attention_by_loop(x)[0].float(), torch.as_tensor(first), atol=1e-6)


def test_attention_by_hand() -> None:
    query, key = torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    value = torch.tensor([[1.0], [10.0], [100.0]])
    one = math.exp(2 / math.sqrt(2))  # the weight of a key that fits, where one that does not has 1
    output, weights = attention_by_loop(query, key, value, causal=False)
    assert weights[0].tolist() == pytest.approx([one / (2 * one + 1), 1 / (2 * one + 1), one / (2 * one + 1)])
    assert float(output[1, 0]) == pytest.approx((1 + 10 * one + 100 * one) / (2 * one + 1))
    # Two queries after three keys are the last two positions: the first of them does not see the last key.
    _, weights = attention_by_loop(query, key, value, causal=True)
    assert weights[0].tolist() == pytest.approx([one / (one + 1), 1 / (one + 1), 0])
    _, weights = attention_by_loop(query, key, value, causal=True, padding_mask=torch.tensor([False, False, True]))
    assert weights.tolist() == [[0, 0, 0], [0, 0, 1]]


def test_equal_scores_are_the_average() -> None:
    value, zeros = torch.randn(7, 3), torch.zeros(7, 4)
    output, _ = attention_by_loop(zeros, zeros, value, causal=True)
    assert torch.allclose(output, causal_average_by_loop(value[None])[0])
