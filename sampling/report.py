"""A page that shows a text as the model reads it: how surprising each character is, what else was likely, where it looked."""

import base64
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from configs.schema import UserError
from data.tokenizer import Tokenizer
from model.generation import finite, kept_of
from model.language_model import LanguageModel, evaluating
from training.evaluation import position_groups

PAGE = Path(__file__).with_name("page.html")
LIKELIEST = 5  # characters that are shown for each place
LOOKED_AT = 24  # earlier characters whose weights are kept for each place and head: the largest, or fewer of many heads
MOST_WEIGHTS = 8_000_000  # on a page
WORST = 12
TITLE = b"<title>What the model saw</title>"
LONGEST = 20_000  # characters: more would be more than a browser likes


def check_page(file: str, characters: int) -> None:
    """Raises UserError, before any work, if a page on so many characters cannot be written to this file."""
    path = Path(file)
    if not path.absolute().parent.is_dir():
        raise UserError(f"report={file} is in a folder that does not exist: make it first")
    if path.exists() and not (path.is_file() and _is_page(path)):
        raise UserError(f"report={file} exists and is no such page: choose another name")
    if not 2 <= characters <= LONGEST:
        raise UserError(f"a page shows from 2 to {LONGEST:,} characters, and these would be {characters:,}")


def _is_page(path: Path) -> bool:
    with open(path, "rb") as file:
        return TITLE in file.read(1000)


@dataclass
class Look:
    """What a model saw of N characters. The first one has nothing before it: its row is zeros, and it does not count."""

    bits: Tensor  # (N,) surprise
    likeliest: Tensor  # (N, 5) ids
    probabilities: Tensor  # (N, 5)
    seen: Tensor  # (N,) from how many characters it was predicted
    distances: Tensor  # (n_layer, n_head, N, K) how far back the K characters are that were looked at most, from 1 on
    weights: Tensor  # (n_layer, n_head, N, K) of these, the largest first


@torch.no_grad()
def look(model: LanguageModel, ids: Tensor) -> Look:
    """Read a text (N,), N at least 2, in windows that move as in writing: each is filled, then a part of it is read again.

    What belongs to a character is what the model says, and where it looks, at the character before it. Raises UserError for
    a model whose logits are not finite.
    """
    config = model.config
    device = next(model.parameters()).device
    likeliest = min(LIKELIEST, model.vocab_size)
    heads = max(1, config.n_layer * config.n_head)
    kept = max(1, min(LOOKED_AT, config.block_size, MOST_WEIGHTS // (heads * len(ids))))
    found = Look(
        torch.zeros(len(ids), dtype=torch.float64),
        torch.zeros(len(ids), likeliest, dtype=torch.long),
        torch.zeros(len(ids), likeliest, dtype=torch.float64),
        torch.zeros(len(ids), dtype=torch.long),
        torch.zeros(config.n_layer, config.n_head, len(ids), kept, dtype=torch.long),
        torch.zeros(config.n_layer, config.n_head, len(ids), kept),
    )
    with evaluating(model):
        for start, new, end in windows(len(ids), config.block_size):
            window = ids[start : end - 1].to(device).long()[None]
            at, rows = slice(new, end), slice(new - 1 - start, None)  # row t predicts character start + t + 1
            logarithms = finite(model(window)[0, rows]).log_softmax(-1)
            found.bits[at] = -logarithms.gather(-1, ids[at, None].long()).squeeze(-1) / math.log(2)
            found.probabilities[at], found.likeliest[at] = logarithms.exp().topk(likeliest)
            found.seen[at] = torch.arange(new - start, end - start)
            if config.n_layer:
                weights = model.attention_weights(window)[:, 0, :, rows].float().cpu()  # (L, H, rows, T)
                top = weights.topk(min(kept, weights.size(-1)))
                found.weights[:, :, at, : top.values.size(-1)] = top.values
                rows_before = torch.arange(new - start, end - start)[:, None]  # of each character, counted from start
                found.distances[:, :, at, : top.values.size(-1)] = (rows_before - top.indices).clamp_min(0)
    return found


def windows(length: int, block_size: int) -> Iterator[tuple[int, int, int]]:
    """(start, first new, end) of the windows over a text: from `start` on are read those before `end` but the last.

    Characters from `first new` on are predicted there, each from all those since `start`.
    """
    start, new = 0, 1
    while new < length:
        end = min(length, start + block_size + 1)
        yield start, new, end
        start, new = end - kept_of(block_size), end


def page(model: LanguageModel, tokenizer: Tokenizer, text: str, name: str) -> str:
    """The page on a text, complete in itself. `name` says which model it is. Raises UserError for less than 2 characters."""
    if len(text) < 2:
        raise UserError(f"a page shows at least 2 characters, and what was written has {len(text)}")
    ids = torch.from_numpy(tokenizer.encode(text))
    found = look(model, ids)
    counted = found.bits[1:]
    largest = found.weights[..., :1].clamp_min(torch.finfo(torch.float32).tiny)  # a diffuse head has small weights only
    worst = (counted.argsort(descending=True)[:WORST] + 1).tolist()
    data = {
        "model": name,
        "text": text,
        "bits": [round(bits, 3) for bits in found.bits.tolist()],
        "bits_per_char": float(counted.mean()),
        "likeliest": [tokenizer.decode(row) for row in found.likeliest.tolist()],
        "probabilities": [[round(share, 4) for share in row] for row in found.probabilities.tolist()],
        "worst": worst,
        "curve": curve(found),
        "layers": model.config.n_layer,
        "heads": model.config.n_head,
        "looked_at": found.weights.size(-1),
        "block_size": model.config.block_size,
        "distances": packed(found.distances, "<u2"),
        "weights": packed((found.weights / largest * 255).round(), "u1"),
    }
    return PAGE.read_text(encoding="utf-8").replace("{{data}}", in_script(data))


def curve(found: Look) -> list[tuple[int, int, float]]:
    """Mean bits by how many characters were seen, in groups: (first, last, bits) for each that has any."""
    points = []
    for group in position_groups(int(found.seen.max())):
        inside = (found.seen > group.start) & (found.seen <= group.stop)
        if bool(inside.any()):
            points.append((group.start + 1, group.stop, float(found.bits[inside].mean())))
    return points


def packed(numbers: Tensor, kind: str) -> str:
    """Numbers as bytes of this kind, in base64."""
    return base64.b64encode(numbers.numpy().astype(np.dtype(kind)).tobytes()).decode()


def in_script(data: dict[str, Any]) -> str:
    """JSON that can stand in a script element of a page, whatever characters are in it."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False)  # ASCII: also half a pair of surrogates is only digits
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
