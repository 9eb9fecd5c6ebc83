"""Sweeps with Hydra's own launcher: each job as if alone, failures that stay with their job, and the table at the end."""

import csv
import json
import logging
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from configs.overrides import name_of_changes
from configs.schema import OptimizerConfig, UserError
from configs.sweeping import Job, Record, records_of, run_sweep
from tests.scripts import SMALL, Result, refused, script, start
from training import schedule

TINY = (*SMALL, "model.n_layer=1", "trainer.max_steps=4", "trainer.eval_interval=2", "optimizer.warmup_steps=0")


def sweep(cwd: Path, *options: str) -> Result:
    return script("train.py", "-m", *(option for option in TINY if "n_layer=2" not in option), *options, cwd=cwd)


def the_sweep(home: Path) -> Path:
    (folder,) = (home / "runs").iterdir()
    return folder


NAMES = {
    "head_size=16,seed=2": ["model.head_size=16", "seed=2"],
    "experiment=ladder-3_head": ["experiment=ladder/3_head"],
    "model.name=a,optimizer.name=adamw": ["model.name=a", "optimizer.name=adamw"],
    "lr=0.001235": ["optimizer.lr=0.0012345678901234567"],
    "lr=1e-05": ["optimizer.lr=1e-05"],
    "path=my-été-1.txt": ["data.path='my/été #1.txt'"],
    "probe=What-s-here": ['trainer.probe="What\'s here?"'],
    "probe": ["trainer.probe=''"],
    "patience=null": ["+trainer.patience=null"],
    f"probe={'x' * 31},seed=1": [f"trainer.probe={'x' * 3000}", "seed=1"],
    "path=..-..-etc": ["data.path=../../etc"],
    "urls=a-b": ["data.urls=[a,b]"],
    "": [],
}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_folders_say_what_was_changed(name: str) -> None:
    assert name_of_changes(NAMES[name]) == name


def test_long_names_are_cut_between_characters() -> None:
    name = name_of_changes([f"optimizer.{key}={'é' * 30}" for key in ("a", "b", "c")])
    assert len(name.encode()) <= 90
    assert re.fullmatch(r"a=é+,b=é+", name)


def test_a_sweep_that_is_stopped_on_a_full_disk_ends_in_order(tmp_path: Path) -> None:
    def launch() -> None:
        (tmp_path / ".jobs").mkdir()
        (tmp_path / ".jobs" / "stop").touch()  # what was to stand in it found no room

    assert run_sweep(Job("train"), tmp_path, launch, lambda folder: None) == 130


@pytest.mark.parametrize(
    "spoilt",
    [{"number": "1"}, {"changed": 1}, {"overrides": 3}, {"overrides": [3]}, {"folder": 1}, {"error": {}}, {"more": 1}],
    ids=str,
)
def test_a_damaged_record_is_refused(tmp_path: Path, spoilt: dict[str, Any]) -> None:
    (tmp_path / ".jobs").mkdir()
    record = {"number": 1, "changed": "", "overrides": [], "folder": "1", "status": "ended", "error": None}
    (tmp_path / ".jobs" / "1.json").write_text(json.dumps(record))
    assert records_of(tmp_path) == [Record(1, "", [], "1", "ended")]
    (tmp_path / ".jobs" / "1.json").write_text(json.dumps(record | spoilt))
    with pytest.raises(UserError, match=r"1\.json is damaged"):
        records_of(tmp_path)


def test_a_long_value_is_cut_where_the_sweep_says_what_failed(tmp_path: Path) -> None:
    result = sweep(tmp_path, f"data.path={'x' * 200},{'y' * 200}", "data=text")
    refused(result, f"    job 0 (data.path={'x' * 31}…): ")


def test_a_sweep_that_finds_no_place_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused(sweep(tmp_path, "seed=1,2", "hydra.sweep.dir=file"), "(File exists): choose another with hydra.sweep.dir=")
    refused(
        sweep(tmp_path, "seed=1,2", "hydra.sweep.dir=file/in"),
        "(Not a directory): choose another with hydra.sweep.dir=",
    )
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_sweep_ends_in_a_table_and_a_file(tmp_path: Path) -> None:
    result = sweep(tmp_path, "optimizer.lr=1e30,0.001", "seed=1,2")
    folder = the_sweep(tmp_path)
    refused(
        result, "train.py: 2 of 4 jobs failed:\n", "    job 1 (optimizer.lr=1e+30,seed=2): the training loss is not"
    )
    table = result.stdout[result.stdout.index("| optimizer.lr |") :]
    header, rule, best, worst, _, saved = table.splitlines()
    assert header.split()[:8] == "| optimizer.lr | seeds | nats | std".split()
    assert rule.startswith("| ---")
    lines = list(csv.DictReader((folder / "results.csv").open(encoding="utf-8")))
    names = ["0_lr=1e+30,seed=1", "1_lr=1e+30,seed=2", "2_lr=0.001,seed=1", "3_lr=0.001,seed=2"]
    assert [line["folder"] for line in lines] == names
    assert [line["status"] for line in lines] == ["diverged", "diverged", "finished", "finished"]
    assert "not a finite number" in lines[0]["error"]
    losses = [json.loads((folder / line["folder"] / "summary.json").read_text())["loss_val"] for line in lines[2:]]
    assert [float(line["loss_val"]) for line in lines[2:]] == losses
    assert best.split()[1:6] == ["`0.001`", "|", "2", "|", f"{sum(losses) / 2:.4f}"]
    assert worst.split()[1:] == "`1e+30` | 0 | | | | | | | diverged |".split()
    assert saved == f"Saved in {folder.relative_to(tmp_path)}: results.csv"
    for line in lines[:2]:
        assert " ERROR the training loss is not a finite number" in (folder / line["folder"] / "train.log").read_text()
    shown = script("docs/sweep_table.py", str(folder), cwd=tmp_path)
    assert shown.stdout == f"{table.rpartition('Saved')[0].rstrip()}\n"


