"""Files that are whole at every moment, and the lock on a run folder."""

import errno
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from configs.schema import UserError
from tests.scripts import ROOT, SMALL, refused, script, started
from training.files import LOCK, append_text, first_free, held, remove_strays, write_bytes, write_text


def test_the_file_before_goes_on_under_its_other_name(tmp_path: Path) -> None:
    path, previous = tmp_path / "a", tmp_path / "b"
    for number in range(4):
        write_bytes(path, b"%d" % number, previous)
        assert path.read_bytes() == b"%d" % number
        assert not previous.exists() if number == 0 else previous.read_bytes() == b"%d" % (number - 1)
    assert {file.name for file in tmp_path.iterdir()} == {"a", "b"}


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_two_names_of_one_file_are_no_hindrance(tmp_path: Path, link: Callable[[Path, Path], None]) -> None:
    """As a user may make them, by hard link or by a symbolic one."""
    path, previous = tmp_path / "a", tmp_path / "b"
    previous.write_bytes(b"0")
    link(previous, path)
    (tmp_path / ".b.tmp").write_bytes(b"stray")
    write_bytes(path, b"1", previous)
    assert not path.is_symlink()
    assert (path.read_bytes(), previous.read_bytes()) == (b"1", b"0")
    assert {file.name for file in tmp_path.iterdir()} == {"a", "b"}


def test_two_different_files_stand_there_at_every_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, previous, replace = tmp_path / "a", tmp_path / "b", os.replace
    for number in range(2):
        write_bytes(path, b"%d" % number, previous)
    seen = []

    def watched(source: Path, target: Path) -> None:
        seen.append((path.read_bytes(), previous.read_bytes()))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    write_bytes(path, b"2", previous)
    assert [*seen, (path.read_bytes(), previous.read_bytes())] == [(b"1", b"0"), (b"2", b"0"), (b"2", b"1")]


def test_a_new_name_is_on_the_disk_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, fsync = [], os.fsync

    def watched(descriptor: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), (tmp_path / "a").exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    write_bytes(tmp_path / "a", b"0")
    assert synced == [(False, False), (True, True)]  # the file under its first name, then the folder that has its last


@pytest.mark.parametrize("call", ["fsync", "replace", "link", "open"])
def test_whatever_fails_is_named_and_leaves_what_was_there(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, previous = tmp_path / "a", tmp_path / "b"
    write_bytes(path, b"0")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if call == "link":  # then there is the other way
        monkeypatch.setattr(os, "link", fail)
        write_bytes(path, b"1", previous)
        assert (path.read_bytes(), previous.read_bytes()) == (b"1", b"0")
        return
    monkeypatch.setattr(os, call, fail)
    wanted = re.escape(f"cannot write {path}: No space left on device. What was saved before is unharmed")
    with pytest.raises(UserError, match=wanted):
        write_bytes(path, b"1", previous)
    monkeypatch.undo()
    assert path.read_bytes() == (b"1" if call == "open" else b"0")  # only the folder was not proved to be on the disk
    assert not list(tmp_path.glob(".*"))


def test_texts_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    for write in (write_text, append_text):
        with pytest.raises(UserError, match=r"cannot write .*none/a: No such file or directory"):
            write(tmp_path / "none" / "a", "x")
    write_text(tmp_path / "a", "é\udcff")
    append_text(tmp_path / "a", "é\udcff")
    assert (tmp_path / "a").read_text(encoding="utf-8") == "é\\udcff" * 2


def test_a_folder_is_held_by_one(tmp_path: Path) -> None:
    with held(tmp_path):
        words = rf"{re.escape(str(tmp_path))} is in use by process {os.getpid()} on .*, since 20.*: wait until it ends"
        with pytest.raises(UserError, match=words), held(tmp_path):
            pass
        assert (tmp_path / LOCK).exists()  # the second one took nothing from the first
    assert not list(tmp_path.iterdir())
    with held(tmp_path):
        pass


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    program = (
        "import sys, time, pathlib; from training.files import held\n"
        "with held(pathlib.Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    with pytest.raises(UserError, match=f"in use by process {process.pid} on"), held(tmp_path):
        pass
    process.kill()
    process.communicate()
    assert (tmp_path / LOCK).exists()
    with held(tmp_path):
        assert f"process {os.getpid()} on" in (tmp_path / LOCK).read_text()
        assert f"process {process.pid} on" not in (tmp_path / LOCK).read_text()
    assert not list(tmp_path.iterdir())


def test_a_run_that_is_under_way_cannot_be_resumed_or_overwritten(tmp_path: Path) -> None:
    process = started(tmp_path)
    try:
        for options in (["resume=run"], [*SMALL, "hydra.run.dir=run"]):
            refused(script("train.py", *options, cwd=tmp_path), f"run is in use by process {process.pid} on")
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 130
    assert not (tmp_path / "run" / LOCK).exists()


@pytest.mark.parametrize("kind", ["a link", "a folder"])
def test_what_is_no_lock_is_not_written_to(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    thesis = tmp_path / "thesis.txt"
    thesis.write_text("my thesis")
    place = folder / LOCK
    if kind == "a link":
        place.symlink_to(thesis)
    else:
        place.mkdir()
    with pytest.raises(UserError, match=r"run\.lock"), held(folder):
        pass
    assert thesis.read_text() == "my thesis"


def test_a_run_does_not_write_into_another_folder_in_its_place(tmp_path: Path) -> None:
    process = started(tmp_path, "trainer.save_interval=50")
    os.rename(tmp_path / "run", tmp_path / "moved")
    (tmp_path / "run").mkdir()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "run is not the folder any more that the run began in" in errors
    assert not [
        path.name for path in (tmp_path / "run").iterdir() if "events" not in path.name
    ]  # TensorBoard goes by names


def test_only_what_is_ones_own_is_removed(tmp_path: Path) -> None:
    for name in (".last.pt.tmp", ".vimrc.tmp", "last.pt"):
        (tmp_path / name).touch()
    remove_strays(tmp_path, ["last.pt", "best.pt"])
    assert {path.name for path in tmp_path.iterdir()} == {".vimrc.tmp", "last.pt"}


def test_a_name_that_is_free_is_found(tmp_path: Path) -> None:
    for name in ("a", "a_2", "a_3"):
        assert first_free(tmp_path / "a") == tmp_path / name
        (tmp_path / name).mkdir()
