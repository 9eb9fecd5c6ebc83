"""The model: causal to the bit on every rung of the ladder, honest at its start, and its parts add up."""

from collections.abc import Callable
from dataclasses import replace
from typing import cast
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from configs.schema import ModelConfig
from model.attention import MultiHeadAttention
from model.language_model import FeedForward, LanguageModel, NGramEmbedding, evaluating, normalised
from tests.models import RUNGS, V, woken


@pytest.mark.parametrize("rung", [rung for rung in RUNGS if rung != "bigram"])
def test_the_past_reaches_every_later_position(rung: str) -> None:
    model = woken(RUNGS[rung])
    ids = torch.randint(V, (1, 12))
    changed = ids.clone()
    changed[0, 0] = (changed[0, 0] + 1) % V
    differs = (model(changed) != model(ids)).any(-1)[0]
    assert bool(differs.all())


def test_the_bigram_hears_the_last_character_alone() -> None:
    model = woken(RUNGS["bigram"])
    assert model.bigram is not None
    ids = torch.randint(V, (2, 12))
    assert torch.equal(model(ids), model.bigram.weight[ids])


@pytest.mark.parametrize("rung", RUNGS)
def test_before_training_the_logits_are_the_bigram_table(rung: str) -> None:
    model = LanguageModel(RUNGS[rung], V)
    table = torch.randn(V, V)
    if model.bigram is not None:
        model.bigram.weight.data.copy_(table)
    ids = torch.randint(V, (2, 12))
    assert torch.equal(model(ids), table[ids] if model.bigram is not None else torch.zeros(2, 12, V))


@pytest.mark.parametrize("rung", RUNGS)
def test_every_weight_learns(rung: str) -> None:
    model = woken(RUNGS[rung])
    ids = torch.randint(V, (8, 12))
    F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
    for name, weight in model.named_parameters():
        if "previous_embeddings" in name and int(name.split(".")[2]) >= 11:
            continue  # farther back than the window reaches
        assert weight.grad is not None, name
        assert float(weight.grad.to_dense().abs().max()) > 0, name


@pytest.mark.parametrize("rung", RUNGS)
def test_the_parts_sum_to_the_whole(rung: str) -> None:
    model = LanguageModel(RUNGS[rung], V)
    assert sum(model.parameter_counts().values()) == sum(weight.numel() for weight in model.parameters())


def test_part_counts_by_hand() -> None:
    config = ModelConfig(block_size=8, n_layer=2, n_head=3, head_size=4, n_embd=10, n_previous=2, positions="learned")
    config.n_gram_order, config.n_gram_rows = 4, 100
    assert LanguageModel(config, V).parameter_counts() == {
        "embeddings": V * 10 * 3 + 8 * 10 + 100 * 10,
        "attention": 2 * (10 * 3 * 12 + 12 * 10),
        "feed-forward": 2 * (2 * 10 * 40),
        "head": 10 * V,
        "bigram table": V * V,
    }


def test_embeddings_of_previous_characters_are_the_formula() -> None:
    model = woken(replace(RUNGS["gpt"], n_previous=3, n_gram_order=0, positions="none"))
    assert model.stream is not None
    stream = model.stream
    ids = torch.randint(V, (1, 5))
    seen: list[torch.Tensor] = []
    stream.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(ids)
    for t in range(5):
        expected = stream.token_embedding.weight[ids[0, t]].clone()
        for distance in (1, 2, 3):
            if t >= distance:
                expected += cast(nn.Embedding, stream.previous_embeddings[distance - 1]).weight[ids[0, t - distance]]
        assert torch.allclose(seen[0][0, t], expected, atol=1e-6)


def test_the_n_gram_embedding_is_the_formula() -> None:
    embedding = NGramEmbedding(order=4, rows=50, n_embd=10, dropout=0.5).eval()
    ids = torch.randint(V, (2, 6))
    for window, result in zip(ids.tolist(), embedding(ids), strict=True):
        for t in range(6):
            rows = []
            for length in (2, 3, 4):
                code = window[t] + 1
                for earlier in range(t - 1, t - length, -1):
                    code = (code * 1_000_003 + (window[earlier] + 1 if earlier >= 0 else 0)) % (2**31 - 1)
                rows.append(embedding.table.weight[(code * 2_654_435_761 >> 16) % 50])
            assert torch.allclose(result[t], torch.stack(rows).sum(0), atol=1e-5)


def test_rows_of_n_grams_are_spread_and_know_every_character() -> None:
    embedding = NGramEmbedding(order=3, rows=65_536, n_embd=1, dropout=0)
    windows = torch.cartesian_prod(*[torch.arange(20)] * 3)
    rows = embedding.rows(windows)[:, -1]
    for length in (2, 3):  # n balls in m boxes fill m (1 - (1 - 1 / m) ** n) of them
        kinds = 20**length
        filled = 65_536 * (1 - (1 - 1 / 65_536) ** kinds)
        assert len(rows[:, length - 2].unique()) > 0.98 * filled


