"""A text written together, typed at a real terminal."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from tests.scripts import ROOT, environment, process, script


@pytest.fixture
def terminal(trained: Path, tmp_path: Path) -> Iterator["pexpect.spawn[str]"]:
    """sample.py interactive=true, waiting for the first line, on a terminal."""
    arguments = [str(ROOT / "sample.py"), f"checkpoint={trained}", "interactive=true", "seed=1", "length=30"]
    child = pexpect.spawn(
        sys.executable,
        arguments,
        cwd=str(tmp_path),
        env={**environment(), "TERM": "dumb"},
        encoding="utf-8",
        timeout=60,
        echo=False,
    )
    child.expect("> ")
    yield child
    child.close(force=True)


def answer(terminal: "pexpect.spawn[str]", line: str) -> str:
    """What stands on the terminal between this line and the next prompt."""
    terminal.sendline(line)
    terminal.expect_exact("> ")
    return (terminal.before or "").replace("\r\n", "\n").removeprefix(line + "\n")


def test_a_scene_is_written_and_saved_and_taken_back(terminal: "pexpect.spawn[str]", tmp_path: Path) -> None:
    first = answer(terminal, "the king")
    second = answer(terminal, "")
    assert len(first.rstrip("\n")) >= 25
    assert "saved in one.txt" in answer(terminal, "/save one.txt")
    assert (tmp_path / "one.txt").read_text() == ("the king\n" + first.removesuffix("\n") + second).removesuffix("\n")
    assert "one.txt exists" in answer(terminal, "/save one.txt")
    for name in ("~nobody-of-this-name/x", "gone/x", "x" * 300):
        assert name in answer(terminal, f"/save {name}")
    answer(terminal, "/undo")
    answer(terminal, "/save two.txt")
    assert (tmp_path / "one.txt").read_text().startswith((tmp_path / "two.txt").read_text())
    assert len((tmp_path / "two.txt").read_text()) == len("the king\n") + 30
    answer(terminal, "/undo")
    assert "no turn to take back" in answer(terminal, "/undo")


def test_settings_change_for_the_turns_that_follow(terminal: "pexpect.spawn[str]") -> None:
    answer(terminal, "/length 0")
    assert answer(terminal, "the storm") == ""
    assert "the storm" in answer(terminal, "/show")
    assert "temperature=-1.0 is refused" in answer(terminal, "/temperature -1")
    assert "needs a number" in answer(terminal, "/temperature warm")
    assert "needs a whole number" in answer(terminal, "/length 1e3")
    answer(terminal, "/temperature 0")
    answer(terminal, "/length 200")
    greedy = answer(terminal, "")
    answer(terminal, "/undo")
    assert answer(terminal, "") == greedy
    assert "/sing is no command" in answer(terminal, "/sing")
    assert "/undo" in answer(terminal, "/help")
    assert "(U+1F642)" in answer(terminal, "🙂")


def test_lines_can_be_edited_and_come_back(terminal: "pexpect.spawn[str]") -> None:
    pytest.importorskip("readline", reason="this Python was built without readline")
    answer(terminal, "/length 0")
    answer(terminal, "the kink\x7fg")  # backspace
    assert "the king\n" in answer(terminal, "/show")
    answer(terminal, "\x1b[A\x1b[A")  # twice up: the line before /show
    assert "the king\nthe king\n" in answer(terminal, "/show")


def test_ctrl_c_stops_what_is_being_written_and_ctrl_d_ends(terminal: "pexpect.spawn[str]", tmp_path: Path) -> None:
    answer(terminal, "/length 1000000")
    terminal.sendline("the king")
    terminal.expect(".{60}")
    terminal.kill(signal.SIGINT)
    terminal.expect_exact("> ")
    seen = terminal.before or ""
    answer(terminal, "/save kept.txt")
    kept = (tmp_path / "kept.txt").read_text()
    assert kept.startswith("the king\n")
    assert kept.endswith(seen.replace("\r\n", "\n").strip("\n^C")[-20:])  # what was shown was kept
    terminal.send("half a line")
    time.sleep(1)  # Python's own readline may miss a signal in the moment in which it takes a key
    terminal.sendintr()
    terminal.expect_exact("> ")
    assert "no command" in answer(terminal, "/half")
    terminal.sendeof()
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0
    assert "Traceback" not in (terminal.before or "")


def test_without_a_terminal_lines_are_read_and_only_text_is_written(trained: Path) -> None:
    options = (f"checkpoint={trained}", "interactive=true", "seed=1", "length=30", "prompt=the storm")
    result = script("sample.py", *options, cwd=trained, stdin="the king\n\n/nonsense\n/undo\n/quit\nnever read\n")
    assert result.returncode == 0
    assert result.stdout.startswith("the storm\nthe king\n")
    assert len(result.stdout) == len("the storm\nthe king\n") + 60
    assert "/nonsense is no command" in result.stderr
    assert "Ctrl-D ends" in result.stderr


def test_nothing_hangs_where_nothing_can_be_read(trained: Path) -> None:
    result = process("sample.py", f"checkpoint={trained}", "interactive=true", cwd=trained)
    assert result.returncode == 0
    command = f"{sys.executable} {ROOT / 'sample.py'} checkpoint={trained} interactive=true 0> /dev/null"
    unreadable = subprocess.run(
        command, shell=True, cwd=trained, env=environment(), capture_output=True, text=True, timeout=60
    )
    assert unreadable.returncode == 2
    assert "Traceback" not in unreadable.stderr
