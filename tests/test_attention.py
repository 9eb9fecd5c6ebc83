"""Attention: every path, and the head alone, equal to loops over scalars in every variant."""

import math
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from model.attention import (
    CausalSelfAttentionHead,
    MultiHeadAttention,
    causal_average,
    fused_attention,
    plain_attention,
)
from model.reference import attention_by_loop, causal_average_by_matrix


class Case(NamedTuple):
    """One problem: (B, Q, S), (B, K, S), (B, K, C) and what may be seen."""

    query: Tensor
    key: Tensor
    value: Tensor
    causal: bool
    padding_mask: Tensor | None

    def to(self, precision: torch.dtype) -> "Case":
        return self._replace(query=self.query.to(precision), key=self.key.to(precision), value=self.value.to(precision))


@st.composite
def padding_masks(draw: st.DrawFn, batch: int, keys: int) -> Tensor | None:
    """None, or any mask: padding left or right or within, a text that is all padding among them."""
    if draw(st.booleans()):
        return None
    rows = st.lists(st.booleans(), min_size=keys, max_size=keys)
    return torch.tensor([draw(rows | st.just([False] * keys)) for _ in range(batch)])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    batch, queries, head_size, channels = (draw(st.integers(1, most)) for most in (3, 9, 9, 9))
    causal = draw(st.booleans())
    keys = draw(st.integers(queries, 12) if causal else st.integers(1, 12))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31 - 1)))
    shapes = ((batch, queries, head_size), (batch, keys, head_size), (batch, keys, channels))
    query, key, value = (torch.randn(shape, generator=generator) for shape in shapes)
    return Case(query, key, value, causal, draw(padding_masks(batch, keys)))


def both_paths_equal_the_loop(case: Case, tolerance: float) -> None:
    plain, weights = plain_attention(*case[:3], causal=case.causal, padding_mask=case.padding_mask)
    fused = fused_attention(*case[:3], causal=case.causal, padding_mask=case.padding_mask)
    assert plain.dtype == fused.dtype == weights.dtype == case.query.dtype
    for b in range(len(case.query)):
        mask = None if case.padding_mask is None else case.padding_mask[b]
        expected = attention_by_loop(case.query[b], case.key[b], case.value[b], causal=case.causal, padding_mask=mask)
        for found, wanted in ((plain, expected[0]), (fused, expected[0]), (weights, expected[1])):
            assert float((found[b].double().cpu() - wanted).abs().max()) <= tolerance


@given(case=cases())
@settings(max_examples=250, deadline=None)
def test_both_paths_equal_the_loop_in_float32(case: Case) -> None:
    both_paths_equal_the_loop(case, tolerance=1e-5)


