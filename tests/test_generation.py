"""Choosing characters: the distribution and its filters are what they say, and a text is a function of its seed."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from configs.schema import ModelConfig, UserError
from model.generation import generate, next_distribution
from model.language_model import LanguageModel

LOGITS = torch.tensor([1.0, 3.0, 2.0, -1.0, 3.0])


def test_plain_is_the_softmax() -> None:
    assert torch.allclose(next_distribution(LOGITS, 1.0), LOGITS.double().softmax(0))


def test_temperature_divides_the_logits() -> None:
    assert torch.allclose(next_distribution(LOGITS, 0.5), (LOGITS.double() * 2).softmax(0))


@pytest.mark.parametrize("temperature", [0, 1e-8, 1e-300])
def test_no_temperature_is_the_likeliest_character(temperature: float) -> None:
    logits = torch.tensor([1.0, 2.0, 5.0, 4.0])
    assert next_distribution(logits, temperature).tolist() == [0, 0, 1, 0]


def test_ties_go_to_the_lower_id() -> None:
    assert next_distribution(LOGITS, 0).tolist() == [0, 1, 0, 0, 0]
    assert next_distribution(LOGITS, 1.0, top_k=1).tolist() == [0, 1, 0, 0, 0]


def test_a_huge_temperature_makes_all_alike() -> None:
    assert torch.allclose(next_distribution(LOGITS, 1e9), torch.full((5,), 0.2, dtype=torch.float64), atol=1e-6)


def test_top_k_keeps_the_likeliest() -> None:
    kept = next_distribution(LOGITS, 1.0, top_k=3)
    assert kept.nonzero().flatten().tolist() == [1, 2, 4]
    assert torch.allclose(kept[[1, 2, 4]], LOGITS[[1, 2, 4]].double().softmax(0))
    assert torch.equal(next_distribution(LOGITS, 1.0, top_k=99), next_distribution(LOGITS, 1.0))


def test_top_p_keeps_the_fewest_that_hold_the_share() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert next_distribution(logits, 1.0, top_p=0.79).tolist() == pytest.approx([0.625, 0.375, 0, 0])
    assert next_distribution(logits, 1.0, top_p=0.81).nonzero().numel() == 3
    assert next_distribution(logits, 1.0, top_p=1.0).nonzero().numel() == 4
    assert next_distribution(logits, 1.0, top_p=1e-9).tolist() == [1, 0, 0, 0]


def test_top_p_counts_what_top_k_left() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert next_distribution(logits, 1.0, top_k=2, top_p=0.5).tolist() == [1, 0, 0, 0]
    assert next_distribution(logits, 1.0, top_k=2, top_p=0.6).nonzero().numel() == 2


@given(
    logits=st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=12),
    temperature=st.just(0.0) | st.floats(1e-9, 1e9),
    top_k=st.none() | st.integers(1, 15),
    top_p=st.none() | st.floats(1e-9, 1),
)
def test_it_is_always_a_distribution(
    logits: list[float], temperature: float, top_k: int | None, top_p: float | None
) -> None:
    distribution = next_distribution(torch.tensor(logits), temperature, top_k, top_p)
    assert float(distribution.sum()) == pytest.approx(1)
    assert float(distribution.min()) >= 0
    assert int((distribution > 0).sum()) <= (top_k or len(logits))


def test_damaged_weights_are_noticed() -> None:
    for bad in (math.nan, math.inf):
        with pytest.raises(UserError, match="not finite"):
            next_distribution(torch.tensor([0.0, bad]), 1.0)


def test_draws_follow_the_distribution() -> None:
    model = bigram_model()
    assert model.bigram is not None
    model.bigram.weight.data[:] = LOGITS
    drawn = torch.tensor(list(generate(model, torch.tensor([0]), 20_000, torch.Generator().manual_seed(1), 1.0)))
    expected = LOGITS.double().softmax(0) * 20_000
    chi_square = float(((torch.bincount(drawn, minlength=5) - expected) ** 2 / expected).sum())
    assert chi_square < 23.5  # one in ten thousand for four degrees of freedom


def test_top_k_never_draws_another() -> None:
    distribution = next_distribution(LOGITS, 1.0, top_k=3)
    drawn = torch.multinomial(distribution, 100_000, replacement=True, generator=torch.Generator().manual_seed(2))
    assert set(drawn.tolist()) == {1, 2, 4}


def bigram_model() -> LanguageModel:
    return LanguageModel(ModelConfig(n_layer=0, n_previous=0, n_gram_order=0, block_size=4), 5)


def gpt() -> LanguageModel:
    torch.manual_seed(3)
    model = LanguageModel(ModelConfig(block_size=8, n_layer=1, n_embd=8, n_head=2, head_size=4, dropout=0.5), 5)
    for weight in model.parameters():
        weight.data.normal_()
    return model


@pytest.mark.parametrize("length", [0, 1, 8, 24])
@pytest.mark.parametrize("prompt", [1, 7, 8, 9, 24])
def test_exactly_so_many_new_characters_come(prompt: int, length: int) -> None:
    drawn = list(generate(gpt(), torch.zeros(prompt, dtype=torch.uint8), length, torch.Generator()))
    assert len(drawn) == length
    assert set(drawn) <= set(range(5))


@pytest.mark.parametrize("prompt", [1, 7, 8, 9, 24])
def test_each_character_is_chosen_from_the_last_block_size_and_read_once_while_all_fit(prompt: int) -> None:
    model = gpt()
    seen: list[list[int]] = []
    chosen_from: list[torch.Tensor] = []

    def keep(_: object, inputs: tuple[torch.Tensor, ...], logits: torch.Tensor) -> None:
        seen.append(inputs[0][0].tolist())
        chosen_from.append(logits[0, -1])

    hook = model.register_forward_hook(keep)
    text = [number % 5 for number in range(prompt)]
    text += generate(model, torch.tensor(text), 12, torch.Generator())
    hook.remove()
    model.eval()
    for number, end in enumerate(range(prompt, prompt + 12)):
        window = text[max(0, end - 8) : end]
        assert torch.allclose(chosen_from[number], model(torch.tensor([window]))[0, -1], atol=1e-5)
        assert seen[number] == (window if number == 0 or end > 8 else window[-1:])


def test_greedy_takes_the_likeliest_character() -> None:
    model = gpt().eval()
    (character,) = generate(model, torch.tensor([0, 1, 2]), 1, torch.Generator(), temperature=0)
    assert character == int(model(torch.tensor([[0, 1, 2]]))[0, -1].argmax())


def test_a_text_is_a_function_of_its_seed() -> None:
    generators = [torch.Generator().manual_seed(seed) for seed in (1, 1, 2)]
    texts = [list(generate(gpt(), torch.tensor([1]), 50, generator, temperature=20)) for generator in generators]
    assert texts[0] == texts[1] != texts[2]


def test_dropout_is_off_and_the_mode_comes_back_even_after_a_break() -> None:
    model = gpt().train()
    greedy = [list(generate(model, torch.tensor([1]), 20, torch.Generator(), temperature=0)) for _ in range(2)]
    assert greedy[0] == greedy[1]
    assert model.training
    stream = generate(model, torch.tensor([1]), 20, torch.Generator())
    next(stream)
    assert not model.training
    stream.close()
    assert model.training


def test_sampling_leaves_training_random_numbers_alone() -> None:
    model = gpt().train()
    before = torch.get_rng_state()
    list(generate(model, torch.tensor([1]), 20, torch.Generator()))
    assert torch.equal(torch.get_rng_state(), before)
