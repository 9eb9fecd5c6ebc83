"""The loop: it learns, it is repeatable, it goes on where it was, and it never saves what is not sound."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from configs.schema import ModelConfig, TrainConfig
from data import corpus as texts
from data.batches import Batches
from data.corpus import Corpus
from tests.runs import run_of
from train import train
from training import checkpoint as checkpoints
from training import evaluation
from training.evaluation import evaluate
from training.losses import Diverged
from training.stopping import StopSignal


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
    assert recorder.curve("bits_per_char/val")[200] == pytest.approx(run.latest["loss_val"] / math.log(2))


def test_the_counted_bigram_is_known_before_the_first_step(
    small_config: TrainConfig, corpus: Corpus, tmp_path: Path
) -> None:
    run, _ = run_of(small_config, corpus, tmp_path)
    run.evaluate_and_save()
    assert run.latest["loss_val"] == pytest.approx(run.baselines["2"], abs=1e-3)


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
    looking = replace(small_config.trainer, eval_interval=3, save_interval=2, sample_length=20, probe="")
    assert trained_curve(replace(small_config, trainer=looking), corpus, tmp_path / "2") == first


def test_parts_of_a_step_add_up_to_the_step(small_config: TrainConfig, corpus: Corpus, tmp_path: Path) -> None:
    small_config.trainer.batch_size = 8
    whole = {tag: trained_curve(small_config, corpus, tmp_path / "1", tag) for tag in ("loss/train", "optim/grad_norm")}
    small_config.trainer.grad_accumulation = 4
    for tag, curve in whole.items():
        assert trained_curve(small_config, corpus, tmp_path / tag[:4], tag) == pytest.approx(curve, abs=2e-4)


@pytest.mark.parametrize(
    ("stop_at", "optimizer", "precision"),
    [*((step, "adamw", "float32") for step in (0, 1, 7, 10, 19, 20)), (7, "muon", "float32"), (7, "muon", "float16")],
)
def test_a_resumed_run_has_the_bits_of_the_unbroken_one(
    small_config: TrainConfig, corpus: Corpus, tmp_path: Path, stop_at: int, optimizer: str, precision: str
) -> None:
    small_config.model.dropout = 0.3
    small_config.optimizer.name, small_config.trainer.precision = optimizer, precision
    straight, unbroken = run_of(small_config, corpus, tmp_path / "straight")
    train(straight, StopSignal())

    stop = StopSignal()
    broken, before = run_of(small_config, corpus, tmp_path / "broken")
    keep = before.scalars

    def stop_in_time(values: dict[str, float], step: int) -> None:
        keep(values, step)
        if (step == stop_at and "loss/train" in values) or step == stop_at == 0:
            stop.received = 2

    before.scalars = stop_in_time  # type: ignore[method-assign]
    assert train(broken, stop) == "interrupted"
    torch.rand(100)  # the new process starts with other random numbers

    saved = checkpoints.load(tmp_path / "broken" / "last.pt")
    assert saved["step"] == stop_at
    # At steps 10 and 20 the signal came before the evaluation, which is then the first thing to be done.
    assert saved["latest"]["evaluated"] == {0: 0, 20: 10}.get(stop_at, (stop_at - 1) // 10 * 10)
    resumed, after = run_of(small_config, corpus, tmp_path / "broken", saved)
    assert resumed.points == {tag: value for (tag, step), value in before.points.items() if step == stop_at}
    assert train(resumed, StopSignal()) == "finished"

    for tag in ("loss/train", "loss/val", "optim/lr", "optim/grad_norm"):
        assert {**before.curve(tag), **after.curve(tag)} == unbroken.curve(tag)
        assert not before.curve(tag).keys() & after.curve(tag).keys()
    assert resumed.best == straight.best
    assert resumed.latest == straight.latest
    first, second = (checkpoints.load(tmp_path / name / "last.pt") for name in ("straight", "broken"))
    for name, weight in first["model"].items():
        assert torch.equal(weight, second["model"][name])
    for number, state in first["optimizer"]["state"].items():
        for name, value in state.items():
            assert torch.equal(value, second["optimizer"]["state"][number][name])
    assert torch.equal(first["random"]["cpu"], second["random"]["cpu"])


def test_a_signal_does_not_wait_for_an_evaluation(
    small_config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_config.data.characters = 200_000
    run, recorder = run_of(small_config, texts.load(small_config.data, 16), tmp_path)
    stop, batches, nats = StopSignal(), [], evaluation._nats

    def count(*args: Any) -> torch.Tensor:
        batches.append(args)
        stop.received = 2 if len(batches) == 2 else stop.received
        return nats(*args)

    monkeypatch.setattr(evaluation, "_nats", count)
    assert train(run, stop) == "interrupted"
    assert len(batches) == 3  # of ten; the third one proves that what is saved is sound
    assert recorder.points == {}
    assert checkpoints.load(tmp_path / "last.pt")["latest"]["evaluated"] == -1


def test_a_worse_model_never_replaces_the_best(small_config: TrainConfig, corpus: Corpus, tmp_path: Path) -> None:
    run, _ = run_of(small_config, corpus, tmp_path)
    train(run, StopSignal())
    best = (tmp_path / "best.pt").read_bytes()
    small_config.trainer.max_steps, small_config.optimizer.n_gram_lr = 40, 3.0
    small_config.optimizer.lr = small_config.optimizer.table_lr = 3.0
    run, _ = run_of(small_config, corpus, tmp_path, checkpoints.load(tmp_path / "last.pt"))
    assert [group["peak_lr"] for group in run.optimizer.param_groups] == [3.0, 3.0, 3.0]
    train(run, StopSignal())
    assert run.latest["loss_val"] > run.best["loss_val"]
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


@pytest.mark.parametrize("log_interval", [1, 3, 1000])
def test_the_first_loss_that_is_no_number_is_named_and_nothing_after_it_is_saved(
    small_config: TrainConfig, corpus: Corpus, tmp_path: Path, log_interval: int
) -> None:
    small_config.trainer.log_interval, small_config.trainer.save_interval = log_interval, 4
    run, _ = run_of(small_config, corpus, tmp_path)
    run.latest["evaluated"] = 0  # no evaluation before the first step
    advance = run.advance

    def advance_with_nan(loss: Tensor, grad_norm: Tensor, seconds: float) -> None:
        assert run.model.bigram is not None
        if run.step == 1:
            run.model.bigram.weight.data[:] = math.nan
        advance(loss, grad_norm, seconds)

    run.advance = advance_with_nan  # type: ignore[method-assign]
    with pytest.raises(
        Diverged, match=r"the training loss is not a finite number at step 3 .*last finite training loss"
    ):
        train(run, StopSignal())
    assert not list(tmp_path.glob("*.pt"))
    assert math.isfinite(run.losses.loss)


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
