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


FILES, CHECKPOINT, RUN = "training/files.py", "training/checkpoint.py", "training/run.py"
KILL = "tests/faults/test_faults.py::test_a_kill_costs_nothing"
SIGNAL = "tests/faults/test_faults.py::test_a_signal_saves_and_the_run_goes_on"
RESUMED = "tests/test_train.py::test_a_resumed_run_has_the_bits_of_the_unbroken_one"
# fmt: off
GUARDS = [
    Guard("a file of its own, renamed when it is whole", FILES, "temporary, spare = _beside(path), None", "temporary, spare = path, None", KILL),
    Guard("fsync before the renaming", FILES, "os.fsync(file.fileno())", "pass", "tests/test_files.py::test_whatever_fails_is_named_and_leaves_what_was_there"),
    Guard("fsync of the folder", FILES, "os.fsync(folder)", "pass", "tests/test_files.py::test_a_new_name_is_on_the_disk_too"),
    Guard("the state before", RUN, ", previous=self.folder / PREVIOUS)", ")", "tests/test_run.py::test_the_state_before_is_kept"),
    Guard("the damaged state out of the way", RUN, 'os.replace(last, first_free(last.with_name(f"{LAST}.damaged")))', "pass",
          "tests/test_run.py::test_a_damaged_state_makes_way_for_the_one_before_and_never_takes_its_place"),
    Guard("falling back on the state before", "training/resuming.py", "return _run_from(folder, PREVIOUS, config, overrides)", "raise damage",
          "tests/faults/test_faults.py::test_a_spoilt_file_costs_nothing"),
    Guard("the checksum", CHECKPOINT, "if raw[-_SEAL_LENGTH:] != _seal_of(memoryview(raw)[:-_SEAL_LENGTH]):", "if False:",
          "tests/faults/test_faults.py::test_every_flipped_bit_is_seen"),
    Guard("the safe loader", CHECKPOINT, "weights_only=True)", "weights_only=False)",
          "tests/test_checkpoint.py::test_what_is_no_checkpoint_is_refused_and_runs_nothing"),
    Guard("the optimizer's memory looked at", CHECKPOINT, "if value.dim() and (", "if False and (",
          "tests/test_checkpoint.py::test_a_memory_of_the_optimizer_that_does_not_belong_is_refused"),
    Guard("too little memory is no damage", CHECKPOINT, "if is_memory_shortage(error):", "if False:",
          "tests/test_run.py::test_too_little_memory_is_no_damage"),
    Guard("the best model written again", CHECKPOINT, 'if state["step"] == state["best"]["step"] == step:', "if False:",
          "tests/test_run.py::test_a_lost_best_model_is_written_again_from_a_state_of_its_step"),
    Guard("a best model ahead of the state kept", RUN, 'self.best = found["best"]', "pass",
          "tests/test_run.py::test_a_best_model_ahead_of_the_state_is_not_replaced_by_a_worse_one"),
    Guard("the best model of another run known", RUN, 'if found["run"] != self.name:', "if False:",
          "tests/test_run.py::test_the_best_model_of_another_run_is_not_taken_for_the_runs_own"),
    Guard("options given on resuming saved at once", RUN, "if not self.same_as_saved:", "if self.resumed_from is None:",
          "tests/test_run.py::test_options_given_on_resuming_outlive_a_kill"),
    Guard("random numbers where they were", RUN, 'checkpoints.restore_random_state(saved["random"], self.setup.device)', "pass", RESUMED),
    Guard("the optimizer's memory", CHECKPOINT, 'optimizer.load_state_dict({"state": state,', 'optimizer.load_state_dict({"state": {},', RESUMED),
    Guard("no random number for building a model", CHECKPOINT, "with torch.random.fork_rng(devices=[]):", "if True:",
          "tests/test_checkpoint.py::test_a_model_comes_back_without_a_random_number_of_training"),
    Guard("points written before the state", RUN, "self.tracker.flush()  # first", "pass  # first",
          "tests/test_run.py::test_points_are_written_before_the_state_that_will_not_draw_them_again"),
    Guard("points of a step drawn again", RUN, "self.tracker.scalars(self.points, self.step)\n", "pass\n", SIGNAL),
    Guard("points behind the state taken back", "training/tracking.py", ", purge_step=step)", ")", KILL),
    Guard("samples behind the state taken back", RUN, "cut_short(self.folder / SAMPLES, self.samples_length)", "pass", KILL),
    Guard("an evaluation that was cut short made up for", RUN, 'self.latest = saved["run"], saved["step"], saved["best"], saved["latest"]',
          'self.latest = saved["run"], saved["step"], saved["best"], {**saved["latest"], "evaluated": saved["step"]}', SIGNAL),
    Guard("saving on a signal", "train.py", "            if stopping:\n                run.save()", "            if stopping:", SIGNAL),
    Guard("a signal ends an evaluation", "train.py", "between=lambda _: run.leave_if_stopped(stop)", "between=lambda _: None",
          "tests/test_train.py::test_a_signal_does_not_wait_for_an_evaluation"),
    Guard("strays removed", RUN, "remove_strays(self.folder, FILES)", "pass", "tests/test_run.py::test_what_was_shown_from_its_step_on_is_taken_back"),
    Guard("what is there given up last", RUN, "        remove_strays(self.folder, FILES)\n", "        (self.folder / SUMMARY).unlink(missing_ok=True)\n",
          "tests/test_run.py::test_a_resumption_that_cannot_write_leaves_what_was_there"),
    Guard("the lock", FILES, "fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)", "pass", "tests/test_files.py::test_a_folder_is_held_by_one"),
    Guard("another folder in its place", FILES, "if not folder.is_dir() or not os.path.samestat(place, os.stat(folder)):", "if False:",
          "tests/test_files.py::test_a_run_does_not_write_into_another_folder_in_its_place"),
    Guard("folders with a run left alone", RUN, "if reason := holds_a_run(self.folder):", "if reason := \"\":",
          "tests/test_command_line.py::test_a_folder_that_holds_a_run_is_not_used_again"),
    Guard("another text refused", "training/resuming.py", '    if before["sha256"] == now["sha256"] and', "    if True or",
          "tests/test_resuming.py::test_another_text_is_refused_with_every_difference"),
    Guard("the first loss that is no number named", "training/losses.py", "if not math.isfinite(loss + grad_norm):", "if False:",
          "tests/test_train.py::test_the_first_loss_that_is_no_number_is_named_and_nothing_after_it_is_saved"),
    Guard("losses read before a save", RUN, "        self.read_losses()\n        if not self.leads", "        if not self.leads",
          "tests/test_train.py::test_the_first_loss_that_is_no_number_is_named_and_nothing_after_it_is_saved"),
    Guard("only a sound loss in a file", RUN, "if not math.isfinite(nats):", "if False:",
          "tests/test_train.py::test_a_loss_that_is_no_number_never_reaches_a_file"),
    Guard("only finite weights in a file", RUN, "if not checkpoints.has_finite_weights(self.model):", "if False:",
          "tests/test_run.py::test_a_weight_that_no_evaluation_needs_must_be_finite_too"),
    Guard("evaluation without dropout", "training/evaluation.py", "    with evaluating(model):", "    if True:",
          "tests/test_evaluation.py::test_twice_is_the_same_and_training_is_not_disturbed"),
    Guard("log lines that find no place", "training/tracking.py", "def handleError(", "def handle_error(",
          "tests/faults/test_faults.py::test_a_limit_on_the_size_of_files_costs_nothing"),
    Guard("the file named in what the system says", "training/tracking.py", "raise UserError(f\"cannot write {self.folder}/events.*: {error.strerror or error}\") from error", "raise",
          "tests/faults/test_faults.py::test_a_full_disk_costs_nothing"),
]
# fmt: on


def main(arguments: list[str]) -> None:
    wanted = [guard for guard in GUARDS if all(word in guard.name for word in arguments)]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "runs", "__pycache__", "cache"))
        with_all = tested(copy, *sorted({guard.test for guard in wanted}))
        assert with_all.returncode == 0, f"with all guards in place, tests fail: {with_all.stdout}"
        for guard in wanted:
            path = copy / guard.file
            source = path.read_text(encoding="utf-8")
            assert source.count(guard.words) == 1, (
                f"{guard.name}: {guard.words!r} is {source.count(guard.words)} times there"
            )
            path.write_text(source.replace(guard.words, guard.instead), encoding="utf-8")
            result = tested(copy, guard.test)
            path.write_text(source, encoding="utf-8")
            missed = result.returncode == 1 and " failed" in result.stdout.splitlines()[-1]
            print(f"{'missed' if missed else 'NOT MISSED'}: {guard.name} ({guard.test.split('::')[-1]})", flush=True)
            if not missed:
                raise SystemExit(result.stdout)


def tested(folder: Path, *tests: str) -> "subprocess.CompletedProcess[str]":
    """Run tests in a copy of the project, up to the first that fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True)


if __name__ == "__main__":
    run_script(main, __doc__)
