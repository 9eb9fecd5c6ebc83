"""What is shown of a model at each evaluation: a map of every head, the loss by position, and of what line."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from configs.schema import TrainConfig, UserError
from data.corpus import Corpus
from tests.runs import run_of
from train import train
from training.pictures import attention_map, chart
from training.previews import MOST_MAPS, probe_of
from training.stopping import StopSignal


def test_every_head_is_drawn_at_each_evaluation(small_config: TrainConfig, corpus: Corpus, tmp_path: Path) -> None:
    small_config.model.n_layer, small_config.trainer.probe = 2, "An\\nA"
    run, recorder = run_of(small_config, corpus, tmp_path / "1")
    train(run, StopSignal())
    drawn = {tag for tag, _ in recorder.pictures}
    heads = {f"attention/layer_{layer}_head_{head}" for layer in (1, 2) for head in (1, 2)}
    assert drawn == {"loss_by_position/val", *heads}
    assert {step for _, step in recorder.pictures} == {0, 10, 20}
    ids = torch.from_numpy(corpus.tokenizer.encode("An\nA")).long()
    weights = run.model.attention_weights(ids[None])  # (n_layer, 1, H, T, T)
    wanted = attention_map(weights[1, 0, 0].numpy(), "An\nA", "layer 2, head 1, step 20")
    assert np.array_equal(recorder.pictures["attention/layer_2_head_1", 20], wanted)
    nats = run.latest["loss_val_by_position"]  # sixteen of them
    groups = [(1, 1), (2, 2), (3, 4), (5, 8), (9, 16)]
    curve = [(math.sqrt(first * last), sum(nats[first - 1 : last]) / (last - first + 1)) for first, last in groups]
    levels = {f"counted {order}-gram": run.baselines[order] for order in "2345"} | {"true entropy": corpus.floor or 0}
    wanted = chart("validation loss in nats, by characters seen, step 20", "characters seen", {"gpt": curve}, levels)
    assert np.array_equal(recorder.pictures["loss_by_position/val", 20], wanted)


def test_of_very_many_heads_the_first_are_drawn(small_config: TrainConfig, corpus: Corpus, tmp_path: Path) -> None:
    small_config.model.n_layer, small_config.model.n_head, small_config.trainer.probe = 2, MOST_MAPS - 1, "A"
    run, recorder = run_of(small_config, corpus, tmp_path / "1")
    run.evaluate_and_save()
    assert len(recorder.pictures) == MOST_MAPS + 1
    assert ("attention/layer_2_head_1", 0) in recorder.pictures


def test_the_probe_is_a_line_of_the_text_or_what_one_asks_for(small_config: TrainConfig, corpus: Corpus) -> None:
    text = corpus.tokenizer.decode(corpus.validation)
    small_config.model.block_size = 64
    probe = probe_of(small_config, corpus)
    assert 30 < len(probe) <= 40
    assert "\n" not in probe
    assert "\n" + probe in text
    small_config.model.block_size = 8
    assert probe_of(small_config, corpus) == probe[:8]
    small_config.trainer.probe = ""
    assert probe_of(small_config, corpus) == ""
    small_config.trainer.probe = "A" * 9
    with pytest.raises(UserError, match=r"trainer\.probe has 9 characters, but at most 8 fit"):
        probe_of(small_config, corpus)
    small_config.trainer.probe = "A日"
    with pytest.raises(UserError, match=r"trainer.probe: the model has never seen '日' \(U\+65E5\)"):
        probe_of(small_config, corpus)
    small_config.model.n_layer = 0
    assert probe_of(small_config, corpus) == ""
