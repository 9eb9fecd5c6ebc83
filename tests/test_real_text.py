"""The promises on the real text: Tiny Shakespeare, whole validation part, real training."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.scripts import process

pytestmark = pytest.mark.slow


def trained_summary(text: Path, folder: Path, *options: str) -> dict[str, Any]:
    """Train with these options, on one core, since other tests run on the others, and read summary.json."""
    result = process("train.py", f"data.path={text}", "hydra.run.dir=run", "trainer.threads=1", *options, cwd=folder)
    assert result.returncode == 0, result.stderr
    summary: dict[str, Any] = json.loads((folder / "run" / "summary.json").read_text())
    return summary


def test_the_default_run_beats_counting_and_writes_a_play(tiny_shakespeare_path: Path, tmp_path: Path) -> None:
    summary = trained_summary(tiny_shakespeare_path, tmp_path, "trainer.sample_length=0")
    assert summary["corpus"]["characters"] == 1_115_394
    assert summary["loss_val"] < summary["baselines"]["5"] < 1.67
    play = process("sample.py", "checkpoint=run", "length=3000", "temperature=0.8", "seed=1", cwd=tmp_path).stdout
    words = set(tiny_shakespeare_path.read_text(encoding="utf-8").split())
    written = play.split()
    assert sum(word in words for word in written) > 0.7 * len(written)
    assert sum(line.endswith(":") and line[:1].isupper() for line in play.splitlines()) >= 5  # speakers


def test_the_learned_bigram_comes_to_the_counted_one(tiny_shakespeare_path: Path, tmp_path: Path) -> None:
    summary = trained_summary(tiny_shakespeare_path, tmp_path, "model=bigram", "trainer.sample_length=0")
    assert summary["loss_val"] == pytest.approx(summary["baselines"]["2"], abs=0.02)


def test_one_small_head_lies_between_bigram_and_gpt(tiny_shakespeare_path: Path, tmp_path: Path) -> None:
    head = ("model=head", "model.block_size=8", "model.head_size=16", "trainer.sample_length=0")
    summary = trained_summary(tiny_shakespeare_path, tmp_path, *head)
    assert 1.669 < summary["loss_val"] < 2.44
