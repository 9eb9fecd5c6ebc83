"""Choosing characters: the distribution and its filters are what they say, and a text is a function of its seed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from configs.schema import ModelConfig, UserError
from model.generation import Choice, draw, generate, next_distribution
from model.language_model import LanguageModel
from tests.models import RUNGS, V, woken

LOGITS = torch.tensor([1.0, 3.0, 2.0, -1.0, 3.0])


def test_plain_is_the_softmax() -> None:
    assert torch.allclose(next_distribution(LOGITS, Choice()), LOGITS.double().softmax(0))


def test_temperature_divides_the_logits() -> None:
    assert torch.allclose(next_distribution(LOGITS, Choice(0.5)), (LOGITS.double() * 2).softmax(0))


@pytest.mark.parametrize("temperature", [0, 1e-8, 1e-300])
def test_no_temperature_is_the_likeliest_character(temperature: float) -> None:
    logits = torch.tensor([1.0, 2.0, 5.0, 4.0])
    assert next_distribution(logits, Choice(temperature)).tolist() == [0, 0, 1, 0]


def test_ties_go_to_the_lower_id() -> None:
    assert next_distribution(LOGITS, Choice(0)).tolist() == [0, 1, 0, 0, 0]
    assert next_distribution(LOGITS, Choice(top_k=1)).tolist() == [0, 1, 0, 0, 0]


def test_a_huge_temperature_makes_all_alike() -> None:
    assert torch.allclose(next_distribution(LOGITS, Choice(1e9)), torch.full((5,), 0.2, dtype=torch.float64), atol=1e-6)


def test_top_k_keeps_the_likeliest() -> None:
    kept = next_distribution(LOGITS, Choice(top_k=3))
    assert kept.nonzero().flatten().tolist() == [1, 2, 4]
    assert torch.allclose(kept[[1, 2, 4]], LOGITS[[1, 2, 4]].double().softmax(0))
    assert torch.equal(next_distribution(LOGITS, Choice(top_k=99)), next_distribution(LOGITS, Choice()))


def test_top_p_keeps_the_fewest_that_hold_the_share() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert next_distribution(logits, Choice(top_p=0.79)).tolist() == pytest.approx([0.625, 0.375, 0, 0])
    assert next_distribution(logits, Choice(top_p=0.81)).nonzero().numel() == 3
    assert next_distribution(logits, Choice(top_p=1.0)).nonzero().numel() == 4
    assert next_distribution(logits, Choice(top_p=1e-9)).tolist() == [1, 0, 0, 0]


def test_min_p_keeps_those_that_are_nearly_as_likely_as_the_likeliest() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert next_distribution(logits, Choice(min_p=0.6)).tolist() == pytest.approx([4 / 7, 3 / 7, 0, 0])
    assert next_distribution(logits, Choice(min_p=0.2)).nonzero().numel() == 4
    assert next_distribution(logits, Choice(min_p=1)).tolist() == [1, 0, 0, 0]


def test_top_p_counts_what_top_k_left() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert next_distribution(logits, Choice(top_k=2, top_p=0.5)).tolist() == [1, 0, 0, 0]
    assert next_distribution(logits, Choice(top_k=2, top_p=0.6)).nonzero().numel() == 2


@given(
    logits=st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=12),
    temperature=st.just(0.0) | st.floats(1e-9, 1e9),
    top_k=st.none() | st.integers(1, 15),
    top_p=st.none() | st.floats(1e-9, 1),
    min_p=st.none() | st.floats(1e-9, 1),
)
def test_it_is_always_a_distribution(
    logits: list[float], temperature: float, top_k: int | None, top_p: float | None, min_p: float | None
) -> None:
    distribution = next_distribution(torch.tensor(logits), Choice(temperature, top_k, top_p, min_p))
    assert float(distribution.sum()) == pytest.approx(1)
    assert float(distribution.min()) >= 0
    assert int((distribution > 0).sum()) <= (top_k or len(logits))


def test_damaged_weights_are_noticed() -> None:
    for bad in (math.nan, math.inf):
        with pytest.raises(UserError, match="not finite"):
            next_distribution(torch.tensor([0.0, bad]), Choice())


def test_many_texts_are_filtered_each_by_itself() -> None:
    logits = torch.randn(6, 9, generator=torch.Generator().manual_seed(1))
    for choice in (Choice(0), Choice(0.7, 5, 0.8, 0.1), Choice(top_k=2), Choice(top_p=0.5), Choice(min_p=0.3)):
        together = next_distribution(logits, choice)
        assert torch.equal(together, torch.stack([next_distribution(row, choice) for row in logits]))


@pytest.mark.parametrize("choice", [Choice(top_k=1), Choice(top_p=1e-9), Choice(min_p=1), Choice(1e-9)])
def test_a_filter_that_leaves_one_character_is_greedy(choice: Choice) -> None:
    logits = torch.randn(50, 9, generator=torch.Generator().manual_seed(1))
    assert torch.equal(next_distribution(logits, choice), next_distribution(logits, Choice(0)))


def test_draws_follow_the_distribution() -> None:
    distribution = next_distribution(LOGITS, Choice(0.8, top_k=4, min_p=0.1))
    assert distribution.nonzero().flatten().tolist() == [1, 2, 4]
    generators = [torch.Generator().manual_seed(seed) for seed in range(100)]
    drawn = torch.stack([draw(distribution.expand(100, -1), generators) for _ in range(1000)]).flatten()
    counts, expected = torch.bincount(drawn, minlength=5), distribution * len(drawn)
    assert counts[[0, 3]].tolist() == [0, 0]  # what was left out never comes
    kept = distribution > 0
    chi_square = float(((counts - expected)[kept] ** 2 / expected[kept]).sum())
    assert chi_square < 18.5  # one in ten thousand for two degrees of freedom


def test_a_draw_is_that_of_torch_with_the_same_random_numbers() -> None:
    distribution = torch.rand(20, 65, dtype=torch.float64).softmax(-1)
    drawn = draw(distribution, [torch.Generator().manual_seed(seed) for seed in range(20)])
    for seed, row in enumerate(distribution):
        assert int(drawn[seed]) == int(torch.multinomial(row, 1, generator=torch.Generator().manual_seed(seed)))


def gpt(**sizes: Any) -> LanguageModel:
    torch.manual_seed(3)
    small = {"block_size": 8, "n_layer": 1, "n_embd": 8, "n_head": 2, "head_size": 4, "dropout": 0.5}
    model = LanguageModel(ModelConfig(**{**small, **sizes}), 5)
    for weight in model.parameters():
        weight.data.normal_()
    return model


def texts(
    model: LanguageModel, prompt: list[int], length: int, seeds: Sequence[int], **options: Any
) -> list[list[int]]:
    """What is written after a prompt, a text for each seed."""
    options.setdefault("choice", Choice())
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    steps = list(generate(model, torch.tensor(prompt), length, generators, **options))
    assert len(steps) == length
    return [[step[text] for step in steps] for text in range(len(seeds))]


@pytest.mark.parametrize("length", [0, 1, 8, 24])
@pytest.mark.parametrize("prompt", [1, 7, 8, 9, 24])
def test_exactly_so_many_new_characters_come(prompt: int, length: int) -> None:
    (drawn,) = texts(gpt(), [0] * prompt, length, [1])
    assert len(drawn) == length
    assert set(drawn) <= set(range(5))


@dataclass
class Passes:
    """What a model was asked while texts were written, and the logits after each text so far."""

    read: list[int]  # how many characters each time
    logits: list[torch.Tensor]


def passes(
    model: LanguageModel, prompt: list[int], length: int, count: int, exact: bool
) -> tuple[Passes, torch.Tensor]:
    """Write `count` texts, and return what the model did, and the whole texts (count, P + length)."""
    seen = Passes([], [])

    def keep(_: object, inputs: tuple[torch.Tensor, ...], logits: torch.Tensor) -> None:
        seen.read.append(inputs[0].size(1))
        seen.logits.append(logits[:, -1].expand(count, -1))

    hook = model.register_forward_hook(keep)
    drawn = texts(model, prompt, length, range(count), exact_window=exact)
    hook.remove()
    return seen, torch.tensor([prompt + text for text in drawn])


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("prompt", [1, 11, 12, 13, 36])
@pytest.mark.parametrize("rung", RUNGS)
def test_each_character_is_chosen_from_the_documented_window(rung: str, prompt: int, count: int, exact: bool) -> None:
    model = woken(RUNGS[rung])
    seen, whole = passes(model, [number % V for number in range(prompt)], 30, count, exact)
    window = min(prompt, 12)
    for number, end in enumerate(range(prompt, prompt + 30)):
        expected = model(whole[:, end - window : end])[:, -1]
        assert torch.allclose(seen.logits[number], expected, atol=1e-5), (number, window)
        window = window + 1 if window < 12 else (12 if exact else 9)  # three quarters of twelve
    filled = 13 - min(prompt, 12)  # characters until the window is full
    moving = [12] * 30 if exact else [9, 1, 1, 1] * 8
    assert seen.read == ([min(prompt, 12)] + [1] * (filled - 1) + moving)[:30]


@pytest.mark.parametrize("block_size", [1, 2, 3, 5, 64])
def test_no_window_is_below_three_quarters(block_size: int) -> None:
    model = gpt(block_size=block_size)
    lengths: list[int] = []
    hook = model.register_forward_hook(lambda _, inputs, __: lengths.append(len(inputs[1])))
    texts(model, [1] * block_size, 3 * block_size, [1])
    hook.remove()
    assert min(lengths) >= 0.75 * block_size
    assert max(lengths) == block_size


def test_a_text_does_not_depend_on_those_beside_it() -> None:
    together = texts(gpt(), [1, 2], 40, range(7))
    assert len({tuple(text) for text in together}) == 7
    for seed, text in enumerate(together):
        assert texts(gpt(), [1, 2], 40, [seed]) == [text]


def test_greedy_takes_the_likeliest_character() -> None:
    model = gpt().eval()
    ((character,),) = texts(model, [0, 1, 2], 1, [1], choice=Choice(0))
    assert character == int(model(torch.tensor([[0, 1, 2]]))[0, -1].argmax())


def test_dropout_is_off_and_the_mode_comes_back_even_after_a_break() -> None:
    model = gpt().train()
    greedy = [texts(model, [1], 20, [1], choice=Choice(0)) for _ in range(2)]
    assert greedy[0] == greedy[1]
    assert model.training
    stream = generate(model, torch.tensor([1]), 20, [torch.Generator()], Choice())
    next(stream)
    assert not model.training
    stream.close()
    assert model.training


def test_sampling_leaves_training_random_numbers_alone() -> None:
    model = gpt().train()
    before = torch.get_rng_state()
    texts(model, [1], 20, [1, 2])
    assert torch.equal(torch.get_rng_state(), before)
