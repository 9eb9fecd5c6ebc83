"""The loop: it learns, it is repeatable, it goes on where it was, and it never saves what is not sound."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from configs.schema import ModelConfig, TrainConfig
from data.batches import Batches
from data.corpus import Corpus
from tests.scripts import SMALL, refused, script, start
from train import train
from training import checkpoint as checkpoints
from training.evaluation import evaluate
from training.run import Diverged, Run
from training.stopping import StopSignal


class Recorder:
    """Stands where TensorBoard's writer stands and keeps every point."""

    def __init__(self) -> None:
        self.points: dict[tuple[str, int], float] = {}

    def scalars(self, values: dict[str, float], step: int) -> None:
        for tag, value in values.items():
            assert (tag, step) not in self.points
            self.points[tag, step] = value

    def text(self, *_: object) -> None: ...
    def flush(self) -> None: ...

    def curve(self, tag: str) -> dict[int, float]:
        return {step: value for (name, step), value in self.points.items() if name == tag}


def run_of(
    config: TrainConfig, corpus: Corpus, folder: Path, saved: dict[str, Any] | None = None
) -> tuple[Run, Recorder]:
    folder.mkdir(exist_ok=True)
    run = Run(config, corpus, folder, saved)
    recorder = Recorder()
    run.tracker = recorder  # type: ignore[assignment]
    return run, recorder


def trained_curve(config: TrainConfig, corpus: Corpus, folder: Path, tag: str = "loss/train") -> dict[int, float]:
    run, recorder = run_of(config, corpus, folder)
    assert train(run, StopSignal()) == "finished"
    return recorder.curve(tag)


def test_it_learns_and_says_so(small_config: TrainConfig, corpus: Corpus, tmp_path: Path) -> None:
    small_config.model.bigram_init = "zero"
    small_config.trainer.max_steps = 200
    run, recorder = run_of(small_config, corpus, tmp_path)
    train(run, StopSignal())
    assert recorder.curve("loss/val")[0] == pytest.approx(math.log(corpus.tokenizer.vocab_size), abs=1e-4)
    assert run.best["loss_val"] < run.baselines["2"]
    assert corpus.floor is not None
    assert run.best["loss_val"] > corpus.floor
    assert recorder.curve("loss/floor") == dict.fromkeys(range(0, 201, 10), corpus.floor)
    assert recorder.curve("bits_per_char/val")[200] == pytest.approx(run.loss_val / math.log(2))


def test_the_counted_bigram_is_known_before_the_first_step(
    small_config: TrainConfig, corpus: Corpus, tmp_path: Path
) -> None:
    run, _ = run_of(small_config, corpus, tmp_path)
    assert run.evaluate_and_save() == pytest.approx(run.baselines["2"], abs=1e-3)


def test_the_same_seed_gives_the_same_bits(small_config: TrainConfig, corpus: Corpus, tmp_path: Path) -> None:
    small_config.model.dropout = 0.3
    first = trained_curve(small_config, corpus, tmp_path / "1")
    assert trained_curve(small_config, corpus, tmp_path / "2") == first
    assert trained_curve(replace(small_config, seed=7), corpus, tmp_path / "3") != first


def test_what_one_looks_at_does_not_change_what_is_learned(
    small_config: TrainConfig, corpus: Corpus, tmp_path: Path
) -> None:
    small_config.model.dropout = 0.3
    first = trained_curve(small_config, corpus, tmp_path / "1")
    looking = replace(small_config.trainer, eval_interval=3, save_interval=2, sample_length=20)
    assert trained_curve(replace(small_config, trainer=looking), corpus, tmp_path / "2") == first


def test_parts_of_a_step_add_up_to_the_step(small_config: TrainConfig, corpus: Corpus, tmp_path: Path) -> None:
    small_config.trainer.batch_size = 8
    whole = {tag: trained_curve(small_config, corpus, tmp_path / "1", tag) for tag in ("loss/train", "optim/grad_norm")}
    small_config.trainer.grad_accumulation = 4
    for tag, curve in whole.items():
        assert trained_curve(small_config, corpus, tmp_path / tag[:4], tag) == pytest.approx(curve, abs=2e-4)


