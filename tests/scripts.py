"""Helpers for tests that start the real scripts as processes."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SMALL = ("debug=smoke", "trainer.sample_length=0")


def environment(**changes: str) -> dict[str, str]:
    """A process environment without a text at hand and with one thread, so that tiny models do not wait for each other."""
    inherited = {key: value for key, value in os.environ.items() if key not in ("TINY_SHAKESPEARE", "WORLD_SIZE")}
    return {**inherited, "OMP_NUM_THREADS": "1", **changes}


def script(name: str, *arguments: str, cwd: Path, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Run train.py or sample.py to its end. Standard input is `stdin` as UTF-8, or nothing."""
    return subprocess.run(
        [sys.executable, str(ROOT / name), *arguments],
        cwd=cwd,
        env=environment(**env),
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        errors="backslashreplace",
        timeout=900,
    )


def start(name: str, *arguments: str, cwd: Path, **env: str) -> "subprocess.Popen[str]":
    """Start a script and return at once."""
    return subprocess.Popen(
        [sys.executable, "-u", str(ROOT / name), *arguments],
        cwd=cwd,
        env=environment(**env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


def refused(result: subprocess.CompletedProcess[str], *words: str) -> None:
    """Assert that a script refused in plain sentences: status 2, every one of the words, no traceback."""
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr
