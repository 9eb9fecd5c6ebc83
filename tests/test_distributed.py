"""Several processes of one run, started by torchrun for real: the same numbers as one, and nothing lost when one dies."""

import json
import os
import signal
import socket
import subprocess
import time
from datetime import timedelta
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.distributed import HashStore  # type: ignore[attr-defined]

from configs.schema import ModelConfig, UserError
from model.language_model import LanguageModel
from tests.scripts import SMALL, Result, ended, refused, script, start, together, wait_for
from training import checkpoint as checkpoints
from training import distributed
from training.distributed import joined

RUN = (*SMALL, "trainer.batch_size=12", "trainer.max_steps=24", "trainer.eval_interval=8", "trainer.log_interval=1")
FIRST_OF_TWO = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
# Long enough to be killed in the middle, with random numbers in every step.
KILLED = (
    *SMALL,
    "trainer.batch_size=12",
    "trainer.max_steps=500",
    "trainer.eval_interval=100",
    "trainer.save_interval=10",
    "model.dropout=0.2",
    "model.n_gram_dropout=0.3",
)


def curves(folder: Path) -> dict[str, dict[int, float]]:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    tags = ("loss/train", "loss/val", "optim/grad_norm")
    return {tag: {point.step: point.value for point in events.Scalars(tag)} for tag in tags}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(checkpoints.load(folder / "last.pt")["model"])


def assert_same_run(found: Path, wanted: Path) -> None:
    for tag, curve in curves(wanted).items():
        assert curves(found)[tag] == pytest.approx(curve, abs=2e-4), tag
    for name, weight in weights(wanted).items():
        torch.testing.assert_close(weights(found)[name], weight, atol=2e-3, rtol=0)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which one process has made the run that several are to make."""
    home = tmp_path_factory.mktemp("alone")
    result = script("train.py", *RUN, "hydra.run.dir=run", cwd=home)
    assert result.returncode == 0, result.stderr
    return home / "run"


def test_two_processes_train_as_one_does_and_one_speaks(alone: Path, tmp_path: Path) -> None:
    result = ended(together(2, *RUN, "hydra.run.dir=run", cwd=tmp_path))
    assert result.returncode == 0, result.stderr
    assert_same_run(tmp_path / "run", alone)
    evaluated = script("evaluate.py", "checkpoint=run", "json=true", cwd=tmp_path)
    assert evaluated.returncode == 0, evaluated.stderr
    best = json.loads((tmp_path / "run" / "summary.json").read_text())["loss_val"]
    assert json.loads(evaluated.stdout)["loss"] == pytest.approx(best, abs=1e-9)
    assert result.stderr.count("before training") == result.stdout.count("Saved in run") == 1
    assert "threads 1 (as asked, in each of 2 processes)" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert sorted(path.name.split(".")[0] for path in (tmp_path / "run").iterdir()) == sorted(
        path.name.split(".")[0] for path in alone.iterdir()
    )


def test_three_processes_that_add_up_parts_train_as_one_does(alone: Path, tmp_path: Path) -> None:
    result = ended(together(3, *RUN, "trainer.grad_accumulation=2", "hydra.run.dir=run", cwd=tmp_path))
    assert result.returncode == 0, result.stderr
    assert_same_run(tmp_path / "run", alone)


def test_two_machines_train_as_one_does(alone: Path, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = ("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=test")
    machines = [together(1, *RUN, "hydra.run.dir=run", cwd=tmp_path, flags=flags) for _ in range(2)]
    for result in map(ended, machines):
        assert result.returncode == 0, result.stderr
    assert_same_run(tmp_path / "run", alone)


def test_two_processes_train_as_one_does_in_half_the_bits_and_by_muon(tmp_path: Path) -> None:
    other = (*RUN, "optimizer=muon", "trainer.precision=float16", "trainer.grad_accumulation=2")
    result = script("train.py", *other, "hydra.run.dir=alone", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    result = ended(together(2, *other, "hydra.run.dir=run", cwd=tmp_path))
    assert result.returncode == 0, result.stderr
    for tag, curve in curves(tmp_path / "alone").items():
        assert curves(tmp_path / "run")[tag] == pytest.approx(curve, abs=5e-3), tag


def test_gloo_adds_up_no_sparse_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its sum of such ones now and then spoils the memory of a process, which ends in the middle of something else.
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        monkeypatch.setattr(distributed, "count", lambda: 2)  # to be taken for one of several
        model = LanguageModel(ModelConfig(n_gram_order=3), 65)
        network = distributed.parallel(model)
        monkeypatch.undo()
        ids = torch.arange(24).view(2, 12) % 65
        with distributed.averaging(network, last=True):
            network(ids).square().mean().backward()
        sparse = {name for name, one in model.named_parameters() if one.grad is not None and one.grad.is_sparse}
        assert len(sparse) == 1
        assert network.parameters_to_ignore == sparse
    finally:
        dist.destroy_process_group()


def test_a_checkpoint_is_read_whatever_the_number_of_processes(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**FIRST_OF_TWO, "WORLD_SIZE": "5", "LOCAL_WORLD_SIZE": "5"}.items():
        monkeypatch.setenv(name, value)
    checkpoints.model_from(checkpoints.load(alone / "best.pt"), alone / "best.pt")


def workers(launcher: "subprocess.Popen[str]") -> list[int]:
    """The processes that torchrun has started, the first first."""
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(launcher.pid)], capture_output=True, text=True)
    return sorted(map(int, children.stdout.split()))


def kill_one_in_the_middle(launcher: "subprocess.Popen[str]", folder: Path, number: int) -> None:
    """Kill a process of a run, as a machine that fails does, once a state after its first steps is saved."""
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline and launcher.poll() is None:
        if (folder / "previous.pt").exists() and checkpoints.load(folder / "last.pt")["step"] >= 20:
            os.kill(workers(launcher)[number], signal.SIGKILL)
            return
        time.sleep(0.05)
    raise AssertionError(f"nothing to kill: {ended(launcher, within=1).stderr}")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that two processes have made, and in which none was killed."""
    home = tmp_path_factory.mktemp("unbroken")
    result = ended(together(2, *KILLED, "hydra.run.dir=run", cwd=home))
    assert result.returncode == 0, result.stderr
    return home / "run"


