"""Real runs of train.py in processes of their own, which come to harm at a chosen place.

The processes are forked from a server that has imported torch already, so that one takes a fraction of a second. In each,
the calls that read time, touch files or train are counted; every call has a place before it and one behind it, and at one
of these places the harm is done.
"""

import contextlib
import ctypes
import functools
import io
import itertools
import multiprocessing
import os
import resource
import runpy
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.utils.tensorboard import SummaryWriter

from tests.scripts import ROOT, environment
from training import evaluation, files, optimizers, previews, run, tracking

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([__name__, "train"])


def _remove(folder: str) -> None:
    """Remove a folder at once: file by file, TensorBoard's writer could put one back in time to keep it."""
    with contextlib.suppress(OSError):
        os.rename(folder, f"{folder}.gone")
    shutil.rmtree(f"{folder}.gone", ignore_errors=True)


HARMS: dict[str, Callable[[], object]] = {
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "interrupted": lambda: os.kill(os.getpid(), signal.SIGINT),
    "terminated": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "folder gone": lambda: _remove("run"),
}
_COUNTED: list[tuple[Any, str]] = [
    (os, "fsync"), (os, "replace"), (os, "link"), (torch, "save"), (SummaryWriter, "flush"), (SummaryWriter, "close"),
    (optimizers.Optimizer, "step"), (evaluation, "_nats"), (previews, "append_text"), (run, "Tracker"), (files, "_locked"),
    (tracking, "write_text"), (run, "write_text"), (run, "remove_strays"),
]  # fmt: skip


@dataclass(frozen=True)
class End:
    """How a process ended: its exit status, below zero for a signal, what it said, and the places it came by."""

    status: int
    said: str
    places: list[str]


def run_train(
    home: Path, *arguments: str, harm: str = "", at: int = -1, file_size: int = 0, bound: bool = False
) -> End:
    """Run train.py in a folder to its end.

    At the place number `at`, counted from 0, the harm is done. No file may grow above `file_size` bytes, and a process
    that is `bound` by permissions is so even if it is root's.
    """
    hear, say = _PROCESSES.Pipe(duplex=False)  # no file: limits on files and full disks do not concern it
    hear_places, say_places = _PROCESSES.Pipe(duplex=False)
    child = _PROCESSES.Process(
        target=_train, args=(home, arguments, harm, at, file_size, bound, say, say_places), daemon=True
    )
    child.start()
    said, places = _all_of(hear, say), _all_of(hear_places, say_places)
    child.join(60)
    assert child.exitcode is not None, f"train.py never ended: {said}"
    return End(child.exitcode, said, places.splitlines())


def _all_of(hear: Connection, say: Connection) -> str:
    say.close()  # the child has its own
    pieces = []
    while piece := os.read(hear.fileno(), 1 << 16):
        pieces.append(piece)
    hear.close()
    return b"".join(pieces).decode("utf-8")


def _train(
    home: Path, arguments: tuple[str, ...], harm: str, at: int, file_size: int, bound: bool,
    say: Connection, say_places: Connection,
) -> None:  # fmt: skip
    os.chdir(home)
    os.environ.clear()
    os.environ.update(_ENVIRONMENT)
    for descriptor, name in enumerate(("stdout", "stderr"), start=1):
        os.dup2(say.fileno(), descriptor)
        setattr(sys, name, open(descriptor, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
    say.close()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    pass_by = _pass_by(say_places, harm, at)
    for owner, name in _COUNTED:
        setattr(owner, name, _counted(getattr(owner, name), name, pass_by))
    files.__dict__["open"] = functools.partial(_open, pass_by)
    if file_size:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
    if bound and os.getuid() == 0:
        _obey_permissions()
    with mock.patch.object(sys, "argv", ["train.py", *arguments]):
        runpy.run_path(str(ROOT / "train.py"), run_name="__main__")


def _obey_permissions() -> None:
    """Give up root's right to read and write everything: Linux's capabilities CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""
    libc = ctypes.CDLL(None, use_errno=True)
    version, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(version, sets) == 0
    for number in (0, 1):  # those in effect, those that may be
        sets[number] &= ~0b110
    assert libc.capset(version, sets) == 0, os.strerror(ctypes.get_errno())


_ENVIRONMENT = environment()


def _pass_by(say: Connection, harm: str, at: int) -> Callable[[str], None]:
    """What is called at each place, with its name."""
    numbers = itertools.count()

    def pass_by(place: str) -> None:
        os.write(say.fileno(), f"{place}\n".encode())
        if next(numbers) == at:
            HARMS[harm]()

    return pass_by


def _counted(function: Any, name: str, pass_by: Callable[[str], None]) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        pass_by(f"before {name}")
        result = function(*args, **kwargs)
        pass_by(f"after {name}")
        return result

    return wrapper


def _open(pass_by: Callable[[str], None], path: Path, mode: str, **options: Any) -> Any:
    """A file like any other, with a place in the middle of what is written to it at once."""
    return _InHalves(pass_by, io.FileIO(path, "w")) if mode == "wb" else open(path, mode, **options)


class _InHalves(io.BufferedWriter):
    def __init__(self, pass_by: Callable[[str], None], raw: io.FileIO) -> None:
        super().__init__(raw)
        self.pass_by = pass_by

    def write(self, content: Any) -> int:
        half = len(content) // 2
        written = super().write(content[:half])
        self.flush()
        self.pass_by("in the middle of write")
        return written + super().write(content[half:])
