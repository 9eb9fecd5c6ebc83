"""The command line as people type it: help at once, presets that run, sweeps, and folders that belong to one run."""

import datetime
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from configs.checks import problems
from configs.command_line import CONFIGS, CommandLine, _new_folder
from configs.overrides import yaml_groups
from configs.schema import EvaluateConfig, SampleConfig, TrainConfig, options
from tests.scripts import ROOT, SMALL, environment, refused, script, start


@pytest.mark.parametrize(
    ("name", "schema"), [("train", TrainConfig), ("sample", SampleConfig), ("evaluate", EvaluateConfig)]
)
def test_help_names_commands_groups_and_every_option(tmp_path: Path, name: str, schema: type) -> None:
    result = script(f"{name}.py", "--help", cwd=tmp_path)
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert f"python {name}.py" in "\n".join(lines[:6])
    for key, metadata in options(schema).items():
        (line,) = [line for line in lines if line.strip().startswith(f"{key}=")]
        assert metadata["help"] in line
    if name == "train":
        for group, choices in yaml_groups(CONFIGS).items():
            assert f"  {group}: {', '.join(choices)}" in " ".join("\n".join(lines).split("\n      "))
    assert max(map(len, lines)) <= 130


QUICK = {
    "help": ["--help"],
    "a display": ["--cfg", "job"],
    "a display with options": ["--cfg", "job", "model=head", "data.path=a b=c.txt"],
    "completion": ["-sc", "query=bash"],
    "a refusal": ["learning_rat=1"],
}