@pytest.mark.parametrize("number", [0, 1])
def test_after_a_death_a_restart_comes_to_the_same_end(number: int, unbroken: Path, tmp_path: Path) -> None:
    launcher = together(2, *KILLED, cwd=tmp_path, flags=("--standalone", "--max-restarts=1"))
    wait_for(lambda: (tmp_path / "runs").exists())
    (folder,) = (tmp_path / "runs").iterdir()
    kill_one_in_the_middle(launcher, folder, number)
    result = ended(launcher)
    assert result.returncode == 0, result.stderr
    assert "going on after step" in result.stderr
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [folder.name]
    for name, weight in weights(unbroken).items():
        torch.testing.assert_close(weights(folder)[name], weight, atol=0, rtol=0)


def test_a_death_ends_the_run_in_a_sentence_and_one_process_goes_on(tmp_path: Path) -> None:
    launcher = together(2, *KILLED, "hydra.run.dir=run", cwd=tmp_path)
    kill_one_in_the_middle(launcher, tmp_path / "run", number=1)
    result = ended(launcher)
    assert result.returncode != 0
    assert "train.py: another process of this run has ended" in result.stderr
    assert 'train.py", line' not in result.stderr  # a traceback of ours; torchrun adds one of its own
    step = checkpoints.load(tmp_path / "run" / "last.pt")["step"]
    on = script("train.py", "resume=run", f"trainer.max_steps={step + 5}", cwd=tmp_path)
    assert on.returncode == 0, on.stderr
    assert "threads was 1 in each of 2 and is 1" in on.stderr


