"""Files that are whole at every moment, and the lock on a run folder."""

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from configs.schema import UserError
from tests.scripts import ROOT, SMALL, refused, script, start
from tests.test_stopping import started
from training.files import append_text, held, write_bytes, write_text


def test_the_file_before_goes_on_under_its_other_name(tmp_path: Path) -> None:
    path, previous = tmp_path / "a", tmp_path / "b"
    for number in range(4):
        write_bytes(path, b"%d" % number, previous)
        assert path.read_bytes() == b"%d" % number
        assert not previous.exists() if number == 0 else previous.read_bytes() == b"%d" % (number - 1)
    assert {file.name for file in tmp_path.iterdir()} == {"a", "b"}


def test_two_names_of_one_file_are_no_hindrance(tmp_path: Path) -> None:
    """As a kill between the two renames leaves them."""
    path, previous = tmp_path / "a", tmp_path / "b"
    path.write_bytes(b"0")
    os.link(path, previous)
    (tmp_path / ".b.tmp").write_bytes(b"stray")
    write_bytes(path, b"1", previous)
    assert (path.read_bytes(), previous.read_bytes()) == (b"1", b"0")
    assert {file.name for file in tmp_path.iterdir()} == {"a", "b"}


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
        assert (tmp_path / "lock").exists()  # the second one took nothing from the first
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
    assert (tmp_path / "lock").exists()
    with held(tmp_path):
        assert f"process {os.getpid()} on" in (tmp_path / "lock").read_text()
        assert f"process {process.pid} on" not in (tmp_path / "lock").read_text()
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
    assert not (tmp_path / "run" / "lock").exists()


def test_of_two_that_resume_at_once_one_goes_on(trained: Path, tmp_path: Path) -> None:
    subprocess.run(["cp", "-r", str(trained), str(tmp_path / "run")], check=True)
    options = ("resume=run", "trainer.max_steps=1500", "trainer.eval_interval=1000")
    processes = [start("train.py", *options, cwd=tmp_path) for _ in range(2)]
    errors = {process.wait(timeout=90): process.communicate()[1] for process in processes}
    assert errors.keys() == {0, 2}, errors
    assert "run is in use by process" in errors[2]