@pytest.mark.parametrize("stop_at", [0, 1, 7, 10, 19])
def test_a_resumed_run_has_the_bits_of_the_unbroken_one(
    small_config: TrainConfig, corpus: Corpus, tmp_path: Path, stop_at: int
) -> None:
    small_config.model.dropout = 0.3
    straight, unbroken = run_of(small_config, corpus, tmp_path / "straight")
    train(straight, StopSignal())

    stop = StopSignal()
    broken, before = run_of(small_config, corpus, tmp_path / "broken")
    keep = before.scalars

    def stop_in_time(values: dict[str, float], step: int) -> None:
        keep(values, step)
        if step == stop_at:
            stop.received = 2

    before.scalars = stop_in_time  # type: ignore[method-assign]
    assert train(broken, stop) == "interrupted"
    torch.rand(100)  # the new process starts with other random numbers

    saved = checkpoints.load(tmp_path / "broken" / "last.pt")
    assert saved["step"] == stop_at
    resumed, after = run_of(small_config, corpus, tmp_path / "broken", saved)
    train(resumed, StopSignal())

    for tag in ("loss/train", "loss/val", "optim/lr", "optim/grad_norm"):
        assert {**before.curve(tag), **after.curve(tag)} == unbroken.curve(tag)
        assert not before.curve(tag).keys() & after.curve(tag).keys()
    assert resumed.best == straight.best
    first, second = (checkpoints.load(tmp_path / name / "last.pt") for name in ("straight", "broken"))
    for name, weight in first["model"].items():
        assert torch.equal(weight, second["model"][name])
    for number, state in first["optimizer"]["state"].items():
        for name, value in state.items():
            assert torch.equal(value, second["optimizer"]["state"][number][name])
    assert torch.equal(first["random"]["cpu"], second["random"]["cpu"])


def test_a_worse_model_never_replaces_the_best(small_config: TrainConfig, corpus: Corpus, tmp_path: Path) -> None:
    run, _ = run_of(small_config, corpus, tmp_path)
    train(run, StopSignal())
    best = (tmp_path / "best.pt").read_bytes()
    small_config.trainer.max_steps, small_config.optimizer.lr, small_config.optimizer.table_lr = 40, 3.0, 3.0
    run, _ = run_of(small_config, corpus, tmp_path, checkpoints.load(tmp_path / "last.pt"))
    assert [group["peak_lr"] for group in run.optimizer.param_groups] == [3.0, 3.0]
    train(run, StopSignal())
    assert run.loss_val > run.best["loss_val"]
    assert (tmp_path / "best.pt").read_bytes() == best


def test_patience_ends_a_run_that_gets_no_better(small_config: TrainConfig, corpus: Corpus, tmp_path: Path) -> None:
    small_config.optimizer.lr = small_config.optimizer.table_lr = 1.0
    small_config.trainer.eval_interval, small_config.trainer.patience = 2, 3
    run, _ = run_of(small_config, corpus, tmp_path)
    assert train(run, StopSignal()) == "early_stopped"
    assert run.step == run.best["step"] + 6


def test_a_time_limit_ends_a_run_with_everything_saved(
    small_config: TrainConfig, corpus: Corpus, tmp_path: Path
) -> None:
    small_config.trainer.max_minutes, small_config.trainer.max_steps = 0.001, 10_000
    run, recorder = run_of(small_config, corpus, tmp_path)
    assert train(run, StopSignal()) == "time_limit"
    assert 0.06 <= run.seconds["train"] < 60
    assert run.step in recorder.curve("loss/val")
    assert checkpoints.load(tmp_path / "last.pt")["step"] == run.step


@pytest.mark.parametrize("when", ["eval_interval", "save_interval"])
@pytest.mark.parametrize("lr", [1e6, 1e30, 1e39])
def test_a_loss_that_is_no_number_never_reaches_a_file(
    small_config: TrainConfig, corpus: Corpus, tmp_path: Path, lr: float, when: str
) -> None:
    small_config.optimizer.lr = small_config.optimizer.table_lr = lr
    small_config.trainer.eval_interval = 1
    run, _ = run_of(small_config, corpus, tmp_path)
    with pytest.raises(Diverged, match=r"is not a finite number at step \d+ \(learning rate"):
        train(run, StopSignal())
    for name in ("last.pt", "best.pt"):
        checkpoint = checkpoints.load(tmp_path / name)
        model = checkpoints.model_from(checkpoint, tmp_path / name)
        assert math.isfinite(evaluate(model, run.validation, run.setup).nats)


def test_a_step_with_a_loss_that_is_no_number_is_not_taken(
    small_config: TrainConfig, corpus: Corpus, tmp_path: Path
) -> None:
    run, _ = run_of(small_config, corpus, tmp_path)
    run.resumed = True  # no evaluation before the first step
    assert run.model.bigram is not None
    run.model.bigram.weight.data[:] = math.nan
    before = {name: weight.clone() for name, weight in run.model.state_dict().items()}
    with pytest.raises(Diverged, match="the training loss is not a finite number at step 1"):
        train(run, StopSignal())
    assert run.step == 0
    assert not run.optimizer.state
    for name, weight in run.model.state_dict().items():
        assert torch.equal(weight, before[name]) or "bigram" in name


