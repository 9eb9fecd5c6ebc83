"""Counting baselines: equal to the formula by plain counting, and to known figures on the real text."""

import logging
import math
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.schema import DataConfig
from data import corpus as texts
from data import encoded, ngrams
from data.ngrams import baseline_losses, bigram_log_probabilities


def witten_bell(train: list[int], history: tuple[int, ...], character: int, vocab_size: int, order: int) -> float:
    """The formula of the module, by dictionaries."""
    if order == 0:
        return 1 / vocab_size
    followers: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for end in range(order - 1, len(train)):
        followers[tuple(train[end - order + 1 : end])][train[end]] += 1
    seen = followers[history[len(history) - order + 1 :]]
    shorter = witten_bell(train, history, character, vocab_size, order - 1)
    total = sum(seen.values())
    return (seen[character] + len(seen) * shorter) / (total + len(seen)) if total else shorter


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_equal_to_plain_counting(data: st.DataObject) -> None:
    vocab_size = data.draw(st.integers(1, 5))
    characters = st.integers(0, vocab_size - 1)
    train = data.draw(st.lists(characters, min_size=2, max_size=40))
    validation = data.draw(st.lists(characters, min_size=2, max_size=20))
    losses = baseline_losses(np.array(train, np.uint8), np.array(validation, np.uint8), vocab_size, highest=4)
    for order in range(1, 5):
        nats = [
            -math.log(witten_bell(train, tuple(validation[:t]), validation[t], vocab_size, min(order, t + 1)))
            for t in range(1, len(validation))
        ]
        assert losses[str(order)] == pytest.approx(sum(nats) / len(nats), abs=1e-9)
    table = bigram_log_probabilities(np.array(train, np.uint8), vocab_size)
    for last in range(vocab_size):
        for character in range(vocab_size):
            expected = witten_bell(train, (last,), character, vocab_size, 2)
            assert table[last, character] == pytest.approx(math.log(expected) if expected else -math.inf, abs=1e-9)


def test_probabilities_sum_to_one() -> None:
    train = np.random.default_rng(0).integers(0, 30, 500).astype(np.uint8)
    assert np.exp(bigram_log_probabilities(train, 40)).sum(1) == pytest.approx(np.ones(40))


def test_orders_too_long_for_a_large_vocabulary_are_left_out() -> None:
    ids = np.arange(70_000, dtype=np.int32)
    losses = baseline_losses(ids[:60_000], ids[60_000:], 70_000)
    assert list(losses) == ["1", "2", "3"]
    assert all(math.isfinite(loss) for loss in losses.values())


def test_known_figures_of_tiny_shakespeare(tiny_shakespeare_path: Path) -> None:
    corpus = texts.load(DataConfig(path=str(tiny_shakespeare_path)), 64)
    losses = baseline_losses(corpus.train, corpus.validation, 65)
    assert losses == pytest.approx({"1": 3.347, "2": 2.486, "3": 2.049, "4": 1.774, "5": 1.669}, abs=0.005)
    table = bigram_log_probabilities(corpus.train, 65)
    assert -table[corpus.validation[:-1], corpus.validation[1:]].mean() == pytest.approx(losses["2"])


def test_counting_stays_above_the_true_entropy() -> None:
    corpus = texts.load(DataConfig(name="playlet"), 64)
    losses = list(baseline_losses(corpus.train, corpus.validation, corpus.tokenizer.vocab_size).values())
    assert corpus.floor is not None
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] > corpus.floor


def test_counting_is_bounded_told_and_done_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(encoded, "FOLDER", tmp_path / "cache")
    corpus = texts.load(DataConfig(name="playlet", characters=20_000), 8)
    whole = corpus.baselines()
    assert "counted n-grams" not in caplog.text
    table = ngrams.bigram_log_probabilities(corpus.train[-3000:], corpus.tokenizer.vocab_size)
    part = ngrams.baseline_losses(corpus.train[-3000:], corpus.validation[:1500], corpus.tokenizer.vocab_size)
    for module in (texts, ngrams):
        monkeypatch.setattr(module, "MOST_COUNTED", 3000)
        monkeypatch.setattr(module, "MOST_PREDICTED", 1500)
    assert whole != corpus.baselines() == part
    assert "at most the last 3,000 characters of the training part, and the first 1,500 of the" in caplog.text
    assert np.array_equal(ngrams.bigram_log_probabilities(corpus.train, corpus.tokenizer.vocab_size), table)
    (figures,) = (tmp_path / "cache").glob("*.figures*")
    with monkeypatch.context() as patched:
        patched.setattr(texts, "baseline_losses", None)
        assert corpus.baselines() == part
    for damaged in ("[", '{"1": NaN}', "[1.0]"):
        figures.write_text(damaged)
        assert corpus.baselines() == part
    monkeypatch.setattr(encoded, "FOLDER", figures)  # where nothing can be kept
    assert corpus.baselines() == part


def test_a_table_is_the_same_in_one_piece_and_in_many(monkeypatch: pytest.MonkeyPatch) -> None:
    train = np.random.default_rng(0).integers(0, 30, 500).astype(np.uint8)
    table = ngrams.bigram_log_probabilities(train, 40)
    monkeypatch.setattr(ngrams, "_MOST_CELLS", 3 * 40)
    assert np.array_equal(ngrams.bigram_log_probabilities(train, 40), table)