@pytest.mark.parametrize("what", QUICK)
def test_answers_need_no_torch_and_write_nothing(tmp_path: Path, what: str) -> None:
    program = (
        "import atexit, os, runpy, sys; sys.path.insert(0, os.path.dirname(sys.argv[1])); sys.argv = sys.argv[1:];"
        "atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr));"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    command = [sys.executable, "-c", program, str(ROOT / "train.py"), *QUICK[what]]
    env = environment(COMP_LINE="train.py model.block", COMP_POINT="20")
    result = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == (2 if what == "a refusal" else 0), result.stderr
    assert result.stderr.splitlines()[-1] == "False"
    assert not list(tmp_path.iterdir())
    if what == "completion":
        assert "model.block_size=" in result.stdout


def test_a_display_is_what_would_run(tmp_path: Path) -> None:
    result = script("train.py", "--cfg", "job", "model=head", "data.path=a b=c.txt", "seed=3", cwd=tmp_path)
    shown = OmegaConf.create(result.stdout)
    assert (shown.model.name, shown.data.path, shown.seed) == ("head", "a b=c.txt", 3)


def test_all_problems_come_at_once_without_a_traceback(tmp_path: Path) -> None:
    wrong = [
        "learning_rat=1",
        "trainer.max_steps=1.5",
        "trainer.batch_size=0",
        "model=gpt2",
        "--lr=3",
        "model.dropout=2",
        "x y",
    ]
    result = script("train.py", *wrong, "model.n_layer=1", cwd=tmp_path)
    refused(result, *(argument.split("=")[0] for argument in wrong))
    assert len(result.stderr.splitlines()) == len(wrong)
    assert not list(tmp_path.iterdir())


def test_a_flag_that_does_not_exist_is_translated(tmp_path: Path) -> None:
    refused(script("train.py", "--batch_size=32", cwd=tmp_path), "without dashes; did you mean trainer.batch_size?")


PRESETS = [f"{group}={choice}" for group in ("model", "experiment", "debug") for choice in yaml_groups(CONFIGS)[group]]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_sound(preset: str) -> None:
    CommandLine("train", TrainConfig, "")
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = OmegaConf.to_object(compose("train", [preset]))
    assert problems(config) == []


def test_every_rung_of_the_ladder_runs_in_one_sweep_and_each_has_its_folder(tmp_path: Path) -> None:
    ladder = "model=bigram,average,head,multihead,gpt"
    small = [option for option in SMALL if "n_layer" not in option]
    result = script("train.py", "-m", *small, "trainer.max_steps=2", ladder, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    (sweep,) = (tmp_path / "runs").iterdir()
    assert sweep.name.endswith("_sweep")
    jobs = sorted(sweep.glob("[0-9]_*"))
    assert [job.name for job in jobs] == [
        f"{number}_model={model}" for number, model in enumerate(("bigram", "average", "head", "multihead", "gpt"))
    ]
    parameters = [json.loads((job / "summary.json").read_text())["parameters"] for job in jobs]
    assert parameters == sorted(set(parameters))  # five models, each larger than the one before
    for job in jobs:
        assert json.loads((job / "summary.json").read_text())["status"] == "finished"
        assert (job / "train.log").read_text().count("run folder") == 1  # each job logs to its own file alone


def test_a_job_that_fails_does_not_take_the_others_down(tmp_path: Path) -> None:
    options = ("-m", *SMALL, "trainer.max_steps=4", "trainer.eval_interval=1", "optimizer.warmup_steps=0")
    result = script("train.py", *options, "optimizer.lr=1e30,0.001", cwd=tmp_path)
    refused(result, "1 of 2 jobs failed", "job 0 (optimizer.lr=1e+30): ", "not a finite number")
    statuses = [json.loads(path.read_text())["status"] for path in sorted((tmp_path / "runs").glob("*/*/summary.json"))]
    assert statuses == ["diverged", "finished"]


def test_a_sweep_is_checked_before_its_first_job(tmp_path: Path) -> None:
    result = script("train.py", "-m", *SMALL, "trainer.batch_size=4,6", "trainer.grad_accumulation=2,4", cwd=tmp_path)
    refused(result, "trainer.batch_size=6 cannot be cut into trainer.grad_accumulation=4 equal parts")
    assert not list(tmp_path.iterdir())


def test_of_two_runs_in_one_folder_the_second_is_refused(tmp_path: Path) -> None:
    same = (*SMALL, "trainer.max_steps=2", "hydra.run.dir=same")
    processes = [start("train.py", *same, cwd=tmp_path) for _ in range(2)]
    errors = {process.wait(timeout=90): process.communicate()[1] for process in processes}
    assert errors.keys() == {0, 2}
    assert re.search(r"same (holds a run already|is in use by process \d+ on)", errors[2])
    assert (tmp_path / "same" / "train.log").read_text().count("run folder") == 1


def test_jobs_that_would_share_a_folder_do_not_overwrite_each_other(tmp_path: Path) -> None:
    result = script("train.py", "-m", *SMALL, "trainer.max_steps=2", "seed=1,2", "hydra.sweep.subdir=x", cwd=tmp_path)
    refused(result, "1 of 2 jobs failed", "job 1 (seed=2): ", "holds a run already")
    (summary,) = (tmp_path / "runs").glob("*/x/summary.json")
    assert json.loads(summary.read_text())["seed"] == 1


def test_a_folder_that_holds_a_run_is_not_used_again(trained: Path) -> None:
    before = {path.name: path.read_bytes() for path in trained.iterdir()}
    result = script("train.py", *SMALL, f"hydra.run.dir={trained}", cwd=trained.parents[1])
    refused(result, "holds a run already", f"resume=runs/{trained.name}")
    assert {path.name: path.read_bytes() for path in trained.iterdir()} == before


def test_a_run_in_the_second_of_another_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    now = datetime.datetime.now()
    for second in range(30):
        name = f"{now + datetime.timedelta(seconds=second):%Y-%m-%d_%H-%M-%S}_gpt_playlet"
        (tmp_path / "runs" / name).mkdir(parents=True)
    assert script("train.py", *SMALL, "trainer.max_steps=1", cwd=tmp_path).returncode == 0
    (log,) = (tmp_path / "runs").glob("*/train.log")
    assert log.parent.name.endswith("_gpt_playlet_2")


def test_help_shows_the_defaults_as_one_would_type_them(tmp_path: Path) -> None:
    shown = script("train.py", "--help", cwd=tmp_path).stdout
    for default in (
        "dropout=0.0 ",
        "grad_clip=1.0 ",
        "grad_accumulation=1 ",
        "compile=false ",
        "bigram=true ",
        "path=null ",
    ):
        assert default in shown


ODD = {
    "hydra.run.dir=${nope}": "Interpolation key 'nope' not found",
    "-m seed=range(0,0)": "the sweep has no jobs",
    "-m hydra.launcher=x": "_target_",
    "-m hydra/launcher=nope": "requirements-sweeps.txt",
    "-m hydra.sweep.subdir=${nope} seed=1": "Interpolation key 'nope' not found",
    "data.urls=[[a]]": "it must be a list of at least one address",
    "trainer.device=tpu": "trainer.device=tpu is no device",
    "data=text data.path=": "data.path is empty: name a file",
    "data=text data.path=windows.txt": "too short",
    "--cfg job -m": "Only one of",
}


@pytest.mark.parametrize("what", ODD)
def test_odd_input_ends_in_a_sentence_and_leaves_nothing(tmp_path: Path, what: str) -> None:
    (tmp_path / "windows.txt").write_bytes(b"a\r\nb")
    refused(script("train.py", *SMALL, *what.split(), cwd=tmp_path), ODD[what])
    assert [path.name for path in tmp_path.iterdir()] == ["windows.txt"]


def test_closed_and_full_streams_do_not_cost_a_run(tmp_path: Path) -> None:
    train = shlex.join([sys.executable, str(ROOT / "train.py"), *SMALL, "trainer.max_steps=2"])
    for name, streams in {"closed": "<&- >&- 2>&-", "full": ">/dev/full 2>/dev/full"}.items():
        command = f"{train} hydra.run.dir={name} {streams}"
        assert subprocess.run(["sh", "-c", command], cwd=tmp_path, env=environment(), check=False).returncode == 0
        assert json.loads((tmp_path / name / "summary.json").read_text())["status"] == "finished"


def test_configurations_that_cannot_be_read_are_said_plainly(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "bad.yaml").write_text("model: [unclosed\n")
    refused(script("train.py", "--config-dir", str(tmp_path), "experiment=bad", cwd=tmp_path), "bad.yaml")
    refused(script("train.py", "--config-dir", "nowhere", cwd=tmp_path), "nowhere is no folder of configurations")
    refused(script("train.py", "--config-name", "sample", cwd=tmp_path), "another main configuration is not supported")


def test_a_reader_of_the_log_who_leaves_does_not_stop_the_training(tmp_path: Path) -> None:
    process = start("train.py", *SMALL, "hydra.run.dir=run", cwd=tmp_path)
    assert process.stderr is not None
    assert process.stdout is not None
    process.stderr.close()
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "finished"


def test_a_taken_name_gets_a_number(tmp_path: Path) -> None:
    wanted = tmp_path / "runs" / "x"
    assert [_new_folder(wanted).name for _ in range(3)] == ["x", "x_2", "x_3"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file in the way")
    refused(script("train.py", *SMALL, cwd=tmp_path), "runs")


def test_a_local_file_holds_what_only_this_machine_needs(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "default.yaml").write_text("# @package _global_\ntrainer:\n  batch_size: 3\nseed: 1\n")
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nseed: 9\n")
    result = script("train.py", "--config-dir", str(tmp_path), "--cfg", "job", "experiment=mine", cwd=tmp_path)
    shown = OmegaConf.create(result.stdout)
    assert (shown.trainer.batch_size, shown.seed) == (3, 9)


@pytest.mark.parametrize("left", [[], ["train.log"], ["config.yaml", "notes.txt"]])
def test_a_folder_that_was_there_is_left_as_it_was_by_a_refusal(tmp_path: Path, left: list[str]) -> None:
    (tmp_path / "mine").mkdir()
    for name in left:
        (tmp_path / "mine" / name).write_text("precious")
    for wrong in (("data=text", "data.path=none.txt"), ("model.n_embd=300000000",)):
        assert script("train.py", *SMALL, "hydra.run.dir=mine", *wrong, cwd=tmp_path).returncode == 2
        assert {path.name: path.read_text() for path in (tmp_path / "mine").iterdir()} == dict.fromkeys(
            left, "precious"
        )


@pytest.mark.parametrize("name", ["train.py", "evaluate.py", "docs/results_table.py"])
def test_a_help_that_nobody_reads_to_its_end_is_quiet(tmp_path: Path, name: str) -> None:
    command = f"{sys.executable} {ROOT / name} --help | true"
    result = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert result.stderr == ""


def test_a_folder_that_is_gone_is_said(tmp_path: Path) -> None:
    command = f"mkdir gone; cd gone; rmdir ../gone; {sys.executable} {ROOT / 'train.py'}"
    result = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (
        2, "train.py: the folder that you are in does not exist any more: go to one that does\n",
    )  # fmt: skip


def test_a_folder_name_that_hydra_would_interpolate_is_refused(tmp_path: Path) -> None:
    result = script("train.py", *SMALL, "hydra.run.dir='a\\${x}'", cwd=tmp_path)
    refused(result, "a folder with ${ in its name cannot be used; rename it")
