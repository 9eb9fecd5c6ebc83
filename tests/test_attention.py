"""Attention: equal to loops over scalars, causal to the bit, and many heads equal to each head alone."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.attention import CausalSelfAttentionHead, MultiHeadAttention, Rotation, causal_attention, causal_average
from model.reference import causal_attention_by_loop, causal_average_by_loop

SHAPES = given(
    time=st.integers(1, 9), head_size=st.integers(1, 9), width=st.integers(1, 9), seed=st.integers(0, 2**31 - 1)
)


@SHAPES
@settings(max_examples=60, deadline=None)
def test_attention_equals_the_loop(time: int, head_size: int, width: int, seed: int) -> None:
    torch.manual_seed(seed)
    query, key, value = torch.randn(time, head_size) * 3, torch.randn(time, head_size) * 3, torch.randn(time, width)
    fast = causal_attention(query[None, None], key[None, None], value[None, None])[0, 0]
    assert torch.allclose(fast.double(), causal_attention_by_loop(query, key, value), atol=1e-5)


@SHAPES
@settings(max_examples=60, deadline=None)
def test_the_average_equals_the_loop(time: int, head_size: int, width: int, seed: int) -> None:
    torch.manual_seed(seed)
    value = torch.randn(time, width)
    assert torch.allclose(causal_average(value).double(), causal_average_by_loop(value), atol=1e-5)


def test_equal_scores_are_the_average() -> None:
    value = torch.randn(7, 3)
    zeros = torch.zeros(7, 4)
    assert torch.allclose(causal_attention_by_loop(zeros, zeros, value), causal_average_by_loop(value))


@SHAPES
@settings(max_examples=40, deadline=None)
def test_a_head_is_attention_over_its_projections(time: int, head_size: int, width: int, seed: int) -> None:
    torch.manual_seed(seed)
    head = CausalSelfAttentionHead(width, head_size, block_size=9)
    x = torch.randn(2, time, width)
    expected = causal_attention_by_loop(head.query(x[1]), head.key(x[1]), head.value(x[1]))
    assert head(x).shape == (2, time, head_size)
    assert torch.allclose(head(x)[1].double(), expected, atol=1e-5)


@given(n_head=st.integers(1, 5), head_size=st.integers(1, 6), n_embd=st.integers(1, 12), time=st.integers(1, 8))
@settings(max_examples=40, deadline=None)
def test_many_heads_equal_each_head_alone(n_head: int, head_size: int, n_embd: int, time: int) -> None:
    many = MultiHeadAttention(n_embd, n_head, head_size, block_size=8)
    x = torch.randn(3, time, n_embd)
    weights = many.qkv.weight.view(3, n_head, head_size, n_embd)
    outputs = []
    for number in range(n_head):
        head = CausalSelfAttentionHead(n_embd, head_size, block_size=8)
        with torch.no_grad():
            for part, projection in enumerate((head.query, head.key, head.value)):
                projection.weight.copy_(weights[part, number])
        outputs.append(head(x))
    assert torch.allclose(many(x), many.projection(torch.cat(outputs, dim=-1)), atol=1e-6)


def test_uniform_heads_average_their_values() -> None:
    many = MultiHeadAttention(6, 2, 3, block_size=8, uniform=True)
    x = torch.randn(1, 8, 6)
    expected = many.projection(causal_average_by_loop(many.qkv(x[0])).float())
    assert torch.allclose(many(x)[0], expected, atol=1e-6)
    assert sum(weight.numel() for weight in many.parameters()) == 2 * 6 * 6


def test_rotation_is_the_formula() -> None:
    rotation = Rotation(head_size=6, block_size=5)
    x = torch.randn(5, 6)
    turned = rotation(x)
    for t in range(5):
        for pair in range(3):
            angle = t / 10_000 ** (2 * pair / 6)
            first, second = float(x[t, pair]), float(x[t, pair + 3])
            assert float(turned[t, pair]) == pytest.approx(first * math.cos(angle) - second * math.sin(angle), abs=1e-5)
            assert float(turned[t, pair + 3]) == pytest.approx(
                first * math.sin(angle) + second * math.cos(angle), abs=1e-5
            )


def test_turned_scores_depend_on_distance_alone() -> None:
    rotation = Rotation(head_size=8, block_size=20)
    query, key = rotation(torch.randn(8).expand(20, 8)), rotation(torch.randn(8).expand(20, 8))
    scores = query @ key.T
    for distance in range(1, 19):
        assert torch.allclose(scores.diagonal(-distance), scores[distance, 0].expand(20 - distance), atol=1e-4)


def test_normed_queries_and_keys_have_bounded_scores() -> None:
    many = MultiHeadAttention(16, 2, 8, block_size=4, qk_norm=True)
    x = torch.randn(1, 4, 16)
    before = many(x)
    with torch.no_grad():
        many.qkv.weight[:32] *= 1000  # queries and keys, but not values
    assert torch.allclose(many(x), before, atol=1e-4)


def test_dropout_is_off_outside_training() -> None:
    torch.manual_seed(0)
    for module in (CausalSelfAttentionHead(8, 4, 16, dropout=0.5), MultiHeadAttention(8, 2, 4, 16, dropout=0.5)):
        x = torch.randn(2, 16, 8)
        assert not torch.equal(module(x), module(x))
        module.eval()
        assert torch.equal(module(x), module(x))


def test_a_window_that_is_too_long_is_refused() -> None:
    for module in (CausalSelfAttentionHead(8, 4, 16), MultiHeadAttention(8, 2, 4, 16)):
        with pytest.raises(ValueError, match="17 characters, but block_size is 16"):
            module(torch.randn(1, 17, 8))


def test_no_mask_or_rotation_is_saved() -> None:
    assert set(MultiHeadAttention(8, 2, 4, 16, rotary=True).state_dict()) == {"qkv.weight", "projection.weight"}
    assert set(CausalSelfAttentionHead(8, 4, 16).state_dict()) == {"query.weight", "key.weight", "value.weight"}
