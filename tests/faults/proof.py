"""Proofs that no harm costs a run anything: after each, it goes on and ends with the very bits of the unbroken one.

Each proof takes the number of trials and returns how many it made. It fails with an AssertionError that says what was done.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.faults.child import End, run_train
from tests.faults.outcome import STATES, outcome, whole
from training import checkpoint as checkpoints
from training.resuming import has_ended

OPTIONS = (
    "debug=smoke", "model.n_layer=1", "model.n_head=2", "model.dropout=0.2", "trainer.threads=1", "trainer.sample_length=20",
    "trainer.max_steps=12", "trainer.eval_interval=4", "trainer.save_interval=3", "trainer.log_interval=1",
    "hydra.run.dir=run",
)  # fmt: skip


class Proof:
    """One unbroken run to compare with, and a fresh folder for each trial below `home`."""

    def __init__(self, home: Path, seed: int) -> None:
        self.home, self.chance = home, random.Random(seed)
        self.straight = home / "straight"
        self.straight.mkdir()
        end = run_train(self.straight, *OPTIONS)
        assert end.status == 0, end.said
        self.places, self.expected = end.places, outcome(self.straight / "run")
        self.trials = 0

    def trial(self) -> Path:
        """A new empty folder to run in."""
        self.trials += 1
        folder = self.home / f"trial_{self.trials}"
        folder.mkdir()
        return folder

    def stopped(self, at_least: int = 5) -> Path:
        """A trial whose run was interrupted behind step `at_least`, so that it has two states and a best model."""
        folder = self.trial()
        steps = [number for number, place in enumerate(self.places) if place == "before step"]
        end = run_train(folder, *OPTIONS, harm="interrupted", at=steps[at_least])
        assert end.status == 130, end.said
        return folder

    def goes_on(self, folder: Path, harm: str) -> None:
        """The run in a folder ends as if nothing had been done to it."""
        whole(folder / "run")
        first = not any((folder / "run" / name).exists() for name in STATES)
        end = run_train(folder, *(OPTIONS if first else ("resume=run",)))
        assert end.status == 0 or has_ended(folder / "run"), f"{harm}: {end.said}"  # then it only had no time to say so
        assert "Traceback" not in end.said, f"{harm}: {end.said}"
        found = outcome(folder / "run")
        different = [key for key, value in self.expected.items() if found[key] != value]
        assert not different, f"{harm}: {', '.join(different)} differ from the unbroken run's"
        assert not list((folder / "run").glob(".*")), f"{harm}: something was left behind"
        shutil.rmtree(folder)

    def kills(self, places: list[int]) -> int:
        """SIGKILL at each of the places."""
        for place in places:
            folder = self.trial()
            end = run_train(folder, *OPTIONS, harm="killed", at=place)
            assert end.status == -signal.SIGKILL, end.said
            self.goes_on(folder, f"killed {self.places[place]}, place {place}")
        return len(places)

    def chains(self, number: int) -> int:
        """Runs that are killed again and again, also while they go on and clean up after the kill before."""
        kills = 0
        for _ in range(number):
            folder, at = self.trial(), []
            for life in range(6):
                at.append(self.chance.randrange(len(self.places) - 20 * life))
                begun = any((folder / "run" / name).exists() for name in STATES)
                end = run_train(folder, *(("resume=run",) if begun else OPTIONS), harm="killed", at=at[-1])
                whole(folder / "run")
                if end.status != -signal.SIGKILL:
                    break
                kills += 1
            self.goes_on(folder, f"killed at places {at}")
        return kills

    def interruptions(self, places: list[int], harm: str) -> int:
        """One signal at each of the places: it saves, says the command that goes on, and that command goes on."""
        status = {"interrupted": 130, "terminated": 143}[harm]
        for place in places:
            folder = self.trial()
            end = run_train(folder, *OPTIONS, harm=harm, at=place)
            name = f"{harm} {self.places[place]}, place {place}"
            assert "Traceback" not in end.said, f"{name}: {end.said}"
            if end.status != 0:  # else it came when there was nothing left to stop
                assert end.status == status, f"{name}: {end.said}"
                if "_locked" not in self.places[place]:  # while the process starts, a signal ends it at once
                    state = checkpoints.load(folder / "run" / "last.pt")
                    assert f"saved after step {state['step']}. Go on with: python train.py resume=run" in end.said, name
            self.goes_on(folder, name)
        return len(places)

    def corruptions(self, number: int) -> int:
        """One file of a stopped run spoilt, each file in every way, then more at random."""
        files = ("last.pt", "previous.pt", "best.pt", "config.yaml", "summary.json", "train.log", "samples.txt")
        wanted = [(name, way) for name in files for way in SPOIL]
        while len(wanted) < number:
            wanted.append((self.chance.choice(files), self.chance.choice(list(SPOIL))))
        if number < len(wanted):
            wanted = self.chance.sample(wanted, number)
        for name, way in wanted:
            folder = self.stopped(self.chance.choice([4, 5, 7, 10]))
            path = folder / "run" / name
            SPOIL[way](path, self.chance)
            if name in (*STATES, "best.pt"):
                os.rename(path, folder / name) if path.exists() else None  # `whole` is for files that nobody spoilt
                whole(folder / "run")
                os.rename(folder / name, path) if (folder / name).exists() else None
            self._goes_on_spoilt(folder, f"{name}: {way}")
        return len(wanted)

    def _goes_on_spoilt(self, folder: Path, harm: str) -> None:
        end = run_train(folder, "resume=run")
        assert end.status == 0, f"{harm}: {end.said}"
        assert "Traceback" not in end.said, f"{harm}: {end.said}"
        found = outcome(folder / "run")
        lost = {"samples.txt"} if "samples.txt" in harm else set()
        different = {key for key, value in self.expected.items() if found[key] != value} - lost
        assert not different, f"{harm}: {', '.join(different)} differ from the unbroken run's"
        shutil.rmtree(folder)

    def both_states_gone(self, number: int) -> int:
        """Without a whole state a run is refused in a sentence for each, and nothing of it is touched."""
        for way in list(SPOIL)[:number]:
            folder = self.stopped()
            for name in STATES:
                SPOIL[way](folder / "run" / name, self.chance)
            before = {path.name: path.read_bytes() for path in (folder / "run").iterdir() if path.name != "train.log"}
            end = run_train(folder, "resume=run")
            assert end.status == 2, f"{way}: {end.said}"
            assert "Traceback" not in end.said, f"{way}: {end.said}"
            after = {path.name: path.read_bytes() for path in (folder / "run").iterdir() if path.name != "train.log"}
            assert after == before, way
            shutil.rmtree(folder)
        return number

    def flips(self, number: int) -> int:
        """Single bits flipped in each kind of file, every one of which is seen."""
        path = self.straight / "run" / "last.pt"
        good, spoilt = path.read_bytes(), self.home / "flipped.pt"
        for _ in range(number):
            spoilt.write_bytes(good)
            SPOIL["one bit"](spoilt, self.chance)
            with contextlib.suppress(checkpoints.Damaged):
                checkpoints.load(spoilt)
                raise AssertionError("a flipped bit was not seen")
        return number

    def file_size_limits(self, number: int) -> int:
        """A limit on the size of files that strikes at some save."""
        largest = max(path.stat().st_size for path in (self.straight / "run").iterdir())
        for limit in [1, 5_000, *(self.chance.randrange(10_000, largest) for _ in range(number - 2))]:
            folder = self.stopped()
            end = run_train(folder, "resume=run", file_size=limit)
            self._refused(end, f"no file above {limit} bytes")
            self.goes_on(folder, f"no file above {limit} bytes")
        return number

    def full_disks(self, number: int) -> int:
        """A file system that has so many bytes left; 0 trials where none can be mounted."""
        trials = 0
        with small_disk(self.home / "disk") as disk:
            if disk is None:
                return 0
            for left in [0, 4096, *(self.chance.randrange(8_000, 900_000) for _ in range(number - 2))]:
                folder = disk / "trial"
                shutil.move(self.stopped(), folder)
                ballast = disk / "ballast"
                with contextlib.suppress(OSError), open(ballast, "wb") as file:
                    while True:
                        file.write(bytes(4096))
                        file.flush()
                with contextlib.suppress(OSError):
                    os.truncate(ballast, max(0, ballast.stat().st_size - left))
                end = run_train(folder, "resume=run")
                if end.status != 0:  # with enough left, nothing happens
                    self._refused(end, f"{left} bytes left on the disk")
                ballast.unlink()
                if end.status != 0:
                    self.goes_on(folder, f"{left} bytes left on the disk")
                else:
                    shutil.rmtree(folder)
                trials += 1
        return trials

    def vanished_folders(self, places: list[int]) -> int:
        """The run folder removed while the run is in it: there is nothing to go on with, but a sentence and no success."""
        for place in places:
            folder = self.trial()
            end = run_train(folder, *OPTIONS, harm="folder gone", at=place)
            self._refused(end, f"folder gone {self.places[place]}, place {place}")
            shutil.rmtree(folder)
        return len(places)

    def no_permission(self) -> int:
        """A run folder, or the one around it, in which one may not write."""
        for locked in ("run", "."):
            folder = self.trial()
            try:
                if locked == "run":
                    shutil.copytree(self.straight / "run", folder / "run")
                before = {path: path.read_bytes() for path in folder.rglob("*.pt")}
                (folder / locked).chmod(0o555)
                options = ("resume=run", "trainer.max_steps=14") if locked == "run" else OPTIONS
                end = run_train(folder, *options, bound=True)
                self._refused(end, f"no permission in {locked}")
                assert "Permission denied" in end.said, end.said
                assert before == {path: path.read_bytes() for path in folder.rglob("*.pt")}
            finally:
                (folder / locked).chmod(0o755)
                shutil.rmtree(folder)
        return 2

    def _refused(self, end: End, harm: str) -> None:
        assert end.status == 2, f"{harm}: {end.status}, {end.said}"
        assert "Traceback" not in end.said, f"{harm}: {end.said}"
        assert "run" in end.said.splitlines()[-1], f"{harm}, but no path in: {end.said}"


def flip_a_bit(path: Path, chance: random.Random) -> None:
    raw = bytearray(path.read_bytes())
    raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
    path.write_bytes(raw)


def zero_a_block(path: Path, chance: random.Random) -> None:
    raw = bytearray(path.read_bytes())
    first = chance.randrange(len(raw))
    raw[first : first + 512] = bytes(len(raw[first : first + 512]))
    raw[0] ^= 255  # a block of zeros may have been one before
    path.write_bytes(raw)


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
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode != 0:
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)