def test_a_bug_in_a_job_costs_no_other_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lr_factor = schedule.lr_factor

    def with_a_bug(step: int, max_steps: int, config: OptimizerConfig) -> float:
        return lr_factor(step, max_steps, config) / (config.lr - 0.5)

    monkeypatch.setattr(schedule, "lr_factor", with_a_bug)
    result = sweep(tmp_path, "optimizer.lr=0.5,0.6", "hydra.sweeper.max_batch_size=1")
    refused(result, "1 of 2 jobs failed", "job 0 (optimizer.lr=0.5): ZeroDivisionError: float division by zero")
    logs = [(folder / "train.log").read_text() for folder in sorted(the_sweep(tmp_path).glob("?_*"))]
    assert ["Traceback (most recent call last)" in log for log in logs] == [True, False]
    assert "ERROR Traceback" in logs[0]
    assert "| failed " in result.stdout
    assert "| finished " in result.stdout


def test_what_a_job_is_refused_for_is_in_its_folder(tmp_path: Path) -> None:
    options = ("model.block_size=16,99999", "hydra.sweep.dir=sweep")
    refused(sweep(tmp_path, *options), "1 of 2 jobs failed", "job 1 (model.block_size=99999): ")
    (log,) = (tmp_path / "sweep" / "1_block_size=99999").iterdir()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ERROR .*too short.*\n", log.read_text())
    (_, line) = csv.DictReader((tmp_path / "sweep" / "results.csv").open())
    assert (line["status"], line["model.block_size"]) == ("refused", "99999")
    assert "too short" in line["error"]


def test_each_job_is_as_if_it_were_alone(tmp_path: Path) -> None:
    handlers = list(logging.getLogger().handlers)
    assert sweep(tmp_path, "model.dropout=0.2", "seed=1,2").returncode == 0
    assert logging.getLogger().handlers == handlers
    alone = [option for option in TINY if "n_layer=2" not in option]
    assert (
        script("train.py", *alone, "model.dropout=0.2", "seed=2", "hydra.run.dir=alone", cwd=tmp_path).returncode == 0
    )
    second = torch.load(the_sweep(tmp_path) / "1_seed=2" / "last.pt", weights_only=True)
    by_itself = torch.load(tmp_path / "alone" / "last.pt", weights_only=True)
    assert second["config"] == by_itself["config"]
    assert second["best"]["loss_val"] == by_itself["best"]["loss_val"]
    assert all(torch.equal(weight, by_itself["model"][name]) for name, weight in second["model"].items())


def test_runs_on_different_texts_make_a_file_and_no_table(tmp_path: Path) -> None:
    result = sweep(tmp_path, "data.characters=20000,30000")
    assert result.returncode == 0
    assert "different texts or validation parts, so their losses cannot stand in one table" in result.stderr
    assert "| seeds |" not in result.stdout
    assert len((the_sweep(tmp_path) / "results.csv").read_text().splitlines()) == 3


def test_a_sweep_that_nothing_tells_apart_names_its_folders_by_model_and_text(tmp_path: Path) -> None:
    assert sweep(tmp_path, "seed=3").returncode == 0
    assert [path.name for path in the_sweep(tmp_path).glob("0*")] == ["0_gpt_playlet"]


def test_ctrl_c_ends_a_sweep_in_order(tmp_path: Path) -> None:
    long = ("trainer.max_steps=100000", "trainer.eval_interval=100000", "hydra.sweep.dir=sweep", "seed=1,2,3")
    process = start("train.py", "-m", *SMALL, *long, cwd=tmp_path)
    assert process.stderr is not None
    for line in process.stderr:
        if "before training" in line:
            break
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Go on with: python train.py resume=sweep/0_seed=1" in errors
    assert errors.endswith(
        "train.py: 1 of 3 jobs interrupted:\ntrain.py:     job 0 (seed=1)\n"
        "train.py: 2 of 3 jobs not begun:\ntrain.py:     job 1 (seed=2)\ntrain.py:     job 2 (seed=3)\n"
    )
    assert "Traceback" not in errors
    assert "| interrupted |" in output
    assert [path.name for path in (tmp_path / "sweep").iterdir() if path.is_dir()].count("0_seed=1") == 1
    assert not (tmp_path / "sweep" / "1_seed=2").exists()
    steps = torch.load(tmp_path / "sweep" / "0_seed=1" / "last.pt", weights_only=True)["step"]
    resumed = script("train.py", "resume=sweep/0_seed=1", f"trainer.max_steps={steps + 1}", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr


def test_a_sweep_cannot_go_on_with_a_run(tmp_path: Path) -> None:
    refused(script("train.py", "-m", "resume=run", "seed=1,2", cwd=tmp_path), "leave out -m")
    assert os.listdir(tmp_path) == []
