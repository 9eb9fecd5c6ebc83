"""Run folders: what lies in them, which is the newest, and which file of one is meant. Imports no torch."""

import os
from pathlib import Path

from configs.schema import UserError
from training.files import LOCK

RUNS = Path("runs")
BEST = "best.pt"  # the best model, to sample from and to share
LAST, PREVIOUS = "last.pt", "previous.pt"  # the state from which a run goes on, and the one saved before it
STATES = (LAST, PREVIOUS)
SUMMARY, SAMPLES, CONFIG, LOG = "summary.json", "samples.txt", "config.yaml", "train.log"
TRACE = "trace.json"  # what the profiler saw, if it was wanted
FILES = (BEST, LAST, PREVIOUS, SUMMARY, SAMPLES, CONFIG, LOG, TRACE)


def has_state(folder: Path) -> bool:
    """Whether there is anything in a folder from which a run can go on."""
    return any((folder / name).exists() for name in STATES)


def refuse_several(folder: Path) -> None:
    """Raises UserError if what is taken for the folder of a run is one of several, such as a sweep's."""
    runs = [path.parent for name in FILES for path in folder.glob(f"*/{name}")]
    if runs and not any((folder / name).exists() for name in FILES):
        raise UserError(f"{folder} is no run folder but has some in it: name one, such as {min(runs)}")


def newest(*names: str) -> Path | None:
    """The newest file with one of these names in the folders of runs, and of the jobs of sweeps, in runs/; None without."""
    found = [path for name in names for level in ("*", "*/*") for path in RUNS.glob(f"{level}/{name}")]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def checkpoint_to_read(named: str | None) -> Path:
    """The checkpoint that is meant: a file, a run folder's best.pt, or with None the best.pt of the newest run.

    Raises UserError if there is none.
    """
    if named is not None:
        if not named:
            raise UserError("checkpoint= is empty: name a file or a run folder, or leave it out")
        path = Path(named)
        if not path.exists():
            raise UserError(f"checkpoint={named} does not exist")
        if path.is_dir() and not (path / BEST).exists():
            refuse_several(path)
            other = f": it has only {path / LAST} yet" if (path / LAST).exists() else ""
            raise UserError(f"checkpoint={named} has no {BEST}{other}")
        return path / BEST if path.is_dir() else path
    found = newest(BEST)
    if found is None:
        raise UserError(
            f"no trained model in {RUNS.absolute()}: train one with python train.py, or name one with checkpoint=FILE"
        )
    return found


def folder_to_resume(named: str) -> Path:
    """The folder of the run that is meant: by its name, by its last.pt, or `latest`. Raises UserError if there is none."""
    if named == "latest":
        state = newest(*STATES)
        if state is None:
            raise UserError(f"resume=latest: there is no run in {RUNS.absolute()}")
        return state.parent
    if not named:
        raise UserError("resume= is empty: name a run folder, or write resume=latest")
    path = Path(named)
    folder = path.parent if path.name == LAST else path
    if path.name == PREVIOUS:
        raise UserError(f"resume={named}: name the run's folder; it goes on from {PREVIOUS} if {LAST} cannot be used")
    if has_state(folder):
        return folder
    if (folder / BEST).exists():
        raise UserError(f"resume={named}: the states of that run are gone; its {BEST} can still be sampled from")
    if (folder / LOG).exists():
        raise UserError(f"resume={named}: that run was stopped before it saved anything, so start it again")
    refuse_several(folder)
    raise UserError(f"resume={named} is neither a run folder with a {LAST} in it nor a {LAST}")


def holds_a_run(folder: Path) -> str:
    """Why a folder cannot be used for a new run, in a sentence with advice; empty if it can."""
    if has_state(folder):
        return f"{folder} holds a run already: choose another folder, or go on with resume={folder}"
    left = [name for name in (BEST, SUMMARY, SAMPLES, CONFIG, TRACE) if (folder / name).exists()]
    return f"{folder} holds {', '.join(left)}, which the run would replace: choose another folder" if left else ""


def refuse_odd_files(folder: Path) -> None:
    """Raises UserError if a name that a run uses stands for something that is no file, such as a folder or a pipe."""
    for name in (*FILES, LOCK):
        if os.path.lexists(folder / name) and not (folder / name).is_file():
            raise UserError(f"{folder / name} is no file: move it away")
