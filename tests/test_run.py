"""The folder of a run: what is kept there, what is taken back, and what is done about a file that is lost."""

import errno
import math
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.summary.writer.record_writer import RecordWriter

from configs.schema import TrainConfig, UserError
from data.corpus import Corpus
from tests.faults.outcome import plain
from train import train
from training import checkpoint as checkpoints
from training.folders import FILES
from training.losses import Diverged
from training.resuming import prepared_run
from training.run import Run
from training.stopping import StopSignal


@contextmanager
def opened(run: Run) -> Iterator[Run]:
    run.open_folder()
    yield run
    run.tracker.close(succeeded=True)


@pytest.fixture
def folder(small_config: TrainConfig, corpus: Corpus, tmp_path: Path) -> Path:
    """The folder of a run that stands at step 20, where its best model is; the state before was at step 10."""
    small_config.trainer.sample_length = 10
    with opened(Run(small_config, corpus, tmp_path)) as run:
        train(run, StopSignal())
        assert run.best["step"] == 20
    return tmp_path


def resumed(folder: Path, **changes: int) -> Run:
    """The run that goes on, as the command line would have it with these options of `trainer`."""
    overrides = [f"trainer.{key}={value}" for key, value in changes.items()]
    config = TrainConfig(resume=str(folder))
    for key, value in changes.items():
        setattr(config.trainer, key, value)
    return prepared_run(config, folder, overrides)[0]


def step_of(path: Path) -> int:
    step = checkpoints.load(path)["step"]
    assert isinstance(step, int)
    return step


def test_there_is_something_to_go_on_with_before_the_first_step(
    small_config: TrainConfig, corpus: Corpus, tmp_path: Path
) -> None:
    with opened(Run(small_config, corpus, tmp_path)):
        assert step_of(tmp_path / "last.pt") == 0
    assert resumed(tmp_path).latest["evaluated"] == -1


def test_the_state_before_is_kept(folder: Path) -> None:
    assert (step_of(folder / "last.pt"), step_of(folder / "previous.pt")) == (20, 10)


