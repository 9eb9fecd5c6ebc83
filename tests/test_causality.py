"""Nothing of the future reaches the past: to the bit, on every path, and seen from what trained models achieve."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from configs.schema import DataConfig, ModelConfig, OptimizerConfig, TrainerConfig
from data import corpus as texts
from data.batches import Batches
from data.ngrams import bigram_log_probabilities
from data.playlet import write
from model.language_model import LanguageModel
from tests.models import RUNGS, V, woken
from training.optimizers import make_optimizer
from training.precision import in_precision

PATHS = ("plain", "fused", "plain cached", "fused cached")


def logits_of(model: LanguageModel, ids: Tensor, path: str, precision: str = "float32") -> Tensor:
    """ids (B, T) -> logits (B, T, V) by one of the paths; with a cache, five characters are read, then one by one."""
    model.use_attention(path.split()[0])
    network = in_precision(model, getattr(torch, precision))
    if "cached" not in path:
        return network(ids)
    cache = model.new_cache()
    cuts = [0, *range(min(5, ids.size(1)), ids.size(1) + 1)]
    return torch.cat([network(ids[:, begin:end], cache) for begin, end in pairwise(cuts)], dim=1)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("rung", RUNGS)
def test_the_future_never_changes_the_past(rung: str, path: str, precision: str) -> None:
    for block_size in (2, 12, 40):
        model = woken(replace(RUNGS[rung], block_size=block_size))
        ids = torch.randint(V, (3, block_size))
        with torch.no_grad():
            logits = logits_of(model, ids, path, precision)
            for t in {1, block_size // 2, block_size - 1}:
                changed = ids.clone()
                changed[:, t] = (changed[:, t] + 1) % V
                after = logits_of(model, changed, path, precision)
                assert torch.equal(after[:, :t], logits[:, :t])
                assert not torch.equal(after[:, t], logits[:, t])
                changed[:, t:] = torch.randint(V, changed[:, t:].shape)
                assert torch.equal(logits_of(model, changed, path, precision)[:, :t], logits[:, :t])


@pytest.mark.parametrize("path", ["plain", "fused"])
@pytest.mark.parametrize("rung", [rung for rung in RUNGS if rung != "bigram"])
def test_no_gradient_comes_back_from_earlier_losses_to_later_inputs(rung: str, path: str) -> None:
    model = woken(RUNGS[rung])
    inputs: list[Tensor] = []

    def keep(_: object, arguments: tuple[Tensor, ...]) -> None:
        arguments[0].retain_grad()
        inputs.append(arguments[0])

    assert model.stream is not None
    model.stream.blocks[0].register_forward_pre_hook(keep)
    ids = torch.randint(V, (2, 12))
    for precision in ("float32", "bfloat16"):
        for t in range(12):
            logits = logits_of(model, ids, path, precision)
            F.cross_entropy(logits[:, t].float(), ids[:, t]).backward()
            gradient = inputs.pop().grad
            assert gradient is not None
            assert torch.equal(gradient[:, t + 1 :], torch.zeros(2, 11 - t, 10))
            assert bool((gradient[:, t] != 0).any())


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("rung", RUNGS)
def test_every_path_gives_the_same_logits(rung: str, path: str) -> None:
    model = woken(RUNGS[rung])
    for length in (1, 4, 5, 6, 12):
        ids = torch.randint(V, (3, length))
        with torch.no_grad():
            plain = logits_of(model, ids, "plain")
            assert torch.allclose(logits_of(model, ids, path), plain, atol=1e-5)
            for precision, tolerance in (("bfloat16", 2e-2), ("float16", 1e-2)):
                half = logits_of(model, ids, path, precision)
                assert half.dtype == torch.float32
                assert float((half - plain).norm() / plain.norm()) < tolerance


@pytest.mark.parametrize("rung", RUNGS)
def test_a_cache_that_is_full_is_refused_and_stays_as_it_was(rung: str) -> None:
    model = woken(RUNGS[rung])
    cache = model.new_cache()
    ids = torch.randint(V, (2, 11))
    model(ids, cache)
    with pytest.raises(ValueError, match="13 characters, but block_size is 12"):
        model(ids[:, :2], cache)
    assert len(cache) == 11
    last = torch.randint(V, (2, 1))
    assert torch.allclose(model(last, cache), model(torch.cat((ids, last), dim=1))[:, -1:], atol=1e-5)


@pytest.mark.parametrize("path", ["plain", "fused"])
@pytest.mark.parametrize("attention", ["softmax", "uniform"])
def test_no_trained_model_gets_below_the_true_entropy(attention: str, path: str) -> None:
    characters, fraction = 200_000, 0.2
    corpus = texts.load(DataConfig(name="playlet", characters=characters, validation_fraction=fraction), 32)
    rotary = attention == "softmax"
    config = ModelConfig(
        block_size=32, n_layer=2, n_head=2, head_size=16, n_embd=48, attention=attention,
        positions="rotary" if rotary else "learned", qk_norm=rotary,
    )  # fmt: skip
    torch.manual_seed(1)
    model = LanguageModel(config, corpus.tokenizer.vocab_size)
    model.use_attention(path)
    assert model.bigram is not None
    table = bigram_log_probabilities(corpus.train, corpus.tokenizer.vocab_size)
    model.bigram.weight.data.copy_(torch.from_numpy(table))
    optimizer = make_optimizer(model, OptimizerConfig())
    batches = Batches(torch.from_numpy(corpus.train), 32, TrainerConfig().batch_size, seed=1)
    for step in range(250):
        windows = batches.windows(step)
        F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    _, true_nats = write(characters)
    ids = torch.from_numpy(corpus.validation).long()
    windows = ids[: len(ids) // 32 * 32].view(-1, 32)
    with torch.no_grad():
        logits = model.eval()(windows)
    nats = F.cross_entropy(logits[:, :-1].flatten(0, 1), windows[:, 1:].flatten(), reduction="none").double()
    floor = torch.from_numpy(true_nats[-len(ids) :])[: windows.numel()].view(-1, 32)[:, 1:].flatten()
    above = nats - floor
    sampling_error = float(above.std()) / math.sqrt(len(above))
    assert float(above.mean()) > -4 * sampling_error
    assert float(nats.mean()) < 0.8  # it was trained, so that a leak would have been learned
