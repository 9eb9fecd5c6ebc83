"""Resuming: the run's own configuration, a few changes that are reported, and everything else refused by name."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from configs.schema import ModelConfig, TrainConfig, UserError, options
from data.corpus import Corpus
from data.tokenizer import Tokenizer
from training.resuming import MAY_CHANGE, reasons_to_stay_ended, refuse_other_text, resumed_config

SAVED = {"config": asdict(TrainConfig(model=ModelConfig(n_embd=32), seed=5))}


def test_the_checkpoint_decides() -> None:
    config, changes = resumed_config(SAVED, TrainConfig(resume="runs/x"), ["resume=runs/x"])
    assert (config.model.n_embd, config.seed) == (32, 5)
    assert changes == []


def test_allowed_changes_are_made_and_reported() -> None:
    typed = TrainConfig(resume="runs/x")
    typed.trainer.max_steps, typed.optimizer.lr, typed.trainer.attention_path = 2000, 0.5, "plain"
    words = ["resume=runs/x", "trainer.max_steps=2000", "optimizer.lr=0.5", "trainer.attention_path=plain"]
    config, changes = resumed_config(SAVED, typed, words)
    assert (config.trainer.max_steps, config.optimizer.lr, config.model.n_embd) == (2000, 0.5, 32)
    assert changes == [
        "trainer.max_steps: 1300 -> 2000", "optimizer.lr: 0.003 -> 0.5", "trainer.attention_path: auto -> plain",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["${a}", "${oc.env:HOME}", "a\\${b}", "${", "\\\\${x"])
def test_texts_are_never_read_as_interpolations(text: str) -> None:
    saved = TrainConfig()
    saved.trainer.probe = saved.data.path = text
    saved.data.urls = [text]
    config, _ = resumed_config({"config": asdict(saved)}, TrainConfig(), [])
    assert (config.trainer.probe, config.data.path, config.data.urls) == (text, text, [text])
    typed = TrainConfig()
    typed.trainer.probe = text
    config, changes = resumed_config(SAVED, typed, ["trainer.probe=..."])
    assert config.trainer.probe == text
    assert changes == [f"trainer.probe: null -> {text}"]


def test_an_option_that_stays_is_no_change() -> None:
    _, changes = resumed_config(SAVED, TrainConfig(), ["trainer.max_steps=1300"])
    assert changes == []


def test_every_other_option_is_refused_by_name() -> None:
    refused = [key for key in options(TrainConfig) if key not in MAY_CHANGE | {"resume"}]
    assert options(TrainConfig).keys() >= MAY_CHANGE
    with pytest.raises(UserError) as error:
        resumed_config(SAVED, TrainConfig(), [f"{key}=1" for key in refused] + ["model=head", "experiment=textbook"])
    for key in [*refused, "model", "experiment"]:
        assert key in str(error.value)


def test_another_text_is_refused_with_every_difference(corpus: Corpus) -> None:
    saved = {"corpus": corpus.identity(), "vocabulary": corpus.tokenizer.vocabulary}
    refuse_other_text(saved, replace(corpus, name="renamed"))
    other = replace(corpus, sha256="2", characters=2800, tokenizer=Tokenizer(corpus.tokenizer.vocabulary[1:] + "é"))
    with pytest.raises(UserError) as error:
        refuse_other_text(saved, other)
    for words in ("sha256 was c8c8", "and is 2;", "characters was 20000 and is 2800"):
        assert words in str(error.value)
    assert "only the old text has '\\n'; only the new text has 'é'" in str(error.value)
    with pytest.raises(UserError, match="only the new text has 'é'"):  # whatever the hash says
        refuse_other_text(saved, replace(corpus, tokenizer=Tokenizer(corpus.tokenizer.vocabulary + "é")))


def test_a_run_that_is_over_says_what_to_change(tmp_path: Path) -> None:
    saved = {"step": 7, "seconds": {"train": 61.0}, "best": {"waited": 3}}
    config = TrainConfig()
    (tmp_path / "summary.json").write_text('{"status": "finished"}')
    assert reasons_to_stay_ended(saved, config, tmp_path) == []
    config.trainer.max_steps, config.trainer.max_minutes, config.trainer.patience = 7, 1.0, 3
    reasons = "; ".join(reasons_to_stay_ended(saved, config, tmp_path))
    for words in ("has done its 7 steps", "has used its 1 minutes", "no better for 3 evaluations"):
        assert words in reasons
    config.trainer.max_steps, config.trainer.max_minutes, config.trainer.patience = 8, 2.0, 4
    assert reasons_to_stay_ended(saved, config, tmp_path) == []


@pytest.mark.parametrize("summary", [None, "", "{}", "[]", '{"status": "interrupted"}', '{"status": "failed"}'])
def test_a_run_that_was_stopped_before_its_summary_may_write_it(tmp_path: Path, summary: str | None) -> None:
    saved = {"step": 7, "seconds": {"train": 61.0}, "best": {"waited": 3}}
    config = TrainConfig()
    config.trainer.max_steps, config.trainer.max_minutes, config.trainer.patience = 7, 1.0, 3
    if summary is not None:
        (tmp_path / "summary.json").write_text(summary)
    assert reasons_to_stay_ended(saved, config, tmp_path) == []
    config.trainer.max_steps = 6
    assert "has done 7 steps, more than trainer.max_steps=6" in str(reasons_to_stay_ended(saved, config, tmp_path))
