"""train.py as people start it: what it says and leaves, what it refuses, and going on in a new process."""

import json
import math
import re
import shutil
from pathlib import Path

import pytest

from tests.scripts import SMALL, refused, script


def test_the_end_of_a_run_says_what_people_need(trained: Path) -> None:
    result = script("train.py", *SMALL, "hydra.run.dir=deep/er", cwd=trained.parents[1])
    for words in (
        "counted 5-gram",
        "gpt, step",
        "true entropy",
        "Watch:  tensorboard --logdir deep",
        "checkpoint=deep/er",
    ):
        assert words in result.stdout
    for words in (
        "device cpu",
        "precision float32",
        "threads",
        "48 distinct",
        "17,664 parameters",
        "before training: val 1.8",
    ):
        assert words in result.stderr
    there = "best.pt, last.pt, previous.pt, summary.json, config.yaml, train.log"
    # No sample where none are wanted, neither shown nor said to be saved.
    assert re.search(rf"evaluation beside it: \d+\.\d s\n\nSaved in deep/er: {there}\n", result.stdout)
    assert "\r" not in result.stderr  # no bar where nobody looks
    assert {path.name.split(".")[0] for path in (trained.parents[1] / "deep" / "er").iterdir()} == {
        "best", "last", "previous", "config", "events", "summary", "train",
    }  # fmt: skip


def test_the_summary_is_for_scripts(trained: Path) -> None:
    summary = json.loads((trained / "summary.json").read_text(encoding="utf-8"))
    assert summary["status"] == "finished"
    assert summary["steps"] == 20
    assert list(summary["baselines"]) == ["1", "2", "3", "4", "5"]
    assert summary["corpus"].keys() == {"name", "sha256", "characters", "vocab_size"}
    assert summary["bits_per_char"] == pytest.approx(summary["loss_val"] / math.log(2))
    assert summary["chars_per_second"] == pytest.approx(20 * 4 * 16 / summary["train_seconds"])
    assert summary["parameters"] == 17_664
    assert summary["floor"] == pytest.approx(0.2576, abs=1e-3)
    assert summary["overrides"] == [*SMALL, "trainer.sample_length=50"]
    assert summary["eval_seconds"] > 0
    assert {"best_step", "seed"} <= summary.keys()


def test_the_log_file_holds_whole_lines(trained: Path) -> None:
    lines = (trained / "train.log").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 9
    assert all(line[:4].isdigit() and " INFO " in line for line in lines)


def test_samples_of_every_evaluation_are_kept(trained: Path) -> None:
    samples = (trained / "samples.txt").read_text(encoding="utf-8")
    for step in (0, 10, 20):
        assert f"=== step {step}, validation loss" in samples


def test_a_short_run_leaves_a_model(tmp_path: Path) -> None:
    result = script("train.py", *SMALL, "trainer.max_steps=5", "trainer.eval_interval=1000", cwd=tmp_path)
    assert result.returncode == 0
    assert script("sample.py", "length=10", cwd=tmp_path).returncode == 0


def test_a_run_that_diverges_says_what_to_try(tmp_path: Path) -> None:
    result = script(
        "train.py", *SMALL, "optimizer.lr=1e30", "optimizer.table_lr=1e30", "hydra.run.dir=run", cwd=tmp_path
    )
    refused(result, "not a finite number at step", "learning rate", "Try lower optimizer.lr")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "diverged"


def test_a_text_is_found_from_where_one_stands(tmp_path: Path) -> None:
    (tmp_path / "my texts").mkdir()
    (tmp_path / "my texts" / "é = #1.txt").write_text(
        "to be or not to be, that is the question\n" * 50, encoding="utf-8"
    )
    result = script("train.py", *SMALL, "data=text", "data.path=my texts/é = #1.txt", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name != "my texts"] == ["runs"]


def test_sizes_beyond_the_memory_are_refused(tmp_path: Path) -> None:
    result = script("train.py", *SMALL, "model.n_embd=300000000", cwd=tmp_path)
    refused(result, "memory does not suffice: choose smaller sizes")


def test_resuming_in_a_new_process(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run")
    result = script("train.py", "resume=run/last.pt", "trainer.max_steps=30", "optimizer.lr=0.001", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "going on after step 20; changed: trainer.max_steps: 20 -> 30, optimizer.lr: 0.003 -> 0.001" in result.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 30
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_model_to_sample_from_is_no_run_to_go_on_with(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run")
    shutil.copy(tmp_path / "run" / "best.pt", tmp_path / "run" / "last.pt")
    (tmp_path / "run" / "previous.pt").unlink()
    refused(script("train.py", "resume=run", "trainer.max_steps=30", cwd=tmp_path), "no run to go on with")


def test_a_run_goes_on_whatever_its_texts_hold(tmp_path: Path) -> None:
    text = "a ${b} ??? 'c' \\${d} ${\n" * 200
    (tmp_path / "${x}.txt").write_text(text)
    options = ("data=text", "data.path=${x}.txt", "trainer.probe=${b} ${", "hydra.run.dir=run")
    result = script("train.py", "debug=smoke", "trainer.threads=1", *options, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    result = script("train.py", "resume=run", "trainer.max_steps=25", "trainer.probe=${b} ${", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "changed: trainer.max_steps: 20 -> 25\n" in result.stderr
    assert "probe: ${b} ${" in (tmp_path / "run" / "config.yaml").read_text()
    refused(script("train.py", *SMALL, "trainer.probe=???", cwd=tmp_path), "trainer.probe=??? is refused")


def test_what_cannot_be_resumed_is_refused(trained: Path) -> None:
    home = trained.parents[1]
    refused(script("train.py", f"resume={trained}", cwd=home), "has done its 20 steps", "trainer.max_steps=N")
    refused(
        script("train.py", "resume=nowhere", cwd=home),
        "resume=nowhere is neither a run folder with a last.pt",
    )
    refused(script("train.py", f"resume={trained}", "hydra.run.dir=other", cwd=home), "leave out -m and hydra.run.dir")
    refused(script("train.py", f"resume={trained / 'best.pt'}", cwd=home), "neither a run folder")
    assert not (home / "nowhere").exists()
    assert not (home / "other").exists()


@pytest.mark.parametrize(
    ("steps", "words"), [(7, "no step was profiled: the run ended within its first 7"), (9, "2 steps, the slowest")]
)
def test_a_profile_of_a_short_run_says_what_it_shows(tmp_path: Path, steps: int, words: str) -> None:
    options = (
        "debug=profile",
        "data=playlet",
        "data.characters=20000",
        f"trainer.max_steps={steps}",
        "hydra.run.dir=run",
    )
    result = script("train.py", *SMALL, *options, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert words in result.stderr
    assert ((tmp_path / "run" / "trace.json").exists(), "trace.json" in result.stdout) == (steps > 7, steps > 7)


def test_a_profile_says_where_the_time_went(tmp_path: Path) -> None:
    result = script("train.py", *SMALL, "debug=profile", "data=playlet", "hydra.run.dir=run", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "10 steps, the slowest operations first:" in result.stderr
    assert "open run/trace.json in https://ui.perfetto.dev" in result.stderr
    assert "trace.json" in result.stdout  # among what was saved
    trace = json.loads((tmp_path / "run" / "trace.json").read_text())
    names = {event.get("name", "") for event in trace["traceEvents"]}
    assert {"aten::mm", "aten::embedding_bag", *(f"ProfilerStep#{step}" for step in range(7, 17))} <= names
