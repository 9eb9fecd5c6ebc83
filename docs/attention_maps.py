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

from configs.schema import UserError
from data.corpus import unescaped
from data.tokenizer import Tokenizer
from training import checkpoint as checkpoints
from training.pictures import attention_map


def main(folder: Path, text: str, picture: Path) -> None:
    path = folder / "best.pt"
    checkpoint = checkpoints.load(path)
    model = checkpoints.model_from(checkpoint, path)
    text = unescaped(text)
    if not text or model.config.n_layer == 0:
        raise UserError("there is no attention to draw: it takes a text, and a model with at least one layer")
    ids = torch.from_numpy(Tokenizer(checkpoint["vocabulary"]).encode(text)).long()
    weights = model.attention_weights(ids[None])[:, 0].numpy()  # (n_layer, H, T, T)
    rows = []
    for layer, heads in enumerate(weights, start=1):
        maps = [attention_map(one, text, f"layer {layer}, head {head}") for head, one in enumerate(heads, start=1)]
        rows.append(np.concatenate(maps, axis=1))
    Image.fromarray(np.concatenate(rows)).save(picture, optimize=True)
    print(f"drawn: {picture}")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    try:
        run = Path(sys.argv[1])
        main(run, sys.argv[2], Path(sys.argv[3]) if len(sys.argv) == 4 else run / "attention_maps.png")
    except (UserError, ValueError, OSError) as error:
        sys.exit(str(error))
