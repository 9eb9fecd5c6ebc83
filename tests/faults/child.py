"""Real runs of train.py in processes of their own, which come to harm at a chosen place.

The processes are forked from a server that has imported torch already, so that one takes a fraction of a second. In each,
the calls that read time, touch files or train are counted; every call has a place before it and one behind it, and at one
of these places the harm is done.
"""

import functools
import multiprocessing
import os
import resource
import runpy
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.utils.tensorboard import SummaryWriter

from tests.scripts import ROOT, environment
from training import evaluation, files, previews, run, tracking

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([__name__, "train"])

HARMS: dict[str, Callable[[], object]] = {
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "interrupted": lambda: os.kill(os.getpid(), signal.SIGINT),
    "terminated": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "folder gone": lambda: shutil.rmtree("run", ignore_errors=True),
}
_COUNTED: list[tuple[Any, str]] = [
    (os, "fsync"), (os, "replace"), (os, "link"), (torch, "save"), (SummaryWriter, "flush"), (SummaryWriter, "close"),
    (torch.optim.AdamW, "step"), (evaluation, "_nats"), (previews, "append_text"), (run, "Tracker"), (files, "_locked"),
    (tracking, "write_text"), (run, "write_text"), (run, "remove_strays"),
]  # fmt: skip


@dataclass(frozen=True)
class End:
    """How a process ended: its exit status, below zero for a signal, what it said, and the places it came by."""

    status: int
    said: str
    places: list[str]


def run_train(home: Path, *arguments: str, harm: str = "", at: int = -1, file_size: int = 0, as_nobody: bool = False) -> End:
    """Run train.py in a folder to its end; at the place number `at`, counted from 0, the harm is done."""
    child = _PROCESSES.Process(target=_train, args=(home, arguments, harm, at, file_size, as_nobody))
    child.start()
    child.join(120)
    if child.exitcode is None:
        child.kill()
        raise AssertionError(f"train.py never ended: {(home / 'said').read_text()}")
    places = (home / "places").read_text().splitlines() if (home / "places").exists() else []
    return End(child.exitcode, (home / "said").read_text(encoding="utf-8"), places)


def _train(home: Path, arguments: tuple[str, ...], harm: str, at: int, file_size: int, as_nobody: bool) -> None:
    os.chdir(home)
    os.environ.clear()
    os.environ.update(_ENVIRONMENT)
    said = os.open("said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.dup2(said, 1)
    os.dup2(said, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with open("places", "w") as places, mock.patch.object(sys, "argv", ["train.py", *arguments]):
        for owner, name in _COUNTED:
            setattr(owner, name, _counted(getattr(owner, name), name, places, harm, at))
        if file_size:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
        if as_nobody and os.getuid() == 0:
            os.setuid(65534)
        runpy.run_path(str(ROOT / "train.py"), run_name="__main__")


_ENVIRONMENT = environment()
_count = 0


def _counted(function: Any, name: str, places: Any, harm: str, at: int) -> Any:
    def pass_by(side: str) -> None:
        global _count
        if not at >= 0:
            places.write(f"{side} {name}\n")
            places.flush()
        elif _count == at:
            _count += 1
            HARMS[harm]()
            return
        _count += 1

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        pass_by("before")
        result = function(*args, **kwargs)
        pass_by("after")
        return result

    return wrapper