def test_weights_are_proved_before_they_are_saved(small_config: TrainConfig, corpus: Corpus, tmp_path: Path) -> None:
    run, _ = run_of(small_config, corpus, tmp_path)
    run.save()
    before = (tmp_path / "last.pt").read_bytes()
    assert run.model.stream is not None
    run.model.stream.token_embedding.weight.data[:] = math.inf
    with pytest.raises(Diverged, match="the validation loss"):
        run.save()
    assert (tmp_path / "last.pt").read_bytes() == before


def test_the_first_step_sees_the_windows_of_step_0(small_config: TrainConfig, corpus: Corpus, tmp_path: Path) -> None:
    windows = Batches(torch.from_numpy(corpus.train), 16, 4, small_config.seed).windows(0)
    fresh = run_of(small_config, corpus, tmp_path / "fresh")[0].model
    expected = F.cross_entropy(fresh(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
    assert trained_curve(small_config, corpus, tmp_path / "run")[1] == pytest.approx(float(expected), abs=1e-6)


def test_one_batch_is_learned_by_heart(small_config: TrainConfig, corpus: Corpus, tmp_path: Path) -> None:
    small_config.model = ModelConfig(block_size=16, n_layer=2, n_head=2, head_size=16, n_embd=32)
    small_config.trainer = replace(small_config.trainer, overfit_batch=True, max_steps=200, eval_interval=200)
    curve = trained_curve(small_config, corpus, tmp_path)
    assert curve[1] > 1
    assert curve[200] < 0.1
    assert checkpoints.load(tmp_path / "best.pt")["step"] == 200  # what learned the batch is what is kept


# The script as people start it.


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
        "24,064 parameters",
        "before training: val 1.8",
    ):
        assert words in result.stderr
    assert "\r" not in result.stderr  # no bar where nobody looks
    assert {path.name.split(".")[0] for path in (trained.parents[1] / "deep" / "er").iterdir()} == {
        "best", "last", "config", "events", "summary", "train",
    }  # fmt: skip


def test_the_summary_is_for_scripts(trained: Path) -> None:
    summary = json.loads((trained / "summary.json").read_text(encoding="utf-8"))
    assert summary["status"] == "finished"
    assert summary["steps"] == 20
    assert list(summary["baselines"]) == ["1", "2", "3", "4", "5"]
    assert summary["corpus"].keys() == {"name", "sha256", "characters", "vocab_size"}
    assert summary["bits_per_char"] == pytest.approx(summary["loss_val"] / math.log(2))
    assert summary["chars_per_second"] == pytest.approx(20 * 4 * 16 / summary["train_seconds"])
    assert summary["parameters"] == 24_064
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


def test_several_processes_are_refused(tmp_path: Path) -> None:
    refused(script("train.py", *SMALL, cwd=tmp_path, WORLD_SIZE="2"), "2 processes were started")


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
    refused(script("train.py", "resume=run", "trainer.max_steps=30", cwd=tmp_path), "no run to go on with")


def test_a_lost_best_model_is_said_and_made_anew(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "run" / "best.pt").unlink()
    result = script("train.py", "resume=run", "trainer.max_steps=30", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "best.pt is missing" in result.stderr
    assert checkpoints.load(tmp_path / "run" / "best.pt")["step"] == 30


def test_a_new_process_goes_on_with_the_bits_of_the_unbroken_run(tmp_path: Path) -> None:
    long = (*SMALL, "trainer.max_steps=120", "trainer.eval_interval=40", "model.dropout=0.2")
    assert script("train.py", *long, "hydra.run.dir=straight", cwd=tmp_path).returncode == 0
    broken = start("train.py", *long, "hydra.run.dir=broken", cwd=tmp_path)
    assert broken.stderr is not None
    for line in broken.stderr:
        if "step 40" in line:
            broken.terminate()
    assert broken.wait(timeout=30) == 143
    result = script("train.py", "resume=broken", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    straight, resumed = (checkpoints.load(tmp_path / name / "last.pt") for name in ("straight", "broken"))
    assert resumed["step"] == 120
    for name, weight in straight["model"].items():
        assert torch.equal(weight, resumed["model"][name])
    assert resumed["best"] == straight["best"]


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
