"""Proofs that no harm costs a run anything: after each, it goes on and ends with the very bits of the unbroken one.

A trial does one harm. It fails with an AssertionError that says what was done.
"""

import contextlib
import itertools
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from tests.faults.child import End, run_train
from tests.faults.outcome import outcome, whole
from training import checkpoint as checkpoints
from training.folders import STATES, has_state
from training.resuming import has_ended

OPTIONS = (
    "debug=smoke", "model.n_layer=1", "model.n_head=2", "model.dropout=0.2", "trainer.threads=1", "trainer.sample_length=20",
    "trainer.max_steps=12", "trainer.eval_interval=4", "trainer.save_interval=3", "trainer.log_interval=1",
    "hydra.run.dir=run",
)  # fmt: skip
Case = TypeVar("Case")


class Proof:
    """One unbroken run to compare with, and a fresh folder for each trial below `home`."""

    def __init__(self, home: Path) -> None:
        self.home, self.numbers = home, itertools.count(1)
        self.straight = self.folder()
        end = run_train(self.straight, *OPTIONS)
        assert end.status == 0, end.said
        self.places, self.expected = end.places, outcome(self.straight / "run")
        self.steps = [number for number, place in enumerate(self.places) if place == "before step"]

    def each(self, trial: Callable[[Case], int], cases: Iterable[Case]) -> int:
        """Make a trial of each case, on all cores; how many harms that were."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return sum(pool.map(trial, cases))

    def place(self, name: str, after_step: int) -> int:
        """The first place of this name behind a step."""
        return self.places.index(name, self.steps[after_step - 1] + 1)

    def folder(self) -> Path:
        """A new empty folder to run in."""
        folder = self.home / f"trial_{next(self.numbers)}"
        folder.mkdir()
        return folder

    def stopped(self, step: int = 5) -> Path:
        """The folder of a run that was interrupted behind a step, so that it has two states and a best model."""
        folder = self.folder()
        end = run_train(folder, *OPTIONS, harm="interrupted", at=self.steps[step])
        assert end.status == 130, end.said
        return folder

    def words(self, folder: Path) -> tuple[str, ...]:
        """What one types to go on with the run in a folder, or to begin it if it was killed before it could save."""
        return ("resume=run",) if has_state(folder / "run") else OPTIONS

    def goes_on(self, folder: Path, harm: str, lost: str = "") -> None:
        """The run in a folder ends as if nothing had been done to it, but for what cannot be had again."""
        end = run_train(folder, *self.words(folder))
        assert end.status == 0 or has_ended(folder / "run"), f"{harm}: {end.said}"  # then it only had no time to say so
        assert "Traceback" not in end.said, f"{harm}: {end.said}"
        found = outcome(folder / "run")
        keys = (found.keys() | self.expected.keys()) - {lost}
        different = [key for key in keys if found.get(key) != self.expected.get(key)]
        assert not different, f"{harm}: {', '.join(different)} differ from the unbroken run's"
        assert not list((folder / "run").glob(".*")), f"{harm}: something was left behind"
        shutil.rmtree(folder)

    def killed(self, place: int) -> int:
        """SIGKILL at a place."""
        folder = self.folder()
        end = run_train(folder, *OPTIONS, harm="killed", at=place)
        assert end.status == -signal.SIGKILL, end.said
        whole(folder / "run")
        self.goes_on(folder, f"killed {self.places[place]}, place {place}")
        return 1

    def killed_again_and_again(self, places: list[int]) -> int:
        """SIGKILL at a place, then at another while the run goes on and clears up after the kill before, and so forth."""
        folder, kills = self.folder(), 0
        for place in places:
            end = run_train(folder, *self.words(folder), harm="killed", at=place)
            whole(folder / "run")
            if end.status != -signal.SIGKILL:
                break
            kills += 1
        self.goes_on(folder, f"killed at places {places[: kills + 1]}")
        return kills

    def interrupted(self, place: int) -> int:
        """SIGINT at a place."""
        return self._signalled(place, "interrupted", 130)

    def terminated(self, place: int) -> int:
        """SIGTERM at a place."""
        return self._signalled(place, "terminated", 143)

    def _signalled(self, place: int, harm: str, status: int) -> int:
        """It saves, says the command that goes on, and that command goes on."""
        folder, name = self.folder(), f"{harm} {self.places[place]}, place {place}"
        end = run_train(folder, *OPTIONS, harm=harm, at=place)
        assert "Traceback" not in end.said, f"{name}: {end.said}"
        if "_locked" in self.places[place]:  # while the process starts, a signal ends it at once
            assert end.status in (status, 128 - status), f"{name}: {end.status}, {end.said}"
        elif end.status != 0:  # else it came when there was nothing left to stop
            assert end.status == status, f"{name}: {end.status}, {end.said}"
            step = self.places[: place + 1].count("before step")  # a step that has begun is ended
            assert checkpoints.load(folder / "run" / "last.pt")["step"] == step, name
            assert f"saved after step {step}. Go on with: python train.py resume=run" in end.said, name
        self.goes_on(folder, name)
        return 1

    def spoilt(self, case: tuple[str, str, int]) -> int:
        """A file of a run that was stopped behind a step, spoilt in some way."""
        name, way, step = case
        folder = self.stopped(step)
        SPOIL[way](folder / "run" / name, random.Random(str(case)))
        self.goes_on(folder, f"{name}: {way}, step {step}", lost=name)
        return 1

    def states_spoilt(self, way: str) -> int:
        """Without a whole state a run is refused, and nothing of it is touched."""
        folder = self.stopped()
        for name in STATES:
            SPOIL[way](folder / "run" / name, random.Random(way))
        before = {path.name: path.read_bytes() for path in (folder / "run").iterdir() if path.name != "train.log"}
        self.refused(run_train(folder, "resume=run"), way)
        after = {path.name: path.read_bytes() for path in (folder / "run").iterdir() if path.name != "train.log"}
        assert after == before, way
        return 1

    def flipped(self, number: int) -> int:
        """A single bit of a checkpoint, which is always seen."""
        good, spoilt = self.straight / "run" / "last.pt", self.home / f"flipped_{number}.pt"
        shutil.copy(good, spoilt)
        flip_a_bit(spoilt, random.Random(number))
        with contextlib.suppress(checkpoints.Damaged):
            checkpoints.load(spoilt)
            raise AssertionError(f"flipped bit {number} was not seen")
        spoilt.unlink()
        return 1

    def file_size_limited(self, limit: int) -> int:
        """No file may grow above a limit, which strikes at some save."""
        folder, harm = self.stopped(), f"no file above {limit} bytes"
        self.refused(run_train(folder, "resume=run", file_size=limit), harm)
        whole(folder / "run")
        self.goes_on(folder, harm)
        return 1

    def disk_filled(self, left: int) -> int:
        """A file system that has so many bytes left; 0 harms where none can be mounted, or where that is enough."""
        with small_disk(self.folder()) as disk:
            if disk is None:
                return 0
            folder, ballast, harm = disk / "trial", disk / "ballast", f"{left} bytes left on the disk"
            shutil.move(self.stopped(), folder)
            with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
            with contextlib.suppress(OSError):
                os.truncate(ballast, max(0, ballast.stat().st_size - left))
            end = run_train(folder, "resume=run")
            if end.status == 0:
                return 0
            self.refused(end, harm)
            whole(folder / "run")
            ballast.unlink()
            self.goes_on(folder, harm)
            return 1

    def folder_removed(self, place: int) -> int:
        """The run folder removed while the run is in it: there is nothing to go on with, but a sentence and no success."""
        end = run_train(self.folder(), *OPTIONS, harm="folder gone", at=place)
        self.refused(end, f"folder gone {self.places[place]}, place {place}")
        return 1

    def without_permission(self, locked: str) -> int:
        """A run folder, or with `.` the one around it, in which one may not write."""
        folder = self.folder()
        if locked == "run":
            shutil.copytree(self.straight / "run", folder / "run")
        before = {path: path.read_bytes() for path in folder.rglob("*.pt")}
        (folder / locked).chmod(0o555)
        try:
            options = ("resume=run", "trainer.max_steps=14") if locked == "run" else OPTIONS
            end = run_train(folder, *options, bound=True)
        finally:
            (folder / locked).chmod(0o755)
        self.refused(end, f"no permission in {locked}")
        assert "Permission denied" in end.said, end.said
        assert before == {path: path.read_bytes() for path in folder.rglob("*.pt")}
        return 1

    def refused(self, end: End, harm: str) -> None:
        """The process ended in a sentence with a path in it."""
        assert end.status == 2, f"{harm}: {end.status}, {end.said}"
        assert "Traceback" not in end.said, f"{harm}: {end.said}"
        assert "run" in end.said.splitlines()[-1], f"{harm}, but no path in: {end.said}"


def flip_a_bit(path: Path, chance: random.Random) -> None:
    raw = bytearray(path.read_bytes())
    raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
    path.write_bytes(raw)


def zero_a_block(path: Path, chance: random.Random) -> None:
    raw = path.read_bytes()
    while (spoilt := _with_zeros(raw, chance.randrange(len(raw)))) == raw:
        pass  # this block was one of zeros before
    path.write_bytes(spoilt)


def _with_zeros(raw: bytes, first: int) -> bytes:
    block = raw[first : first + 512]
    return raw[:first] + bytes(len(block)) + raw[first + 512 :]


SPOIL: dict[str, Callable[[Path, random.Random], object]] = {
    "one bit": flip_a_bit,
    "a block of zeros": zero_a_block,
    "cut short": lambda path, chance: os.truncate(path, chance.randrange(1, path.stat().st_size)),
    "empty": lambda path, _: os.truncate(path, 0),
    "another file": lambda path, _: path.write_text("To be, or not to be"),
    "gone": lambda path, _: path.unlink(),
}


@contextlib.contextmanager
def small_disk(place: Path) -> Iterator[Path | None]:
    """A file system of three megabytes, or None where this process may not mount one."""
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode != 0:
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)
