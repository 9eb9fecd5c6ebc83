"""Run folders: where they lie, which is the newest, and which file of one is meant."""

from pathlib import Path

from configs.schema import UserError

RUNS = Path("runs")
STATES = ("last.pt", "previous.pt")  # what a run goes on from: the newest, and the one before


def newest(name: str) -> Path | None:
    """The newest file of this name in the folders of runs, and of the jobs of sweeps, in runs/; None if there is none."""
    found = [*RUNS.glob(f"*/{name}"), *RUNS.glob(f"*/*/{name}")]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def checkpoint_to_read(named: str | None) -> Path:
    """The checkpoint that is meant: a file, a run folder's best.pt, or with None the best.pt of the newest run.

    Raises UserError if there is none.
    """
    if named is not None:
        path = Path(named)
        if not path.exists():
            raise UserError(f"checkpoint={named} does not exist")
        return path / "best.pt" if path.is_dir() else path
    path_of_newest = newest("best.pt")
    if path_of_newest is None:
        raise UserError(
            f"no trained model in {RUNS.absolute()}: train one with python train.py, or name one with checkpoint=FILE"
        )
    return path_of_newest


def folder_to_resume(named: str) -> Path:
    """The folder of the run that is meant: by its name, by a state in it, or `latest`. Raises UserError if there is none."""
    if named == "latest":
        state = newest("last.pt")
        if state is None:
            raise UserError(f"resume=latest: there is no run in {RUNS.absolute()}")
        return state.parent
    path = Path(named)
    folder = path.parent if path.name in STATES else path
    if any((folder / name).is_file() for name in STATES):
        return folder
    if (folder / "config.yaml").is_file():
        raise UserError(f"resume={named}: that run was stopped before it saved anything, so start it again")
    raise UserError(f"resume={named} is neither a run folder with a last.pt in it nor a last.pt")
