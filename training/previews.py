"""What is shown of a model at each evaluation: maps of its attention, its loss by position, and a sample."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from configs.schema import TrainConfig, UserError
from data.corpus import Corpus
from data.reading import unescaped
from model.generation import Choice, generate
from model.language_model import LanguageModel
from training.evaluation import position_groups
from training.files import append_text
from training.pictures import LONGEST_PROBE, Picture, attention_map, chart
from training.tracking import Tracker

MOST_MAPS = 64  # of a model with more heads the first ones are drawn


class Previews:
    """Pure functions of a model and its losses: they draw no random number of training's."""

    def __init__(self, config: TrainConfig, corpus: Corpus, baselines: dict[str, float]) -> None:
        """Raises UserError for a trainer.probe that the model cannot read."""
        self.config, self.corpus, self.baselines = config, corpus, baselines
        self.probe = probe_of(config, corpus)

    def show(self, model: LanguageModel, latest: dict[str, Any], step: int, tracker: Tracker, samples: Path) -> None:
        """Put everything into TensorBoard, and the sample at the end of the file `samples` as well.

        `latest` holds the figures of the latest evaluation, as a checkpoint does.
        """
        tracker.picture("loss_by_position/val", self.loss_by_position(latest["loss_val_by_position"], step), step)
        for tag, picture in self.attention_maps(model, step):
            tracker.picture(tag, picture, step)
        if self.config.trainer.sample_length:
            text = self.sample(model, self.config.trainer.sample_length)
            tracker.text("sample/text", text, step)
            append_text(samples, f"=== step {step}, validation loss {latest['loss_val']:.4f} ===\n{text}\n\n")

    def attention_maps(self, model: LanguageModel, step: int) -> list[tuple[str, Picture]]:
        """A tag and a map of every head's attention on the probe, or of the first of very many."""
        if not self.probe:
            return []
        device = next(model.parameters()).device
        ids = torch.from_numpy(self.corpus.tokenizer.encode(self.probe)).long().to(device)
        weights = model.attention_weights(ids[None])[:, 0].float().cpu().numpy()  # (n_layer, H, T, T)
        return [
            (
                f"attention/layer_{layer + 1}_head_{head + 1}",
                attention_map(weights[layer, head], self.probe, f"layer {layer + 1}, head {head + 1}, step {step}"),
            )
            for layer, head in list(np.ndindex(weights.shape[:2]))[:MOST_MAPS]
        ]

    def loss_by_position(self, nats: list[float], step: int) -> Picture:
        """An evaluation as a curve over the characters that the model saw, beside what counting achieves.

        A point is the mean over a group of positions, in their middle.
        """
        levels = {f"counted {order}-gram": nats for order, nats in self.baselines.items() if order != "1"}
        if self.corpus.floor is not None:
            levels["true entropy"] = self.corpus.floor
        points = [
            (math.sqrt((group.start + 1) * group.stop), sum(nats[group]) / len(nats[group]))
            for group in position_groups(len(nats))
        ]
        title = f"validation loss in nats, by characters seen, step {step}"
        return chart(title, "characters seen", {self.config.model.name: points}, levels)

    def sample(self, model: LanguageModel, length: int) -> str:
        """A text of so many characters, drawn with the run's seed."""
        generator = torch.Generator().manual_seed(self.config.seed)
        start = torch.tensor([self.corpus.tokenizer.start_id])
        drawn = generate(model, start, length, [generator], Choice(temperature=0.8), exact_window=True)
        return self.corpus.tokenizer.decode([character for (character,) in drawn])


def probe_of(config: TrainConfig, corpus: Corpus) -> str:
    """The text whose attention is drawn: trainer.probe, or a line of the validation part; "" for none.

    Raises UserError for a text that the model cannot read or the picture not hold.
    """
    if config.model.n_layer == 0:
        return ""
    longest = min(config.model.block_size, LONGEST_PROBE)
    if config.trainer.probe is None:
        lines = corpus.tokenizer.decode(corpus.validation[:2000]).split("\n")
        return next((line for line in lines if len(line) > 30), max(lines, key=len))[: min(longest, 40)]
    probe = unescaped(config.trainer.probe)
    if len(probe) > longest:
        raise UserError(
            f"trainer.probe has {len(probe)} characters, but at most {longest} fit (model.block_size, a picture)"
        )
    try:
        corpus.tokenizer.encode(probe)
    except UserError as error:
        played = f". The text is the Playlet: {config.data.fallback_reason}" if config.data.fallback_reason else ""
        raise UserError(f"trainer.probe: {error}{played}") from None
    return probe


_SAMPLE_HEAD = re.compile(r"^=== step (\d+), .* ===\n", re.MULTILINE)


def samples_by_step(text: str) -> dict[int, str]:
    """The samples in a samples.txt, by the step that wrote them."""
    _, *parts = _SAMPLE_HEAD.split(text)
    return {int(step): sample.removesuffix("\n\n") for step, sample in zip(parts[::2], parts[1::2], strict=True)}
