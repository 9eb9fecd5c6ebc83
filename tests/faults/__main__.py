"""The long form of the proofs in this folder: every place of a run, and hundreds of random harms.

It ends with an AssertionError at the first harm that costs a run anything.

python -m tests.faults          prints the table of docs/reliability.md, in half an hour on two cores
python -m tests.faults SEED     with other random choices
"""

import itertools
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

from configs.command_line import run_script
from tests.faults.long_runs import random_kills, soak
from tests.faults.proof import SPOIL, Proof
from training.folders import FILES


def main(arguments: list[str]) -> None:
    seed = int(arguments[0]) if arguments else 1
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        for folder in ("trials", "random", "soak"):
            (home / folder).mkdir()
        proof = Proof(home / "trials")
        every = range(len(proof.places))
        chains = [chance.sample(every, 6) for _ in range(30)]
        spoilt = list(itertools.product(FILES, SPOIL, (4, 5, 7)))
        sizes = [chance.randrange(1, 150_000) for _ in range(40)]
        rooms = [chance.randrange(0, 500_000) for _ in range(40)]
        proofs: dict[str, Callable[[], int]] = {
            "SIGKILL at every place of a run": lambda: proof.each(proof.killed, every),
            "SIGKILL upon SIGKILL, while the run goes on": lambda: proof.each(proof.killed_again_and_again, chains),
            "SIGKILL at random moments of a run that saves at each step": lambda: random_kills(home / "random", 40, 1500, seed),
            "SIGINT at every place": lambda: proof.each(proof.interrupted, every),
            "SIGTERM at every fifth place": lambda: proof.each(proof.terminated, every[::5]),
            "a file of a run spoilt, each in six ways after three steps": lambda: proof.each(proof.spoilt, spoilt),
            "both states of a run spoilt (refused, nothing touched)": lambda: proof.each(proof.states_spoilt, SPOIL),
            "a single bit of a checkpoint flipped (seen)": lambda: sum(map(proof.flipped, range(20_000))),
            "a limit on the size of files": lambda: proof.each(proof.file_size_limited, sizes),
            "a full disk": lambda: proof.each(proof.disk_filled, rooms),
            "the run folder removed (said; there is nothing left)": lambda: proof.each(proof.folder_removed, every[::10]),
            "a folder without permission": lambda: proof.each(proof.without_permission, ("run", ".")),
        }  # fmt: skip
        print("| harm | times |\n|---|--:|", flush=True)
        for name, prove in proofs.items():
            print(f"| {name} | {prove():,} |", flush=True)
        memory, files = soak(home / "soak", 20_000)
        print(f"\nA run of 20,000 steps: {100 * (memory - 1):+.2f} % memory, {files:+d} open files at its end.")


if __name__ == "__main__":
    run_script(main, __doc__)
