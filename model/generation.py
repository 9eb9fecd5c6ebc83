"""From logits to text: the distribution of the next character, its filters, and a stream of drawn characters."""

from collections.abc import Iterator

import torch
from torch import Tensor

from configs.schema import UserError
from model.language_model import LanguageModel, evaluating


def next_distribution(
    logits: Tensor, temperature: float, top_k: int | None = None, top_p: float | None = None
) -> Tensor:
    """Probabilities (V,) in float64 of the next character, from its logits (V,).

    temperature 0 puts everything on the likeliest character. top_k keeps that many likeliest characters; top_p then
    keeps the fewest likeliest ones that together hold that share (Holtzman et al., 2020). What is left sums to one.
    Ties go to the character with the lower id. Raises UserError for logits that are not finite.
    """
    logits = logits.detach().to("cpu", torch.float64)  # the draw must be the same on every device
    if not bool(torch.isfinite(logits).all()):
        raise UserError("the model gave logits that are not finite numbers: its weights are damaged")
    if temperature == 0:
        temperature, top_k = 1.0, 1
    order = torch.sort(logits, descending=True, stable=True).indices
    ranked = ((logits - logits.max()) / temperature)[order].softmax(0)[:top_k]
    ranked /= ranked.sum()
    if top_p is not None:
        held_by_likelier = ranked.cumsum(0) - ranked
        ranked = ranked[: max(1, int((held_by_likelier < top_p).sum()))]
    return torch.zeros_like(logits).scatter(0, order[: len(ranked)], ranked / ranked.sum())


@torch.no_grad()
def generate(
    model: LanguageModel,
    ids: Tensor,
    length: int,
    generator: torch.Generator,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Iterator[int]:
    """Yield `length` new character ids, one by one as they are drawn, after the prompt ids (P,), P at least 1.

    Each character is drawn from what the model says of the last block_size characters. As long as all fit, each is read
    once; then the window moves, and is read anew for each character. All randomness comes from `generator`, which lives
    on the CPU.
    """
    device = next(model.parameters()).device
    block_size = model.config.block_size
    text = ids[-block_size:].to(device).long()
    cache = model.new_cache()
    with evaluating(model):
        for _ in range(length):
            if len(text) > block_size:
                text, cache = text[-block_size:], model.new_cache()
            logits = model(text[None, len(cache) :], cache)[0, -1]
            drawn = torch.multinomial(next_distribution(logits, temperature, top_k, top_p), 1, generator=generator)
            yield int(drawn)
            text = torch.cat((text, drawn.to(device)))