@given(case=cases())
# The same cases each time: the plain path rounds its scores to bfloat16, and some case in thousands comes to 2e-2.
@settings(max_examples=250, deadline=None, derandomize=True)
def test_both_paths_equal_the_loop_in_bfloat16(case: Case) -> None:
    both_paths_equal_the_loop(case.to(torch.bfloat16), tolerance=2e-2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here")
@given(case=cases())
@settings(max_examples=250, deadline=None, derandomize=True)
def test_both_paths_equal_the_loop_on_a_gpu(case: Case) -> None:
    mask = None if case.padding_mask is None else case.padding_mask.cuda()
    on_gpu = Case(case.query.cuda(), case.key.cuda(), case.value.cuda(), case.causal, mask)
    both_paths_equal_the_loop(on_gpu, tolerance=1e-5)
    both_paths_equal_the_loop(on_gpu.to(torch.bfloat16), tolerance=2e-2)


@pytest.mark.parametrize("path", ["plain", "fused"])
@given(case=cases())
@settings(max_examples=60, deadline=None)
def test_gradients_are_right_and_never_nan(path: str, case: Case) -> None:
    query, key, value = (part.double().requires_grad_() for part in case[:3])

    def output(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if path == "plain":
            return plain_attention(query, key, value, causal=case.causal, padding_mask=case.padding_mask)[0]
        return fused_attention(query, key, value, causal=case.causal, padding_mask=case.padding_mask)

    assert torch.autograd.gradcheck(output, (query, key, value))


@given(data=st.data(), causal=st.booleans(), cross=st.booleans(), n_embd=st.integers(1, 9), head_size=st.integers(1, 9))
@settings(max_examples=250, deadline=None)
def test_a_head_is_attention_over_its_projections(
    data: st.DataObject, causal: bool, cross: bool, n_embd: int, head_size: int
) -> None:
    batch, time, keys = (data.draw(st.integers(1, most)) for most in (3, 9, 12))
    torch.manual_seed(data.draw(st.integers(0, 2**31 - 1)))
    head = CausalSelfAttentionHead(n_embd, head_size, block_size=9, causal=causal)
    x, context = torch.randn(batch, time, n_embd), torch.randn(batch, keys, n_embd) if cross else None
    heard = x if context is None else context
    mask = data.draw(padding_masks(batch, heard.size(1)))
    output, weights = head(x, context, mask, return_weights=True)
    assert output.shape == (batch, time, head_size)
    assert weights.shape == (batch, time, heard.size(1))
    assert torch.allclose(head(x, context, mask), output, atol=1e-5)
    for b in range(batch):
        one = None if mask is None else mask[b]
        query, key, value = head.query(x[b]), head.key(heard[b]), head.value(heard[b])
        expected = attention_by_loop(query, key, value, causal=causal and not cross, padding_mask=one)
        assert torch.allclose(output[b].double(), expected[0], atol=1e-5)
        assert torch.allclose(weights[b].double(), expected[1], atol=1e-5)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("return_weights", [False, True])
def test_left_padding_gives_zeros_forward_and_finite_gradients_backward(
    return_weights: bool, precision: torch.dtype
) -> None:
    torch.manual_seed(0)
    head = CausalSelfAttentionHead(6, 4, block_size=8).to(precision)
    x = (10 * torch.randn(2, 8, 6)).to(precision).requires_grad_()  # scores far below zero and far above
    mask = torch.arange(8) >= torch.tensor([[3], [8]])  # three characters of padding, and nothing but padding
    with torch.autograd.detect_anomaly():
        found = head(x, padding_mask=mask, return_weights=return_weights)
        output = found[0] if return_weights else found
        output.square().sum().backward()
    assert torch.equal(output[0, :3], torch.zeros(3, 4, dtype=precision))
    assert torch.equal(output[1], torch.zeros(8, 4, dtype=precision))
    assert bool((output[0, 3:] != 0).all())
    gradients = [x.grad, *(weight.grad for weight in head.parameters())]
    assert all(gradient is not None and bool(torch.isfinite(gradient).all()) for gradient in gradients)
    assert x.grad is not None
    assert torch.equal(x.grad[1], torch.zeros(8, 6, dtype=precision))
    if return_weights:
        assert torch.equal(found[1].sum(-1) > 0, mask)


def test_scores_beyond_half_precision_do_not_show_the_future() -> None:
    query, key = torch.full((1, 4, 4), 110.0).half(), -torch.full((1, 4, 4), 110.0).half()
    key[:, 3] = 110  # what lies ahead fits best, and the others as badly as can be
    _, weights = plain_attention(query, key, key, causal=True)
    assert torch.equal(weights[0, :3], torch.ones(3, 4).tril().div(torch.arange(1, 4)[:, None]).half())


@pytest.mark.parametrize("return_weights", [False, True])
def test_padding_is_not_heard_whatever_it_holds(return_weights: bool) -> None:
    head = CausalSelfAttentionHead(6, 4, block_size=8)
    x, mask = torch.randn(2, 8, 6), torch.arange(8) >= torch.tensor([[3], [0]])

    def output() -> Tensor:
        found = head(x, padding_mask=mask, return_weights=return_weights)
        return found[0] if return_weights else found

    before = output()
    for filling in (math.nan, math.inf, 1e30):
        x[0, :3] = filling
        assert torch.equal(output()[mask], before[mask])


def test_padding_changes_nothing_for_the_others() -> None:
    head = CausalSelfAttentionHead(6, 4, block_size=8, causal=False)
    x = torch.randn(1, 5, 6)
    padded = torch.cat((x, torch.randn(1, 3, 6)), dim=1)
    mask = (torch.arange(8) < 5)[None]
    assert torch.allclose(head(padded, padding_mask=mask)[:, :5], head(x), atol=1e-6)
    assert bool((head(padded, padding_mask=mask)[:, 5:] != 0).all())  # padding asks, though nobody hears it


def test_shapes_that_do_not_fit_are_refused_by_name() -> None:
    for attention in (plain_attention, fused_attention):
        with pytest.raises(ValueError, match="3 queries cannot be the last of 2 positions"):
            attention(torch.randn(3, 4), torch.randn(2, 4), torch.randn(2, 4), causal=True)
    head = CausalSelfAttentionHead(6, 4, block_size=8)
    x = torch.randn(2, 5, 6)
    for wrong in (torch.ones(5).bool(), torch.ones(1, 5).bool(), torch.ones(2, 6).bool(), torch.ones(2, 5).long()):
        with pytest.raises(ValueError, match=r"padding_mask is torch\.\w+ of shape .*torch\.bool of shape \(2, 5\)"):
            head(x, padding_mask=wrong)
    with pytest.raises(ValueError, match=r"context holds 1 texts and x 2"):
        head(x, torch.randn(1, 3, 6))
    for wrong in (torch.randn(5, 6), torch.randn(2, 5, 7), torch.randn(2, 1, 5, 6), torch.randn(6)):
        with pytest.raises(ValueError, match=r"x has the shape \(.*\), but must be \(texts, characters, 6\)"):
            head(wrong)
        with pytest.raises(ValueError, match=r"context has the shape \(.*\), but must be \(texts, characters, 6\)"):
            head(x, wrong)
    for dropout in (-0.1, 1, 1.5):
        with pytest.raises(ValueError, match=f"dropout={dropout} must be at least 0 and below 1"):
            CausalSelfAttentionHead(6, 4, 8, dropout)
        with pytest.raises(ValueError, match=f"dropout={dropout} must be at least 0 and below 1"):
            MultiHeadAttention(6, 2, 4, 8, dropout)
    with pytest.raises(ValueError, match="head_size=7 must be even"):
        MultiHeadAttention(6, 2, 7, 8, rotary=True)


@given(time=st.integers(1, 300), channels=st.integers(1, 4), seed=st.integers(0, 2**31 - 1))
@settings(max_examples=30, deadline=None)
def test_the_average_equals_the_loop_in_half_precision_too(time: int, channels: int, seed: int) -> None:
    value = torch.randn(1, time, channels, generator=torch.Generator().manual_seed(seed))
    assert torch.allclose(causal_average(value).double(), causal_average_by_matrix(value), atol=1e-5)
    assert torch.allclose(causal_average(value.double()), causal_average_by_matrix(value), atol=1e-12)
    half = value.bfloat16()
    assert torch.allclose(causal_average(half).double(), causal_average_by_matrix(half), atol=1e-2)
