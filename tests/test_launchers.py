"""Sweeps in other processes and by other sweepers, as the plugins of requirements-sweeps.txt run them."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from tests.scripts import ROOT, SMALL, environment, process, refused, script
from training.results import Result, results_in

PLUGINS = {"joblib": "joblib_launcher", "submitit_local": "submitit_launcher", "optuna": "optuna_sweeper"}


def needs(plugin: str) -> pytest.MarkDecorator:
    found = importlib.util.find_spec("hydra_plugins") and importlib.util.find_spec(
        f"hydra_plugins.hydra_{PLUGINS[plugin]}"
    )
    return pytest.mark.skipif(not found, reason=f"no {plugin}: pip install -r requirements-sweeps.txt")


LAUNCHERS = [pytest.param(name, marks=needs(name)) for name in ("joblib", "submitit_local")]


def results(home: Path) -> list[Result]:
    return results_in([home / "sweep"])


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_jobs_in_other_processes(tmp_path: Path, launcher: str) -> None:
    options = ("trainer.max_steps=4", "trainer.eval_interval=2", "optimizer.warmup_steps=0")
    swept = ("optimizer.lr=1e30,0.001", "hydra.sweep.dir=sweep", f"hydra/launcher={launcher}")
    beside = ("trainer.threads=null", "hydra.launcher.n_jobs=2") if launcher == "joblib" else ()
    command = [sys.executable, str(ROOT / "train.py"), "-m", *SMALL, *options, *swept, *beside]
    free = {key: value for key, value in environment().items() if key != "OMP_NUM_THREADS"}
    result = subprocess.run(command, cwd=tmp_path, env=free, capture_output=True, text=True, check=False)
    refused(result, "1 of 2 jobs failed", "job 0 (optimizer.lr=1e+30): the training loss is not a finite number")
    diverged, finished = results(tmp_path)
    assert (diverged.folder, diverged.status) == ("0_lr=1e+30", "diverged")
    assert (finished.folder, finished.status) == ("1_lr=0.001", "finished")
    assert "`1e+30`" in result.stdout
    assert "ERROR the training loss" in (tmp_path / "sweep" / "0_lr=1e+30" / "train.log").read_text()
    log = (tmp_path / "sweep" / "1_lr=0.001" / "train.log").read_text()
    (threads,) = re.findall(r"threads (\d+) \(", log)
    if launcher == "joblib":  # whose jobs share the terminal and the cores
        assert "\n1_lr=0.001: step 4: train " in result.stderr
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        assert int(threads) == max(1, cores // 2)
    alone = ("optimizer.lr=0.001", f"trainer.threads={threads}", "hydra.run.dir=alone")
    assert script("train.py", *SMALL, *options, *alone, cwd=tmp_path).returncode == 0
    assert json.loads((tmp_path / "alone" / "summary.json").read_text())["loss_val"] == finished.summary["loss_val"]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ctrl_c_reaches_the_jobs_in_other_processes(tmp_path: Path, launcher: str) -> None:
    long = ("trainer.max_steps=100000", "trainer.eval_interval=100000", "hydra.sweep.dir=sweep")
    two_at_once = ("hydra.launcher.n_jobs=2", "seed=1,2,3") if launcher == "joblib" else ("seed=1,2",)
    command = [sys.executable, str(ROOT / "train.py"), "-m", *SMALL, *long, *two_at_once, f"hydra/launcher={launcher}"]
    started = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("sweep/?_seed=?/best.pt"))) < 2:
        assert time.monotonic() < deadline
        assert started.poll() is None, started.communicate()
        time.sleep(0.1)
    os.killpg(started.pid, signal.SIGINT)  # as the terminal does: every process in it
    _, errors = started.communicate(timeout=120)
    assert started.returncode == 130, errors
    assert "Traceback" not in errors
    assert [run.status for run in results(tmp_path)] == ["interrupted", "interrupted"], errors
    assert ("1 of 3 jobs not begun:\ntrain.py:     job 2 (seed=3)\n" in errors) == (launcher == "joblib")
    for run in results(tmp_path):
        folder = tmp_path / "sweep" / run.folder
        (step,) = re.findall(r"interrupted: saved after step (\d+)", (folder / "train.log").read_text())
        assert torch.load(folder / "last.pt", weights_only=True)["step"] == int(step)


@needs("optuna")
def test_optuna_looks_for_the_lowest_loss(tmp_path: Path) -> None:
    options = ("trainer.max_steps=4", "trainer.eval_interval=2", "optimizer.warmup_steps=0", "hydra.sweep.dir=sweep")
    search = (
        "hydra/sweeper=optuna",
        "hydra.sweeper.n_trials=3",
        "hydra.sweeper.n_jobs=1",
        "hydra.sweeper.sampler.seed=1",
    )
    result = process(
        "train.py", "-m", *SMALL, *options, *search,
        "optimizer.lr=choice(1e30,0.001)", "model.dropout=interval(0,0.5)", cwd=tmp_path,
    )  # fmt: skip
    trials = results(tmp_path)
    assert len(trials) == 3
    assert {trial.status for trial in trials} == {"diverged", "finished"}, "choose another seed"
    refused(result, "of 3 jobs failed", "job ", "not a finite number")
    best = min((trial for trial in trials if trial.summary), key=lambda trial: trial.summary["loss_val"])
    found = yaml.safe_load((tmp_path / "sweep" / "optimization_results.yaml").read_text())
    assert found["best_value"] == best.summary["loss_val"]
    assert str(found["best_params"]["model.dropout"]) == best.typed["model.dropout"]
    table = result.stdout[result.stdout.index("| optimizer.lr ") :].splitlines()
    assert table[0].startswith("| optimizer.lr | model.dropout |")
    assert len(table) == 7  # names, a rule, three trials, nothing, and where it was saved
    assert re.fullmatch(r"0_lr=\S+,dropout=[\d.e-]{3,9}", trials[0].folder)


def test_what_is_not_installed_is_named(tmp_path: Path) -> None:
    for plugin in ("hydra/launcher=nope", "hydra/sweeper=nope"):
        refused(
            process("train.py", "-m", plugin, "seed=1,2", cwd=tmp_path),
            "nope",
            "pip install -r requirements-sweeps.txt",
        )
    assert not list(tmp_path.iterdir())
