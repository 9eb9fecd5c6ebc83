"""Every command of the README, of docs/attention.md and of docs/speed.md runs, in a short form."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.run import get_args_parser as torchrun_parser

from tests.scripts import ROOT, Result, environment, process, script

README = (ROOT / "README.md").read_text(encoding="utf-8")
GUIDE = "".join(
    (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8") for page in ("attention", "speed", "scaling")
)
BLOCKS = re.findall(r"```sh\n(.*?)```", README + GUIDE, re.DOTALL)
COMMANDS = list(dict.fromkeys(line for block in BLOCKS for line in block.splitlines()))
SHORT = (
    "debug=smoke trainer.max_steps=2 trainer.eval_interval=2 trainer.sample_length=5 trainer.probe= trainer.threads=1"
).split()


def run(command: str, home: Path) -> Result:
    _, name, *arguments = shlex.split(command)
    return script(name, *arguments, cwd=home)


def test_the_first_two_commands_install_what_the_files_pin() -> None:
    assert COMMANDS[0] == "pip install -r requirements.txt && python train.py && python sample.py"
    assert COMMANDS[1] == "pip install -r requirements-test.txt && python -m pytest"
    assert "torch==2.13.0\n" in (ROOT / "requirements.txt").read_text()
    assert "-r requirements.txt\n" in (ROOT / "requirements-test.txt").read_text()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, trained: Path) -> Path:
    """A folder as the README's reader has it: a text, a finished run, a checkpoint copied out of it."""
    home = tmp_path_factory.mktemp("reader")
    for name in ("mine.txt", "scene.txt"):
        (home / name).write_text("It was a dark night, and it was late.\n" * 40)
    (home / "books").mkdir()
    shutil.copy(home / "mine.txt", home / "books")
    shutil.copytree(trained, home / "runs" / "NAME")
    shutil.copy(trained / "best.pt", home / "best.pt")
    return home


@pytest.mark.parametrize("command", [command for command in COMMANDS[2:] if command.startswith("python train.py")])
def test_training_commands(home: Path, command: str) -> None:
    short = ["trainer.sample_length=0"] if "resume=" in command else [*SHORT, "data=playlet", "data.characters=20000"]
    words = [*shlex.split(command), *(word for word in short if word.split("=")[0] + "=" not in command)]
    if "trainer.probe" in command:
        words.append("model.block_size=32")
    if "resume=" in command:  # the run that lies there is over
        words = [word for word in words if "max_steps" not in word] + ["trainer.max_steps=25"]
    if "hydra/" in command:  # a plugin, whose processes are to end with the command
        plugin = re.findall(r"hydra/\w+=(\w+)", command)[0].partition("_")[0]
        pytest.importorskip(plugin, reason=f"no {plugin}: pip install -r requirements-sweeps.txt")
        result = process(*(word.replace("n_trials=20", "n_trials=2") for word in words[1:]), cwd=home)
    else:
        result = run(shlex.join(words), home)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("command", [command for command in COMMANDS[2:] if command.startswith("python sample.py")])
def test_sampling_commands(home: Path, command: str) -> None:
    result = run(command + " on_unknown=drop", home)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("command", [command for command in COMMANDS[2:] if command.startswith("python evaluate.py")])
def test_evaluating_commands(home: Path, command: str) -> None:
    if "split=test" in command:  # which the run that lies there has not
        command += " data.path=mine.txt data.test_fraction=0.1 on_unknown=skip"
    result = run(command, home)
    assert result.returncode == 0, result.stderr


def test_commands_of_several_processes(home: Path) -> None:
    for command in (command for command in COMMANDS if command.startswith("torchrun")):
        typed = torchrun_parser().parse_args(shlex.split(command)[1:])  # test_distributed.py has several for real
        assert typed.nproc_per_node in ("1", "2")
        words = ["python", typed.training_script, *SHORT, "data=playlet", "data.characters=20000"]
        result = run(shlex.join(words + typed.training_script_args), home)
        assert result.returncode == 0, result.stderr


def test_completion() -> None:
    (command,) = [command for command in COMMANDS if command.startswith("eval")]
    line = "train.py model.head"
    script = f"""{command.replace("python train.py", f"{sys.executable} {ROOT / 'train.py'}")}
        complete -p | grep -c hydra"""
    result = subprocess.run(["bash", "-c", script], cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert int(result.stdout) >= 1, result.stderr
    env = environment(COMP_LINE=line, COMP_POINT=str(len(line)))
    query = [sys.executable, "train.py", "-sc", "query=bash"]
    assert "model.head_size=" in subprocess.run(query, cwd=ROOT, env=env, capture_output=True, text=True).stdout


def test_every_command_is_covered() -> None:
    scripts = ("python benchmarks/", "python docs/")  # see test_benchmarks.py and test_docs.py
    covered = ("pip install", "python train.py", "python sample.py", "python evaluate.py", *scripts, "eval", "torchrun")
    assert [command for command in COMMANDS if not command.startswith(covered)] == []


def test_the_head_alone_as_the_readme_shows_it() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["output"].shape == (4, 8, 16)
    assert names["weights"].shape == (4, 8, 8)
    assert torch.equal(names["output"][0, :2], torch.zeros(2, 16))
    assert bool((names["weights"][0, 2:, :2] == 0).all())


def test_every_link_leads_somewhere() -> None:
    for text, folder in ((README, ROOT), (GUIDE, ROOT / "docs")):
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (folder / target).exists(), target
