"""Evaluation: the whole split, exactly, whatever the batch size, without disturbing training."""

import math

import pytest
import torch
import torch.nn.functional as F

from configs.schema import ModelConfig, TrainerConfig
from model.language_model import LanguageModel
from training.device import choose_setup
from training.evaluation import evaluate, position_groups

SETUP = choose_setup(TrainerConfig(device="cpu", threads=1))
V = 7


def model_of(block_size: int) -> LanguageModel:
    torch.manual_seed(0)
    config = ModelConfig(block_size=block_size, n_layer=1, n_head=1, head_size=4, n_embd=8, dropout=0.5)
    model = LanguageModel(config, V)
    for weight in model.parameters():
        weight.data.normal_(std=0.5)
    return model


@pytest.mark.parametrize("stride", [None, 1, 3, 5, 7, 8])
@pytest.mark.parametrize("characters", [2, 3, 8, 9, 10, 16, 17, 25, 100])
def test_it_is_the_mean_over_every_character_but_the_first(characters: int, stride: int | None) -> None:
    model = model_of(8).eval()
    ids = torch.randint(V, (characters,), dtype=torch.uint8)
    nats: list[float] = []
    by_position: list[list[float]] = [[] for _ in range(8)]
    for t in range(1, characters):
        # The first of the windows, which begin every `stride` characters, that has this character among its targets.
        start = next(start for start in range(0, characters, stride or 8) if t <= start + 8)
        assert start == 0 or t - start >= 8 - (stride or 8) + 1
        logits = model(ids[start:t].long()[None])[0, -1].double()
        nats.append(float(F.cross_entropy(logits, ids[t].long())))
        by_position[t - 1 - start].append(nats[-1])
    evaluation = evaluate(model, ids, SETUP, stride, characters_at_once=24)
    assert evaluation.characters == characters - 1
    assert evaluation.characters_by_position == [len(position) for position in by_position if position]
    assert evaluation.nats == pytest.approx(sum(nats) / len(nats), abs=1e-6)
    assert evaluation.bits_per_char == pytest.approx(evaluation.nats / math.log(2))
    expected = [sum(position) / len(position) for position in by_position if position]
    assert evaluation.nats_by_position == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("at_once", [1, 8, 50, 10_000])
def test_the_batch_size_does_not_matter(at_once: int) -> None:
    model, ids = model_of(8), torch.randint(V, (1001,))
    assert evaluate(model, ids, SETUP, characters_at_once=at_once).nats == pytest.approx(
        evaluate(model, ids, SETUP).nats, abs=1e-6
    )


def test_twice_is_the_same_and_training_is_not_disturbed() -> None:
    model, ids = model_of(8).train(), torch.randint(V, (100,))
    before = torch.get_rng_state()
    first, second = evaluate(model, ids, SETUP), evaluate(model, ids, SETUP)
    assert first == second
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training


def test_what_is_called_between_batches_hears_how_far_it_is_and_can_end_it() -> None:
    model, heard = model_of(8).train(), list[int]()
    evaluate(model, torch.randint(V, (100,)), SETUP, None, heard.append, characters_at_once=24)
    assert heard == [0, 24, 48, 72, 96]

    def stop(counted: int) -> None:
        if counted == 48:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        evaluate(model, torch.randint(V, (100,)), SETUP, None, stop, characters_at_once=24)
    assert model.training


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 9, 64, 100])
def test_groups_of_positions_hold_each_position_once(length: int) -> None:
    groups = position_groups(length)
    positions = range(length)
    assert [position for group in groups for position in positions[group]] == list(positions)
    assert [group.start for group in groups] == [0, *(2**power for power in range(20) if 2**power < length)]


def test_the_mode_comes_back_even_after_an_exception() -> None:
    model = model_of(8).train()
    with pytest.raises(IndexError):
        evaluate(model, torch.full((20,), V + 5), SETUP)
    assert model.training


def test_the_last_short_window_counts_by_its_characters() -> None:
    """A mean of window means would weigh the last one wrongly."""
    model = LanguageModel(ModelConfig(block_size=4, n_layer=0, n_previous=0, n_gram_order=0), 2)
    assert model.bigram is not None
    model.bigram.weight.data.copy_(torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log())
    ids = torch.tensor([0, 0, 0, 0, 0, 1])
    assert evaluate(model, ids, SETUP).nats == pytest.approx(-(4 * math.log(0.9) + math.log(0.1)) / 5)
