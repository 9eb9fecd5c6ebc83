"""Runs as people start them, over many steps: killed at random moments, or watched for what they take."""

import contextlib
import random
import re
import signal
import subprocess
from pathlib import Path

from tests.faults.outcome import outcome, whole
from tests.faults.proof import OPTIONS
from tests.scripts import start
from training.folders import has_state
from training.resuming import has_ended


def random_kills(home: Path, number: int, steps: int, seed: int) -> int:
    """A run that saves at every step, started as people start it, killed at random moments until it has been so often."""
    options = (*OPTIONS[:-1], f"trainer.max_steps={steps}", "trainer.eval_interval=25", "trainer.save_interval=1")
    straight = start("train.py", *options, "hydra.run.dir=straight", cwd=home)
    said = straight.communicate()[1]
    assert straight.returncode == 0, said
    chance, kills, begun = random.Random(seed), 0, False
    while True:
        arguments = ("resume=run",) if begun else (*options, "hydra.run.dir=run")
        process = start("train.py", *arguments, cwd=home)
        if kills < number:
            with contextlib.suppress(subprocess.TimeoutExpired):
                if chance.random() < 0.8:  # let it train first: most of its time is saving then
                    wait_for_words(process, "going on after" if begun else "before training")
                process.wait(chance.uniform(0.0, 1.0))
            process.kill()
        assert process.stderr is not None
        said = process.stderr.read()  # not communicate, which would leave out what has been read ahead
        process.wait()
        assert "Traceback" not in said, said
        begun = has_state(home / "run")
        whole(home / "run")
        if process.returncode == 0 or has_ended(home / "run"):
            assert outcome(home / "run") == outcome(home / "straight")
            return kills
        assert process.returncode == -signal.SIGKILL, said
        kills += 1


def soak(home: Path, steps: int) -> tuple[float, int]:
    """A long run with everything on: how many times the memory of its second fifth its last fifth takes at most, and how
    many more files are open then. Linux only: it is read from /proc."""
    options = (
        *OPTIONS[:-1],
        f"trainer.max_steps={steps}",
        "trainer.eval_interval=100",
        "trainer.save_interval=50",
        "data.characters=5000",
    )
    process = start("train.py", *options, "hydra.run.dir=run", cwd=home)
    place, memory, files = Path("/proc") / str(process.pid), dict[int, list[int]](), dict[int, list[int]]()
    assert process.stderr is not None
    for line in process.stderr:  # a line for each evaluation
        if (found := re.match(r"step (\d+):", line)) and int(found[1]) < steps:
            fifth = 5 * int(found[1]) // steps
            resident = re.search(r"VmRSS:\s+(\d+)", (place / "status").read_text())
            assert resident is not None
            memory.setdefault(fifth, []).append(int(resident[1]))
            files.setdefault(fifth, []).append(len(list((place / "fd").iterdir())))
    process.communicate()
    assert process.returncode == 0
    return max(memory[4]) / max(memory[1]), max(files[4]) - max(files[1])


def wait_for_words(process: "subprocess.Popen[str]", words: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return
