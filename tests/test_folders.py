"""Which run, and which file of it, is meant."""

import os
from pathlib import Path

import pytest

from configs.schema import UserError
from training.folders import checkpoint_to_read, folder_to_resume, holds_a_run, newest, refuse_odd_files


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with runs, and a job of a sweep that is the newest of them."""
    monkeypatch.chdir(tmp_path)
    for age, folder in enumerate(("runs/sweep/1_gpt", "runs/a", "runs/sweep/0_gpt", "runs/z")):
        Path(folder).mkdir(parents=True)
        for name in ("best.pt", "last.pt"):
            (Path(folder) / name).touch()
            os.utime(Path(folder) / name, (1000 - age, 1000 - age))
    return tmp_path


def test_the_newest_run_may_be_a_job_of_a_sweep(home: Path) -> None:
    assert newest("best.pt") == Path("runs/sweep/1_gpt/best.pt")
    assert newest("nothing.pt") is None
    assert checkpoint_to_read(None) == Path("runs/sweep/1_gpt/best.pt")
    assert folder_to_resume("latest") == Path("runs/sweep/1_gpt")


def test_folders_and_files_are_understood(home: Path) -> None:
    assert checkpoint_to_read("runs/a") == checkpoint_to_read("runs/a/best.pt") == Path("runs/a/best.pt")
    assert folder_to_resume("runs/a") == folder_to_resume("runs/a/last.pt") == Path("runs/a")
    os.rename("runs/a/last.pt", "runs/a/previous.pt")
    assert folder_to_resume("runs/a") == Path("runs/a")
    with pytest.raises(
        UserError, match=r"name the run's folder; it goes on from previous.pt if last.pt cannot be used"
    ):
        folder_to_resume("runs/a/previous.pt")


def test_a_run_whose_newest_state_is_lost_is_still_the_newest(home: Path) -> None:
    os.rename("runs/sweep/1_gpt/last.pt", "runs/sweep/1_gpt/previous.pt")
    assert folder_to_resume("latest") == Path("runs/sweep/1_gpt")


def test_what_is_left_of_a_run_is_left_alone_without_a_wrong_advice(home: Path) -> None:
    assert holds_a_run(Path("runs")) == ""
    assert "go on with resume=runs/a" in holds_a_run(Path("runs/a"))
    os.remove("runs/a/last.pt")
    assert holds_a_run(Path("runs/a")) == "runs/a holds best.pt, which the run would replace: choose another folder"
    with pytest.raises(UserError, match=r"the states of that run are gone; its best.pt can still be sampled from"):
        folder_to_resume("runs/a")


@pytest.mark.parametrize("name", ["last.pt", "previous.pt", "best.pt", "samples.txt", "train.log", "run.lock"])
def test_what_is_no_file_is_refused_before_anything_waits_for_it(tmp_path: Path, name: str) -> None:
    refuse_odd_files(tmp_path)
    for make in (os.mkfifo, os.mkdir, lambda path: os.symlink("nowhere", path)):
        make(tmp_path / name)
        with pytest.raises(UserError, match=f"{name} is no file: move it away"):
            refuse_odd_files(tmp_path)
        os.rename(tmp_path / name, tmp_path / f"{make}")
    (tmp_path / name).touch()
    refuse_odd_files(tmp_path)


def test_what_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"no trained model in .*runs: train one with python train.py"):
        checkpoint_to_read(None)
    with pytest.raises(UserError, match=r"checkpoint=gone\.pt does not exist"):
        checkpoint_to_read("gone.pt")
    with pytest.raises(UserError, match=r"there is no run in .*runs"):
        folder_to_resume("latest")
    with pytest.raises(UserError, match="resume=gone is neither a run folder"):
        folder_to_resume("gone")
    Path("sweep/1").mkdir(parents=True)
    Path("sweep/1/best.pt").touch()
    for read in (checkpoint_to_read, folder_to_resume):
        with pytest.raises(UserError, match="sweep is no run folder but has some in it: name one, such as sweep/1"):
            read("sweep")
    Path("begun").mkdir()
    Path("begun/train.log").touch()
    with pytest.raises(UserError, match="stopped before it saved anything, so start it again"):
        folder_to_resume("begun")
