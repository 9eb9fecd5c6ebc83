"""Real signals to real processes: what was learned is saved at a step boundary. tests/faults/ does it at every place."""

import json
import re
import signal
import time
from pathlib import Path

import pytest

from tests.scripts import LONG, script, start, started
from training import checkpoint as checkpoints


def test_a_terminal_that_closes_saves_and_tells_how_to_go_on(tmp_path: Path) -> None:
    process = started(tmp_path)
    process.send_signal(signal.SIGHUP)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 129, errors
    assert "Traceback" not in errors
    assert "stopping after this step; again to quit at once" in errors
    said = re.search(r"interrupted: saved after step (\d+)\. Go on with: python train\.py (resume=\S+)", errors)
    assert said is not None, errors
    step = int(said[1])
    assert checkpoints.load(tmp_path / "run" / "last.pt")["step"] == step
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("interrupted", step)

    result = script("train.py", said[2], f"trainer.max_steps={step + 5}", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert f"going on after step {step}" in result.stderr


def test_a_second_signal_quits_at_once_and_spares_the_files(tmp_path: Path) -> None:
    process = started(tmp_path, "trainer.save_interval=1")
    process.send_signal(signal.SIGSTOP)  # both signals are waiting when it wakes
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGCONT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 143  # of the second one; a run that ends in order has 130, of the first
    assert "interrupted: saved" not in errors
    checkpoints.load(tmp_path / "run" / "last.pt")


@pytest.mark.parametrize("seconds", [0.2, 1.5])
def test_a_signal_while_starting_shows_no_traceback(tmp_path: Path, seconds: float) -> None:
    process = start("train.py", *LONG, cwd=tmp_path)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors


def test_what_the_parent_ignores_stays_ignored(tmp_path: Path) -> None:
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        process = started(tmp_path)
    finally:
        signal.signal(signal.SIGHUP, ignored)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert process.poll() is None
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 143