def test_ctrl_c_saves_once_and_other_numbers_of_processes_go_on(tmp_path: Path) -> None:
    launcher = together(2, *KILLED, "hydra.run.dir=run", cwd=tmp_path)
    wait_for(lambda: (tmp_path / "run" / "previous.pt").exists())
    launcher.send_signal(signal.SIGINT)
    result = ended(launcher)
    assert result.returncode != 0
    for words in ("stopping after this step", "interrupted: saved after step"):
        assert result.stderr.count(words) == 1
    step = checkpoints.load(tmp_path / "run" / "last.pt")["step"]
    on = ended(together(3, "resume=run", f"trainer.max_steps={step + 5}", cwd=tmp_path))
    assert on.returncode == 0, on.stderr
    assert f"going on after step {step}" in on.stderr


def by_hand(tmp_path: Path, *options: tuple[str, ...]) -> list[Result]:
    """Processes as something other than torchrun starts them, each with its options."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    numbers = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(len(options))]
    size = {"WORLD_SIZE": str(len(options)), "LOCAL_WORLD_SIZE": str(len(options))}
    started = [
        start("train.py", *RUN, "hydra.run.dir=run", *own, cwd=tmp_path, **address, **size, **number)
        for own, number in zip(options, numbers, strict=True)
    ]
    return [ended(one, within=60) for one in started]


def test_processes_with_other_options_or_texts_are_refused(tmp_path: Path) -> None:
    first, other = by_hand(tmp_path, ("model.head_size=8",), ("model.head_size=4", "data.characters=19999"))
    refused(first, "need the same options and text", "model.head_size is 4 in process 1 and 8 in process 0", "SHA-256")
    assert other.returncode == 2
    assert other.stderr == ""
    assert not (tmp_path / "run").exists()


def test_what_one_process_alone_cannot_do_is_said(tmp_path: Path) -> None:
    first, _ = by_hand(tmp_path, ("model.head_size=8",), ("model.head_size=8", "data=text", "data.path=gone.txt"))
    refused(first, "process 1: cannot read the text gone.txt: No such file")
    second = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    refused(ended(start("train.py", *RUN, "model.head_size=0", cwd=tmp_path, **second)), "model.head_size=0 is refused")


def test_a_batch_that_cannot_be_shared_is_refused_before_any_work(tmp_path: Path) -> None:
    five = {**FIRST_OF_TWO, "WORLD_SIZE": "5", "LOCAL_WORLD_SIZE": "5"}
    refused(
        script("train.py", *RUN, cwd=tmp_path, **five), "trainer.batch_size=12 cannot be shared equally by 5 processes"
    )
    refused(
        script("train.py", *RUN, "trainer.grad_accumulation=4", cwd=tmp_path, **FIRST_OF_TWO),
        "by 2 processes, each in trainer.grad_accumulation=4",
    )
    refused(script("train.py", *RUN, "-m", "seed=1,2", cwd=tmp_path, **FIRST_OF_TWO), "leave out -m or torchrun")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"WORLD_SIZE": "2"}, "do not say which this is"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "do not say which this is"),
        ({"WORLD_SIZE": "2", "RANK": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}, "do not say which this is"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE=two is no whole number"),
        (FIRST_OF_TWO, "MASTER_ADDR"),
        ({**FIRST_OF_TWO, "TORCHELASTIC_USE_AGENT_STORE": "True"}, "torchrun does not answer"),
    ],
)
def test_a_start_that_cannot_be_is_refused(variables: dict[str, str], words: str, tmp_path: Path) -> None:
    refused(script("train.py", *RUN, cwd=tmp_path, **variables), words)


def test_processes_that_never_come_are_not_waited_for_for_ever() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
    alone = {**FIRST_OF_TWO, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    refusal = pytest.raises(UserError, match="the 2 processes of this run did not find each other")
    with mock.patch.dict(os.environ, alone), refusal, joined(timedelta(seconds=1)):
        pass


def test_a_port_in_use_is_said(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        first = {**FIRST_OF_TWO, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        refused(
            script("train.py", *RUN, cwd=tmp_path, **first), "the 2 processes of this run did not find each other", port
        )
