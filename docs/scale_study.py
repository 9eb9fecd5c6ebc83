"""Why scores are divided by sqrt(head_size): what happens to them, and to the weights, as heads get wider.

    python docs/scale_study.py [PICTURE]        prints the table of docs/attention.md and draws docs/scale.png

Queries and keys are independent numbers of variance one, about what query/key normalisation makes of them. The weights on 64
keys come from the project's own attention; their entropy is ln 64 = 4.16 nats where all are equal, and 0 where one key takes
everything.
"""

import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from PIL import Image
from torch import Tensor

from configs.command_line import run_script
from configs.schema import UserError
from model.attention import plain_attention
from training.pictures import chart

HEAD_SIZES = (1, 4, 16, 64, 256, 1024)
TEXTS, KEYS = 200, 64
PICTURE = Path(__file__).with_name("scale.png")


def main(arguments: list[str]) -> None:
    if len(arguments) > 1:
        raise UserError("name one picture, or none")
    torch.manual_seed(1337)
    rows = [(head_size, *study(head_size)) for head_size in HEAD_SIZES]
    print(
        "| head_size | variance of q k | entropy of the weights | variance of q k / sqrt(head_size) | entropy of the weights |"
    )
    print("|--:|--:|--:|--:|--:|")
    for head_size, *figures in rows:
        print(f"| {head_size} | " + " | ".join(f"{figure:.2f}" for figure in figures) + " |")
    curves = {
        "without the scale": [(row[0], row[2]) for row in rows],
        "with the scale": [(row[0], row[4]) for row in rows],
    }
    title = f"entropy of the weights on {KEYS} keys, in nats"
    picture = Image.fromarray(chart(title, "head_size", curves, {"all weights equal": math.log(KEYS)}))
    picture.save(arguments[0] if arguments else PICTURE, "PNG")


def study(head_size: int) -> tuple[float, float, float, float]:
    """The variance of scores and the mean entropy of the weights in nats: without the scale, then with it."""
    query, key = (torch.randn(TEXTS, KEYS, head_size, dtype=torch.float64) for _ in range(2))
    scale = math.sqrt(head_size)
    scores = query @ key.transpose(-2, -1)
    _, weights = plain_attention(query * scale, key, key, causal=False)  # attention divides by the scale
    _, scaled_weights = plain_attention(query, key, key, causal=False)
    return float(scores.var()), entropy(weights), float((scores / scale).var()), entropy(scaled_weights)


def entropy(weights: Tensor) -> float:
    """The mean over all queries, in nats."""
    return float(torch.special.entr(weights).sum(-1).mean())


if __name__ == "__main__":
    run_script(main, __doc__)