def test_without_hard_links_the_state_before_is_kept_all_the_same(
    small_config: TrainConfig, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", no_links)
    with opened(Run(small_config, corpus, tmp_path)) as run:
        train(run, StopSignal())
    assert (step_of(tmp_path / "last.pt"), step_of(tmp_path / "previous.pt")) == (20, 10)


def test_a_damaged_state_makes_way_for_the_one_before_and_never_takes_its_place(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = (folder / "previous.pt").read_bytes()
    (folder / "last.pt").write_bytes(b"damaged")
    run = resumed(folder, max_steps=30)
    assert "last.pt is cut short, or of another program or an earlier version" in caplog.text
    assert "trying previous.pt, the state before it" in caplog.text
    assert run.step == 10
    assert (folder / "previous.pt").read_bytes() == good
    with opened(run):
        assert (folder / "last.pt.damaged").read_bytes() == b"damaged"
        assert (folder / "previous.pt").read_bytes() == good
        assert step_of(folder / "last.pt") == 10


@pytest.mark.parametrize("damage", [bytes, None])
def test_a_lost_best_model_is_written_again_from_a_state_of_its_step(
    folder: Path, caplog: pytest.LogCaptureFixture, damage: type[bytes] | None
) -> None:
    lost = checkpoints.load(folder / "best.pt")
    (folder / "best.pt").unlink() if damage is None else (folder / "best.pt").write_bytes(damage(9))
    with opened(resumed(folder, max_steps=30)) as run:
        assert "it is written again, since a state of the run has the same weights" in caplog.text
        found = checkpoints.load(folder / "best.pt")
        del lost["points"], found["points"]  # what TensorBoard showed is more by the time that a whole state is saved
        assert plain(found) == plain(lost)
        assert run.best == lost["best"]


def test_a_lost_best_model_that_is_nowhere_else_is_said(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("last.pt", "previous.pt"):
        checkpoint = checkpoints.load(folder / name)
        checkpoint["best"]["step"] = 5
        checkpoints.save(folder / name, checkpoint)
    (folder / "best.pt").unlink()
    with opened(resumed(folder, max_steps=30)) as run:
        assert "the best model from now on takes its place" in caplog.text
        train(run, StopSignal())
    assert step_of(folder / "best.pt") == 30


def test_a_best_model_ahead_of_the_state_is_not_replaced_by_a_worse_one(folder: Path) -> None:
    """As when the newest state is damaged, and the run goes on from the one before."""
    best = (folder / "best.pt").read_bytes()
    (folder / "last.pt").unlink()  # the run stands at step 10, its best model at step 20
    run = resumed(folder, max_steps=30)
    assert (run.step, run.best["step"]) == (10, 20)
    with opened(run):
        run.step = 15
        run.evaluate_and_save()  # of the weights of step 10, which are worse
        assert run.best["step"] == 20
        assert (folder / "best.pt").read_bytes() == best


def test_a_best_model_that_the_run_was_killed_before_writing_is_had_from_the_state(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    best = (folder / "best.pt").read_bytes()
    older = checkpoints.load(folder / "best.pt")
    older["step"], older["best"] = 10, {"step": 10, "loss_val": 9.0, "waited": 0}
    checkpoints.save(folder / "best.pt", older)
    with opened(resumed(folder, max_steps=30)):
        assert "best.pt" not in caplog.text
        assert step_of(folder / "best.pt") == 20
        weights = checkpoints.load(folder / "best.pt")["model"]
    (folder / "best.pt").write_bytes(best)
    assert plain(weights) == plain(checkpoints.load(folder / "best.pt")["model"])


def test_the_best_model_of_another_run_is_not_taken_for_the_runs_own(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = checkpoints.load(folder / "best.pt")
    other["step"] = other["best"]["step"] = 1000
    other["run"] = "another"
    checkpoints.save(folder / "best.pt", other)
    with opened(resumed(folder, max_steps=30)) as run:
        assert "best.pt is of another run; it is written again" in caplog.text
        assert run.best["step"] == step_of(folder / "best.pt") == 20


def test_a_run_that_has_lost_its_best_model_at_its_very_end_finds_one(folder: Path) -> None:
    for name in ("last.pt", "previous.pt"):
        checkpoint = checkpoints.load(folder / name)
        checkpoint["best"]["step"] = 5
        checkpoints.save(folder / name, checkpoint)
    (folder / "best.pt").unlink()
    with opened(resumed(folder)) as run:  # it has no summary yet: the process was killed before
        assert train(run, StopSignal()) == "finished"
        assert run.best["step"] == step_of(folder / "best.pt") == 20


def test_options_given_on_resuming_outlive_a_kill(folder: Path) -> None:
    with opened(resumed(folder, max_steps=40)):
        pass
    assert checkpoints.load(folder / "last.pt")["config"]["trainer"]["max_steps"] == 40
    assert resumed(folder).config.trainer.max_steps == 40


def test_a_resumption_that_cannot_write_leaves_what_was_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "summary.json").write_text("{}")
    before = {path.name: path.read_bytes() for path in folder.iterdir() if "events" not in path.name}
    run = resumed(folder, max_steps=40)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(UserError, match=r"cannot write .*last\.pt: No space left on device"):
        run.open_folder()
    assert {path.name: path.read_bytes() for path in folder.iterdir() if "events" not in path.name} == before


def test_too_little_memory_is_no_damage(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (MemoryError(), torch.OutOfMemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")):

        def fail(*_: object, error: Exception = error) -> None:
            raise error

        for place in ((torch, "load"), (checkpoints, "LanguageModel"), (checkpoints, "restore_optimizer")):
            with monkeypatch.context() as patched:
                patched.setattr(*place, lambda *_, **__: fail())
                with pytest.raises(type(error)):
                    resumed(folder, max_steps=40)


def test_what_was_shown_from_its_step_on_is_taken_back(folder: Path) -> None:
    text = (folder / "samples.txt").read_text()
    assert text.count("=== step") == 3
    (folder / "last.pt").unlink()
    (folder / ".best.pt.tmp").write_bytes(b"cut short")
    (folder / "summary.json").write_text("{}")
    with opened(resumed(folder)):  # at step 10, whose sample is drawn anew
        assert not list(folder.glob(".*"))
        assert not (folder / "summary.json").exists()
        assert (folder / "samples.txt").read_text() == text[: text.index("=== step 20")]


def test_a_sample_is_there_once_even_if_those_before_it_were_removed(folder: Path) -> None:
    with opened(resumed(folder, max_steps=30)) as run:
        run.advance(torch.tensor(1.0), torch.tensor(1.0), 0.0)
        run.save()  # between two evaluations
    (folder / "samples.txt").unlink()
    with opened(resumed(folder)) as run:
        run.advance(torch.tensor(1.0), torch.tensor(1.0), 0.0)
        run.evaluate_and_save()
    with opened(resumed(folder)):
        assert (folder / "samples.txt").read_text().count("=== step 22") == 1


def test_a_stray_file_is_never_taken_for_a_state(folder: Path) -> None:
    for name in ("last.pt", "previous.pt"):
        os.rename(folder / name, folder / f".{name}.tmp")
    with pytest.raises(UserError, match=r"cannot read the checkpoint .*last\.pt"):
        resumed(folder)


@pytest.mark.parametrize("name", [name for name in FILES if name != "train.log"])
def test_a_folder_with_any_part_of_a_run_is_left_alone(
    small_config: TrainConfig, corpus: Corpus, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text("of another run")
    with pytest.raises(
        UserError, match=r"holds (a run already|\S+, which the run would replace): choose another folder"
    ):
        Run(small_config, corpus, tmp_path).open_folder()
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "of another run")]


def test_a_folder_of_a_run_that_saved_nothing_can_be_used(
    small_config: TrainConfig, corpus: Corpus, tmp_path: Path
) -> None:
    (tmp_path / "train.log").write_text("of a run that was killed at once")
    with opened(Run(small_config, corpus, tmp_path)):
        assert step_of(tmp_path / "last.pt") == 0


def test_a_weight_that_no_evaluation_needs_must_be_finite_too(
    small_config: TrainConfig, corpus: Corpus, tmp_path: Path
) -> None:
    with opened(Run(small_config, corpus, tmp_path)) as run:
        before = (tmp_path / "last.pt").read_bytes()
        rare = int(torch.bincount(run.validation.long(), minlength=run.corpus.tokenizer.vocab_size).argmin())
        run.validation = run.validation[run.validation != rare]
        assert run.model.stream is not None
        run.model.stream.token_embedding.weight.data[rare] = math.inf
        for save in (run.save, run.evaluate_and_save):
            with pytest.raises(Diverged, match="a weight is not a finite number at step 0"):
                save()
        assert (tmp_path / "last.pt").read_bytes() == before


def test_a_resumed_run_says_what_is_not_as_it_was(folder: Path) -> None:
    assert resumed(folder, max_steps=30).moved == []
    checkpoint = checkpoints.load(folder / "last.pt")
    checkpoint["versions"] |= {"torch": "1.0", "threads": "64"}
    checkpoints.save(folder / "last.pt", checkpoint)
    assert resumed(folder, max_steps=30).moved == [
        f"torch was 1.0 and is {torch.__version__}", "threads was 64 and is 1",
    ]  # fmt: skip


def test_points_are_written_before_the_state_that_will_not_draw_them_again(
    small_config: TrainConfig, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = RecordWriter.write

    def write_slowly(writer: RecordWriter, data: bytes) -> None:  # in a thread of its own
        time.sleep(0.03)
        write(writer, data)

    monkeypatch.setattr(RecordWriter, "write", write_slowly)
    with opened(Run(small_config, corpus, tmp_path)) as run:
        for step in range(1, 4):
            run.advance(torch.tensor(1.0), torch.tensor(1.0), 0.0)
            run.draw({"loss/train": 1.0})
            run.save()
            (events,) = tmp_path.glob("events.*")
            shutil.copy(events, tmp_path / "as_if_killed")
            events_there = EventFileLoader(str(tmp_path / "as_if_killed")).Load()
            drawn = [event.step for event in events_there for value in event.summary.value if value.tag == "loss/train"]
            assert drawn == list(range(1, step + 1))
