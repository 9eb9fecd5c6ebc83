"""Every guard taken away once in a copy of the project, to see that a test misses it. Takes about a quarter of an hour.

python -m tests.faults.guards              all of them
python -m tests.faults.guards checksum     those whose name has this word
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from configs.command_line import run_script
from tests.scripts import ROOT, environment


class Guard(NamedTuple):
    """What is taken away: words in a file, what takes their place, and the test that misses them."""

    name: str
    file: str
    words: str
    instead: str
    test: str


GUARDS = [
    Guard(
        "a file of its own, renamed when it is whole",
        "training/files.py",
        'path.with_name(f".{path.name}.tmp")\n    try:',
        "path\n    try:",
        "tests/faults/test_faults.py::test_a_kill_costs_nothing",
    ),
    Guard(
        "fsync before the renaming",
        "training/files.py",
        "os.fsync(file.fileno())",
        "pass",
        "tests/test_files.py::test_whatever_fails_is_named_and_leaves_what_was_there",
    ),
    Guard(
        "the state before",
        "training/run.py",
        ', previous=self.folder / "previous.pt")',
        ")",
        "tests/faults/test_faults.py::test_a_spoilt_file_costs_nothing",
    ),
    Guard(
        "the damaged state out of the way",
        "training/run.py",
        'os.replace(last, last.with_name("last.pt.damaged"))',
        "pass",
        "tests/test_run.py::test_a_damaged_state_makes_way_for_the_one_before_and_never_takes_its_place",
    ),
    Guard(
        "falling back on the state before",
        "train.py",
        "except checkpoints.Damaged as damage:",
        "except ZeroDivisionError as damage:",
        "tests/faults/test_faults.py::test_a_spoilt_file_costs_nothing",
    ),
    Guard(
        "the checksum",
        "training/checkpoint.py",
        "if raw[-_SEAL_LENGTH:] != _seal_of(memoryview(raw)[:-_SEAL_LENGTH]):",
        "if False:",
        "tests/faults/test_faults.py::test_every_flipped_bit_is_seen",
    ),
    Guard(
        "the safe loader",
        "training/checkpoint.py",
        "weights_only=True)",
        "weights_only=False)",
        "tests/test_checkpoint.py::test_what_is_no_checkpoint_is_refused_and_runs_nothing",
    ),
    Guard(
        "the best model written again",
        "training/checkpoint.py",
        'if state["step"] == state["best"]["step"] == step:',
        "if False:",
        "tests/test_run.py::test_a_lost_best_model_is_written_again_from_a_state_of_its_step",
    ),
    Guard(
        "a better best model kept",
        "training/run.py",
        "if evaluation.nats <= self.loss_of_best_file or overfitting:",
        "if True:",
        "tests/test_run.py::test_a_best_model_ahead_of_the_run_is_not_replaced_by_a_worse_one",
    ),
    Guard(
        "random numbers where they were",
        "training/run.py",
        'checkpoints.restore_random_state(saved["random"], self.setup.device)',
        "pass",
        "tests/test_train.py::test_a_resumed_run_has_the_bits_of_the_unbroken_one",
    ),
    Guard(
        "the optimizer's memory",
        "training/checkpoint.py",
        'optimizer.load_state_dict({"state": state,',
        'optimizer.load_state_dict({"state": {},',
        "tests/test_train.py::test_a_resumed_run_has_the_bits_of_the_unbroken_one",
    ),
    Guard(
        "no random number for building a model",
        "training/checkpoint.py",
        "with torch.random.fork_rng(devices=[]):",
        "if True:",
        "tests/test_checkpoint.py::test_a_model_comes_back_without_a_random_number_of_training",
    ),
    Guard(
        "points on the disk before the state",
        "training/run.py",
        "self.tracker.flush()  # first",
        "pass  # first",
        "tests/faults/test_faults.py::test_a_kill_costs_nothing",
    ),
    Guard(
        "points of a step drawn again",
        "training/run.py",
        "self.tracker.scalars(self.points, self.step)\n            if",
        "pass\n            if",
        "tests/faults/test_faults.py::test_a_signal_saves_and_the_run_goes_on",
    ),
    Guard(
        "points behind the state taken back",
        "training/tracking.py",
        ", purge_step=step)",
        ")",
        "tests/faults/test_faults.py::test_a_kill_costs_nothing",
    ),
    Guard(
        "samples behind the state taken back",
        "training/run.py",
        "take_back_samples(self.folder",
        "str(self.folder",
        "tests/faults/test_faults.py::test_a_kill_costs_nothing",
    ),
    Guard(
        "an evaluation that was cut short made up for",
        "training/run.py",
        'self.latest = saved["step"], saved["best"], saved["latest"]',
        'self.latest = saved["step"], saved["best"], {**saved["latest"], "evaluated": saved["step"]}',
        "tests/faults/test_faults.py::test_a_signal_saves_and_the_run_goes_on",
    ),
    Guard(
        "saving on a signal",
        "train.py",
        "            if stop.received:\n                run.save()",
        "            if stop.received:",
        "tests/faults/test_faults.py::test_a_signal_saves_and_the_run_goes_on",
    ),
    Guard(
        "a signal ends an evaluation",
        "train.py",
        "between=lambda _: stop.check()",
        "between=lambda _: None",
        "tests/test_train.py::test_a_signal_does_not_wait_for_an_evaluation",
    ),
    Guard(
        "strays removed",
        "training/run.py",
        "remove_strays(self.folder)",
        "pass",
        "tests/faults/test_faults.py::test_a_kill_costs_nothing",
    ),
    Guard(
        "the lock",
        "training/files.py",
        "fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "pass",
        "tests/test_files.py::test_a_run_that_is_under_way_cannot_be_resumed_or_overwritten",
    ),
    Guard(
        "folders with a run left alone",
        "training/run.py",
        'raise UserError(f"{self.folder} holds a run already: {advice}")',
        "pass",
        "tests/test_command_line.py::test_a_folder_that_holds_a_run_is_not_used_again",
    ),
    Guard(
        "no step on a loss that is no number",
        "train.py",
        "if not math.isfinite(loss + grad_norm):",
        "if False:",
        "tests/test_train.py::test_a_step_with_a_loss_that_is_no_number_is_not_taken",
    ),
    Guard(
        "only sound weights in a file",
        "training/run.py",
        "if not math.isfinite(nats):",
        "if False:",
        "tests/test_train.py::test_a_loss_that_is_no_number_never_reaches_a_file",
    ),
    Guard(
        "evaluation without dropout",
        "training/evaluation.py",
        "    with evaluating(model):",
        "    if True:",
        "tests/test_train.py::test_what_one_looks_at_does_not_change_what_is_learned",
    ),
    Guard(
        "log lines that find no place",
        "training/tracking.py",
        "def handleError(",
        "def handle_error(",
        "tests/faults/test_faults.py::test_a_limit_on_the_size_of_files_costs_nothing",
    ),
    Guard(
        "the file named in what the system says",
        "training/tracking.py",
        'except OSError as error:\n            raise UserError(f"cannot write {self.folder}',
        'except ZeroDivisionError as error:\n            raise UserError(f"cannot write {self.folder}',
        "tests/faults/test_faults.py::test_a_full_disk_costs_nothing",
    ),
]


def main(arguments: list[str]) -> None:
    kept = []
    for name, file, words, instead, test in GUARDS:
        if not all(word in name for word in arguments):
            continue
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "copy"
            shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "runs", "__pycache__", "cache"))
            source = (copy / file).read_text(encoding="utf-8")
            assert source.count(words) == 1, f"{name}: {words!r} is {source.count(words)} times in {file}"
            (copy / file).write_text(source.replace(words, instead), encoding="utf-8")
            command = [sys.executable, "-m", "pytest", "-q", "-x", test]
            result = subprocess.run(command, cwd=copy, env=environment(), capture_output=True, text=True)
        missed = result.returncode == 1 and " failed" in result.stdout
        print(f"{'missed' if missed else 'NOT MISSED'}: {name} ({test.split('::')[-1]})", flush=True)
        if not missed:
            kept.append(name)
    if kept:
        raise SystemExit(f"no test misses: {', '.join(kept)}")


if __name__ == "__main__":
    run_script(main, __doc__)
