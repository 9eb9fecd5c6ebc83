"""Many heads in one product: equal to each head alone, with rotary positions, norms, dropout and a cache."""

import math
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from model.attention import Cache, CausalSelfAttentionHead, MultiHeadAttention, Rotation
from model.reference import causal_average_by_loop


@pytest.mark.parametrize("path", ["plain", "fused"])
@given(
    n_head=st.integers(1, 5),
    head_size=st.integers(1, 6),
    n_embd=st.integers(1, 12),
    time=st.integers(1, 8),
    seed=st.integers(0, 2**31 - 1),
)
@settings(max_examples=200, deadline=None)
def test_many_heads_equal_each_head_alone(
    path: str, n_head: int, head_size: int, n_embd: int, time: int, seed: int
) -> None:
    torch.manual_seed(seed)
    many = MultiHeadAttention(n_embd, n_head, head_size, block_size=8)
    many.path = path
    x = torch.randn(3, time, n_embd)
    weights = many.qkv.weight.view(3, n_head, head_size, n_embd)
    outputs = []
    for number in range(n_head):
        head = CausalSelfAttentionHead(n_embd, head_size, block_size=8)
        with torch.no_grad():
            for part, projection in enumerate((head.query, head.key, head.value)):
                projection.weight.copy_(weights[part, number])
        output, seen = head(x, return_weights=True)
        outputs.append(output)
        assert torch.allclose(many.weights(x)[:, number], seen, atol=1e-6)
    assert torch.allclose(many(x), many.projection(torch.cat(outputs, dim=-1)), atol=1e-6)


def test_the_path_that_is_chosen_is_taken() -> None:
    many = MultiHeadAttention(6, 2, 3, block_size=8)
    for path in ("plain", "fused", "plain"):
        many.path = path
        with mock.patch(f"model.attention.{path}_attention", side_effect=KeyError), pytest.raises(KeyError):
            many(torch.randn(1, 4, 6))


@pytest.mark.parametrize("path", ["plain", "fused"])
@pytest.mark.parametrize("uniform", [False, True])
def test_stored_keys_and_values_serve_for_new_characters(path: str, uniform: bool) -> None:
    many = MultiHeadAttention(6, 2, 4, block_size=8, rotary=not uniform, qk_norm=not uniform, uniform=uniform)
    many.path = path
    x = torch.randn(3, 8, 6)
    whole = many(x)
    for lengths in ((1,) * 8, (3, 1, 1, 3), (8,), (7, 1)):
        cache, outputs, done = Cache(room=8), [], 0
        for length in lengths:
            outputs.append(many(x[:, done : done + length], cache))
            done += length
            assert len(cache) == done
        assert torch.allclose(torch.cat(outputs, dim=1), whole, atol=1e-5)
        with pytest.raises(ValueError, match="9 characters, but block_size is 8"):
            many(x[:, :1], cache)
        assert len(cache) == 8


def test_uniform_heads_average_their_values() -> None:
    many = MultiHeadAttention(6, 2, 3, block_size=8, uniform=True)
    x = torch.randn(1, 8, 6)
    expected = many.projection(causal_average_by_loop(many.qkv(x)).float()[0])
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


@pytest.mark.parametrize("path", ["plain", "fused"])
def test_dropout_drops_weights_in_training_alone(path: str) -> None:
    torch.manual_seed(0)
    head, many = CausalSelfAttentionHead(8, 4, 16, dropout=0.5), MultiHeadAttention(8, 2, 4, 16, dropout=0.5)
    many.path = path
    x = torch.randn(2, 16, 8)

    def outputs() -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return head(x, return_weights=True)[0] if path == "plain" else head(x), many(x)

    drawn = [outputs() for _ in range(1500)]
    head.eval()
    many.eval()
    for number, exact in enumerate(outputs()):
        assert torch.equal(outputs()[number], exact)
        assert not torch.equal(drawn[0][number], drawn[1][number])
        # What is kept is scaled up, so that the mean is the output without dropout.
        assert float((torch.stack([pair[number] for pair in drawn]).mean(0) - exact).abs().max()) < 0.1
        # Each weight by itself is dropped. The first character hears only itself, so it hears nothing in half of the
        # draws of one head, and in a quarter of those of two.
        silent = torch.stack([pair[number][0, 0].abs().sum() == 0 for pair in drawn]).double().mean()
        assert float(silent) == pytest.approx((0.5, 0.25)[number], abs=0.06)


def test_a_window_that_is_too_long_is_refused() -> None:
    for module in (CausalSelfAttentionHead(8, 4, 16), MultiHeadAttention(8, 2, 4, 16)):
        with pytest.raises(ValueError, match="17 characters, but block_size is 16"):
            module(torch.randn(1, 17, 8))


def test_weights_to_look_at_are_those_that_are_used() -> None:
    for uniform in (False, True):
        many = MultiHeadAttention(6, 2, 4, block_size=8, rotary=not uniform, uniform=uniform)
        x = torch.randn(3, 8, 6)
        weights = many.weights(x)  # (B, H, T, T)
        value = many.qkv(x)[..., -8:].view(3, 8, 2, 4).transpose(1, 2)
        assert torch.allclose(many.projection((weights @ value).transpose(1, 2).flatten(2)), many(x), atol=1e-6)


def test_no_mask_or_rotation_is_saved() -> None:
    assert set(MultiHeadAttention(8, 2, 4, 16, rotary=True).state_dict()) == {"qkv.weight", "projection.weight"}
    assert set(CausalSelfAttentionHead(8, 4, 16).state_dict()) == {"query.weight", "key.weight", "value.weight"}
