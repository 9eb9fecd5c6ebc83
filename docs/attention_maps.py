"""Draw what every head of a trained model does with a text, a row of maps for each layer.

    python docs/attention_maps.py runs/NAME "the king, the king"        draws runs/NAME/attention_maps.png

A third argument names another picture.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from PIL import Image

from configs.command_line import run_script
from configs.schema import UserError
from data.reading import unescaped
from data.tokenizer import Tokenizer
from training import checkpoint as checkpoints
from training.folders import BEST
from training.pictures import LONGEST_PROBE, attention_map


def main(arguments: list[str]) -> None:
    if len(arguments) not in (2, 3):
        raise UserError("name a run folder and a text")
    folder, text = Path(arguments[0]), unescaped(arguments[1])
    picture = Path(arguments[2]) if len(arguments) == 3 else folder / "attention_maps.png"
    checkpoint = checkpoints.load(folder / BEST)
    model = checkpoints.model_from(checkpoint, folder / BEST)
    if not text or model.config.n_layer == 0:
        raise UserError("there is no attention to draw: it takes a text, and a model with at least one layer")
    if len(text) > LONGEST_PROBE:
        raise UserError(f"the text has {len(text)} characters, and a picture shows {LONGEST_PROBE}")
    ids = torch.from_numpy(Tokenizer(checkpoint["vocabulary"]).encode(text)).long()
    weights = model.attention_weights(ids[None])[:, 0].numpy()  # (n_layer, H, T, T)
    rows = []
    for layer, heads in enumerate(weights, start=1):
        maps = [attention_map(one, text, f"layer {layer}, head {head}") for head, one in enumerate(heads, start=1)]
        rows.append(np.concatenate(maps, axis=1))
    Image.fromarray(np.concatenate(rows)).save(picture, "PNG", optimize=True)
    print(f"drawn: {picture}")


if __name__ == "__main__":
    run_script(main, __doc__)