def test_rows_of_n_grams_are_left_out_in_training_only() -> None:
    embedding = NGramEmbedding(order=5, rows=50, n_embd=3, dropout=0.25)
    ids = torch.randint(V, (2, 2000))
    with torch.no_grad():
        embedding.table.weight.fill_(1)
        sums = embedding(ids)[..., 0]  # each of the four rows adds nothing, or 4 / 3
        assert torch.allclose(sums * 3 / 4, (sums * 3 / 4).round(), atol=1e-5)
        assert float(sums.mean()) == pytest.approx(4, abs=0.1)
        assert len(sums.unique()) == 5
        assert torch.equal(embedding.eval()(ids), torch.full((2, 2000, 3), 4.0))


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / 2**0.5)),
    "relu": lambda x: x.clamp(min=0),
    "squared_relu": lambda x: x.clamp(min=0) ** 2,
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_are_their_formulas(activation: str) -> None:
    model = woken(replace(RUNGS["gpt"], activation=activation))
    assert model.stream is not None
    part = cast(FeedForward, model.stream.blocks[0].feed_forward)
    x = torch.randn(4, 10, requires_grad=True)
    expected = ACTIVATIONS[activation](x @ part.widen.weight.T) @ part.narrow.weight.T
    assert torch.allclose(part(x), expected, atol=1e-5)
    gradients, expected_gradients = (
        torch.autograd.grad(output.square().sum(), [x, *part.parameters()]) for output in (part(x), expected)
    )
    for gradient, formula in zip(gradients, expected_gradients, strict=True):
        assert torch.allclose(gradient, formula, rtol=1e-4, atol=1e-5)


def test_norms_are_their_formulas() -> None:
    x = torch.randn(4, 10) * 3 + 1
    centred = x - x.mean(-1, keepdim=True)
    layer = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    root = x / x.square().mean(-1, keepdim=True).sqrt()
    assert torch.allclose(normalised(x, "layer_norm"), layer, atol=1e-5)
    assert torch.allclose(normalised(x, "rms_norm"), root, atol=1e-5)


def test_dropout_is_heard_in_training_only() -> None:
    model = woken(replace(RUNGS["gpt"], dropout=0.5))
    ids = torch.randint(V, (2, 12))
    assert torch.equal(model(ids), model(ids))
    model.train()
    assert not torch.equal(model(ids), model(ids))


@pytest.mark.parametrize("rung", RUNGS)
def test_weights_to_look_at_are_those_of_what_each_layer_hears(rung: str) -> None:
    model = woken(replace(RUNGS[rung], dropout=0.5))
    layers = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    expected: list[torch.Tensor] = []
    hooks = [
        layer.register_forward_pre_hook(lambda module, inputs: expected.append(module.weights(inputs[0])))
        for layer in layers
    ]
    ids = torch.randint(V, (2, 12))
    model(ids)
    for hook in hooks:
        hook.remove()
    weights = model.train().attention_weights(ids)
    assert len(weights) == len(layers) == RUNGS[rung].n_layer
    for found, wanted in zip(weights, expected, strict=True):
        assert torch.equal(found, wanted)
    assert model.training


def test_a_window_that_is_too_long_is_refused() -> None:
    for rung in ("bigram", "gpt"):
        with pytest.raises(ValueError, match="13 characters, but block_size is 12"):
            LanguageModel(RUNGS[rung], V)(torch.zeros(1, 13, dtype=torch.long))


@pytest.mark.parametrize("rung", RUNGS)
def test_nothing_in_nothing_out(rung: str) -> None:
    model = woken(RUNGS[rung])
    ids = torch.randint(V, (2, 5))
    assert model(ids[:0]).shape == (0, 5, V)
    assert model(ids[:, :0]).shape == (2, 0, V)
    cache = model.new_cache()
    model(ids, cache)
    assert model(ids[:, :0], cache).shape == (2, 0, V)
    assert torch.allclose(model(ids[:, :1], cache), model(torch.cat((ids, ids[:, :1]), dim=1))[:, -1:], atol=1e-5)


def test_a_cache_that_was_broken_off_in_mid_pass_is_refused() -> None:
    model = woken(RUNGS["gpt"])
    assert model.stream is not None
    ids = torch.randint(V, (2, 5))
    cache = model.new_cache()
    model(ids, cache)
    last = model.stream.blocks[-1].attention
    assert isinstance(last, MultiHeadAttention)
    with mock.patch.object(last, "forward", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        model(ids[:, :1], cache)
    with pytest.raises(ValueError, match="a pass with this cache was broken off"):
        model(ids[:, :1], cache)


def test_evaluating_puts_back_the_mode_of_every_part() -> None:
    model = woken(RUNGS["gpt"]).train()
    assert model.stream is not None
    model.stream.blocks[0].eval()
    modes = [module.training for module in model.modules()]

    def broken_off() -> None:
        with evaluating(model):
            assert not any(module.training for module in model.modules())
            raise KeyError

    with pytest.raises(KeyError):
        broken_off()
    assert [module.training for module in model.modules()] == modes
    assert {*modes} == {False, True}


def test_sizes_build_the_same_model_again() -> None:
    model = woken(RUNGS["gpt"])
    sizes = model.sizes()
    again = LanguageModel(
        ModelConfig(**{key: value for key, value in sizes.items() if key != "vocab_size"}), sizes["vocab_size"]
    )
    again.load_state_dict(model.state_dict())
    ids = torch.randint(V, (2, 12))
    assert torch.equal(again.eval()(ids), model(ids))
