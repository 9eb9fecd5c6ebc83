"""From logits to text: the distribution of the next character, its filters, and streams of drawn characters."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from configs.schema import UserError
from model.language_model import LanguageModel, evaluating


@dataclass(frozen=True)
class Choice:
    """How the next character is chosen, as the options of the same names say; without more, as the model says."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None


def next_distribution(logits: Tensor, choice: Choice) -> Tensor:
    """Probabilities (..., V) in float64 of the next character, from its logits (..., V).

    temperature 0 puts everything on the likeliest character. top_k keeps that many likeliest characters; top_p then
    keeps the fewest likeliest ones that together hold that share (Holtzman et al., 2020); min_p then keeps those that are at
    least that share as likely as the likeliest (Nguyen et al., 2024). What is left sums to one. Where temperature 0, top_k or
    top_p must choose between equals, the lower id stays. Raises UserError for logits that are not finite.
    """
    logits = finite(logits)
    greedy = choice.temperature == 0
    scaled = (logits - logits.amax(-1, keepdim=True)) / (1 if greedy else choice.temperature)
    order = torch.sort(logits, descending=True, stable=True).indices
    ranked = scaled.gather(-1, order).softmax(-1)
    most = 1 if greedy else choice.top_k or logits.size(-1)
    ranked[..., most:] = 0
    if choice.top_p is not None:
        ranked = ranked / ranked.sum(-1, keepdim=True)
        ranked[ranked.cumsum(-1) - ranked >= choice.top_p] = 0
    if choice.min_p is not None:
        ranked[ranked < choice.min_p * ranked[..., :1]] = 0
    return torch.zeros_like(logits).scatter(-1, order, ranked / ranked.sum(-1, keepdim=True))


def finite(logits: Tensor) -> Tensor:
    """The logits in float64 on the CPU, so that a draw is the same on every device. Raises UserError if any is not finite."""
    logits = logits.detach().cpu().double()  # in this order: an Apple GPU has no float64
    if not bool(torch.isfinite(logits).all()):
        raise UserError("the model gave logits that are not finite numbers: its weights are damaged")
    return logits


def draw(distribution: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """One character id for each of N texts, with the random numbers of its own generator: (N, V) -> (N,).

    Each character waits for a time drawn from an exponential distribution and divided by its probability, and the first one
    wins, as in torch.multinomial, which draws for all texts from one generator. The impossible never win.
    """
    waits = [torch.empty_like(distribution[0]).exponential_(generator=generator) for generator in generators]
    least = torch.finfo(distribution.dtype).tiny  # a wait of 0 would make the impossible 0 / 0
    return (distribution / torch.stack(waits).clamp_min(least)).argmax(-1)


@torch.inference_mode()
def generate(
    model: LanguageModel,
    ids: Tensor,
    length: int,
    generators: Sequence[torch.Generator],
    choice: Choice,
    exact_window: bool = False,
) -> Iterator[list[int]]:
    """Go on after the prompt ids (P,), P at least 1, with N texts at once: yield `length` times the next id of each.

    Text number i gets all its randomness from generators[i], which live on the CPU, so but for rounding it does not depend on
    the others. Each character is read once, as long as the cache has room. When block_size characters are full, the last
    `kept_of(block_size)` are read again, and the window fills anew. With `exact_window` each character is drawn from precisely
    the last block_size, which are read again every time.
    """
    device = next(model.parameters()).device
    block_size = model.config.block_size
    kept = block_size if exact_window else kept_of(block_size)
    cache = model.new_cache()
    new = ids[None, -block_size:].to(device).long()  # the prompt is read once for all texts
    with evaluating(model):
        for number in range(length):
            if len(cache) + new.size(1) > block_size:
                assert cache.ids is not None
                new, cache = torch.cat((cache.ids, new), dim=1)[:, -kept:], model.new_cache()
            distribution = next_distribution(model(new, cache)[:, -1], choice)
            drawn = draw(distribution.expand(len(generators), -1), generators)
            yield drawn.tolist()
            if number == 0:
                cache.repeat(len(generators))
            new = drawn[:, None].to(device)


def kept_of(block_size: int) -> int:
    """How many characters of a full window the next one begins with: three quarters, so that none is drawn from fewer."""
    return math.ceil(3 * block_size / 4)
