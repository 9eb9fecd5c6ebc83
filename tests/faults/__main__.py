"""The long form of the proofs in this folder: every place of a run, and hundreds of random harms. Takes about an hour.

python -m tests.faults          prints the table of docs/reliability.md
python -m tests.faults SEED     with other random choices
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

from configs.command_line import run_script
from tests.faults.long_runs import random_kills, soak
from tests.faults.proof import Proof


def main(arguments: list[str]) -> None:
    seed = int(arguments[0]) if arguments else 1
    with tempfile.TemporaryDirectory() as home:
        proof = Proof(Path(home), seed)
        every = list(range(len(proof.places)))
        (Path(home) / "random").mkdir()
        proofs: dict[str, Callable[[], int]] = {
            "SIGKILL at random moments of a real run that saves at each step": lambda: random_kills(
                Path(home) / "random", 40, 1500, seed
            ),
            "SIGKILL at every place of a run": lambda: proof.kills(every),
            "SIGKILL upon SIGKILL, while the run goes on": lambda: proof.chains(30),
            "SIGINT at every place": lambda: proof.interruptions(every, "interrupted"),
            "SIGTERM at every fifth place": lambda: proof.interruptions(every[::5], "terminated"),
            "files of a run spoilt, one at a time": lambda: proof.corruptions(150),
            "both states of a run spoilt: refused, nothing touched": lambda: proof.both_states_gone(6),
            "single bits flipped in a checkpoint: seen": lambda: proof.flips(20_000),
            "limits on the size of files": lambda: proof.file_size_limits(40),
            "full disks": lambda: proof.full_disks(40),
            "the run folder removed": lambda: proof.vanished_folders(every[::10]),
            "folders without permission": proof.no_permission,
        }
        print("| harm | times | bytes lost |\n|---|--:|--:|", flush=True)
        for name, prove in proofs.items():
            print(f"| {name} | {prove():,} | none |", flush=True)
        (Path(home) / "soak").mkdir()
        memory, files = soak(Path(home) / "soak", 20_000)
        print(f"\nAfter 20,000 steps: {100 * (memory - 1):+.2f} % memory, {files:+d} open files.")


if __name__ == "__main__":
    run_script(main, __doc__)
