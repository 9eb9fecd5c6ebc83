"""Helpers for tests that run the real scripts."""

import contextlib
import io
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[1]
SMALL = ("debug=smoke", "model.n_layer=2", "trainer.sample_length=0", "trainer.probe=''", "trainer.threads=1")
LONG = (*SMALL, "trainer.max_steps=100000", "trainer.eval_interval=100000", "hydra.run.dir=run")

Result = subprocess.CompletedProcess[str]


def environment(**changes: str) -> dict[str, str]:
    """A process environment without a text at hand and with one thread, so that tiny models do not wait for each other."""
    ours = ("TINY_SHAKESPEARE", "WORLD_SIZE", "PYTHONUNBUFFERED")
    inherited = {key: value for key, value in os.environ.items() if key not in ours}
    return {**inherited, "OMP_NUM_THREADS": "1", **changes}


def script(name: str, *arguments: str, cwd: Path, stdin: str = "", **env: str) -> Result:
    """Run a script to its end as if from the command line, but in this process: torch is imported already."""
    program = str(ROOT / name)
    output, errors, status = io.StringIO(), io.StringIO(), 0
    before = signal.getsignal(signal.SIGINT)
    with contextlib.ExitStack() as entered:
        entered.enter_context(contextlib.chdir(cwd))
        entered.enter_context(mock.patch.dict(os.environ, environment(**env), clear=True))
        entered.enter_context(mock.patch.object(sys, "argv", [program, *arguments]))
        entered.enter_context(mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()))))
        entered.enter_context(contextlib.redirect_stdout(output))
        entered.enter_context(contextlib.redirect_stderr(errors))
        entered.callback(signal.signal, signal.SIGINT, before)
        try:
            runpy.run_path(program, run_name="__main__")
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    return Result([program, *arguments], status, output.getvalue(), errors.getvalue())


def process(name: str, *arguments: str, cwd: Path, **env: str) -> Result:
    """Run a script to its end in a process of its own."""
    command = [sys.executable, str(ROOT / name), *arguments]
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment(**env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="backslashreplace",
        timeout=900,
    )


def start(name: str, *arguments: str, cwd: Path, **env: str) -> "subprocess.Popen[str]":
    """Start a script and return at once."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / name), *arguments],
        cwd=cwd,
        env=environment(**env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


def started(folder: Path, *options: str) -> "subprocess.Popen[str]":
    """A long run that has begun to train."""
    process = start("train.py", *LONG, *options, cwd=folder)
    assert process.stderr is not None
    for line in process.stderr:
        if "before training" in line:
            return process
    raise AssertionError("the run ended before it trained")


def refused(result: Result, *words: str) -> None:
    """Assert that a script refused in plain sentences: status 2, every one of the words, no traceback."""
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


def together(
    processes: int, *arguments: str, cwd: Path, flags: tuple[str, ...] = ("--standalone",)
) -> "subprocess.Popen[str]":
    """Start train.py in several processes, as torchrun does, and return at once."""
    command = [sys.executable, "-m", "torch.distributed.run", *flags, f"--nproc_per_node={processes}"]
    return subprocess.Popen(
        [*command, str(ROOT / "train.py"), *arguments],
        cwd=cwd,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="backslashreplace",
    )


def ended(process: "subprocess.Popen[str]", within: float = 120) -> Result:
    """What a started process has said at its end. It is killed, and the test fails, if that does not come in time."""
    try:
        output, errors = process.communicate(timeout=within)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        raise AssertionError(f"no end after {within} s: {errors[-3000:]}") from None
    return Result(process.args, process.returncode, output, errors)


def wait_for(condition: Callable[[], Any]) -> Any:
    """What the condition gives, as soon as that is something."""
    deadline = time.monotonic() + 30
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.3)
    return found
