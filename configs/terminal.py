"""What a terminal can show, and what it is told: errors as one sentence. It imports no torch."""

import io
import os
import sys


def mend_standard_streams() -> None:
    """Where the terminal has no é, let it show a ?; where a stream is closed, let it be one that is empty."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def drop_standard_output() -> None:
    """From here on standard output goes nowhere: its reader has gone, or it cannot take more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def sentence(error: BaseException) -> str:
    """What an error says, without the lines below that are for programmers."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    words = " ".join(str(error).split("\n")[:2]) or type(error).__name__
    if "Could not find 'hydra/" in words:
        words += "(pip install -r requirements-sweeps.txt brings joblib, submitit_local, submitit_slurm and optuna)"
    return words
