"""What a run leaves to look at, looked at: a real TensorBoard server read over HTTP, and a real terminal."""

import contextlib
import fcntl
import io
import json
import os
import pty
import re
import select
import shlex
import socket
import struct
import subprocess
import sys
import termios
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.scripts import ROOT, SMALL, environment, script, start, wait_for

Reader = Callable[..., Any]


@contextlib.contextmanager
def tensorboard(command: str, folder: Path) -> Iterator[Reader]:
    """Run the TensorBoard command that train.py printed, as printed, and read from its server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = [str(Path(sys.executable).parent / "tensorboard"), *shlex.split(command)[1:]]
    process = subprocess.Popen(
        [*program, "--host", "127.0.0.1", "--port", str(port)],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def read(path: str, body: Any = None, **query: str) -> Any:
        url = f"http://127.0.0.1:{port}/data/{path}?{urllib.parse.urlencode(query)}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as response:
            content = response.read()
            return json.loads(content) if response.headers.get_content_type() == "application/json" else content

    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                read("runs")
                break
            except OSError:
                assert time.monotonic() < deadline, "TensorBoard did not start"
                time.sleep(0.2)
        yield read
    finally:
        process.terminate()
        process.wait()


def test_tensorboard_shows_the_run(tmp_path: Path) -> None:
    result = script("train.py", "debug=smoke", "trainer.log_interval=1", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert re.search(r"evaluation beside it: \d+\.\d s\n\n.{500}\n\nSaved in", result.stdout, re.DOTALL)
    (command,) = re.findall(r"Watch: +(tensorboard .*)", result.stdout)
    (folder,) = (tmp_path / "runs").iterdir()
    run = folder.name
    with tensorboard(command, tmp_path) as read:
        wait_for(lambda: read("runs") == [run])  # one run, and no phantom beside it
        tags = set(wait_for(lambda: read("plugin/scalars/tags").get(run)))
        assert tags >= {
            "loss/train", "loss/val", "loss/floor", "bits_per_char/val", "optim/lr", "optim/grad_norm", "speed/chars_per_s",
        }  # fmt: skip
        curve = read("plugin/scalars/scalars", run=run, tag="loss/train")
        assert [step for _, step, _ in curve] == list(range(1, 21))
        curve = read("plugin/scalars/scalars", run=run, tag="loss/val")
        assert [step for _, step, _ in curve] == [0, 10, 20]
        summary = json.loads((folder / "summary.json").read_text())
        assert min(value for _, _, value in curve) == pytest.approx(summary["loss_val"], abs=1e-5)

        tags = read("plugin/text/tags")[run]
        assert set(tags) >= {"config/text_summary", "sample/text/text_summary"}
        (config,) = read("plugin/text/text", run=run, tag="config/text_summary")
        assert "block_size: 16" in config["text"]
        assert "<pre>" in config["text"]
        samples = read("plugin/text/text", run=run, tag="sample/text/text_summary")
        assert [sample["step"] for sample in samples] == [0, 10, 20]

        images = read("plugin/images/tags")[run]
        assert set(images) == {
            f"attention/layer_{layer}_head_{head}" for layer in range(1, 3) for head in range(1, 5)
        } | {"loss_by_position/val"}
        shown = read("plugin/images/images", run=run, tag="attention/layer_2_head_1", sample=0)
        assert [image["step"] for image in shown] == [0, 10, 20]
        content = read("plugin/images/individualImage", **dict(urllib.parse.parse_qsl(shown[-1]["query"])))
        picture = Image.open(io.BytesIO(content))
        assert picture.format == "PNG"
        assert picture.size == (200, 192)  # sixteen characters
        assert len(picture.convert("RGB").getcolors(2**16) or ()) > 10

        experiment = read("plugin/hparams/experiment", {"experimentName": "", "includeMetrics": True})
        assert "model.block_size" in {info["name"] for info in experiment["hparamInfos"]}
        wanted = {
            "experimentName": "", "allowedStatuses": ["STATUS_SUCCESS", "STATUS_RUNNING", "STATUS_UNKNOWN", "STATUS_FAILURE"],
            "colParams": [{"metric": {"group": "", "tag": tag}} for tag in ("loss/val", "bits_per_char/val")],
            "startIndex": 0, "sliceSize": 10,
        }  # fmt: skip
        (group,) = read("plugin/hparams/session_groups", wanted)["sessionGroups"]
        assert group["hparams"]["model.block_size"] == 16
        assert group["hparams"]["trainer.compile"] == 0
        (session,) = group["sessions"]
        assert session["status"] == "STATUS_SUCCESS"
        values = {metric["name"]["tag"]: metric["value"] for metric in session["metricValues"]}
        assert values["loss/val"] == pytest.approx(curve[-1][2], abs=1e-6)


def test_every_run_of_a_sweep_is_seen_by_what_it_changed(tmp_path: Path) -> None:
    short = ("trainer.max_steps=2", "trainer.eval_interval=1", "hydra.sweep.dir=runs")
    swept = ("model.n_layer=1", "trainer.patience=null,3", "data.path='l\\'été / \"1\".txt','b.txt'", "data=text")
    for name in ('l\'été / "1".txt', "b.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("to be or not to be, that is the question\n" * 50)
    result = script("train.py", "-m", *SMALL[:1], *SMALL[2:3], *short, *swept, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    paths = ("l-été-1-.txt", "b.txt")
    pairs = [(patience, path) for patience in ("null", "3") for path in paths]
    names = {f"{number}_patience={patience},path={path}" for number, (patience, path) in enumerate(pairs)}
    with tensorboard("tensorboard --logdir runs", tmp_path) as read:
        wait_for(lambda: len(read("runs")) == 4)
        assert set(read("runs")) == names
        wanted = {
            "experimentName": "", "allowedStatuses": ["STATUS_SUCCESS"], "startIndex": 0, "sliceSize": 10,
            "colParams": [{"metric": {"group": "", "tag": "loss/val"}}],
        }  # fmt: skip
        groups = wait_for(lambda: read("plugin/hparams/session_groups", wanted)["sessionGroups"])
        assert {session["name"] for group in groups for session in group["sessions"]} == names


def test_a_run_is_seen_while_it_lasts_and_each_step_once_after_resuming(tmp_path: Path) -> None:
    long = (
        "trainer.max_steps=100000",
        "trainer.eval_interval=100000",
        "trainer.log_interval=1",
        "hydra.run.dir=runs/a",
    )
    process = start("train.py", *SMALL, *long, cwd=tmp_path)
    with tensorboard("tensorboard --logdir runs --reload_interval 1", tmp_path) as read:
        wait_for(lambda: (tmp_path / "runs" / "a" / "last.pt").exists())

        def curve() -> list[int]:
            tags = read("plugin/scalars/tags").get("a", {})
            return (
                [step for _, step, _ in read("plugin/scalars/scalars", run="a", tag="loss/train")]
                if "loss/train" in tags
                else []
            )

        wait_for(lambda: len(curve()) > 100)
        process.kill()  # these points are in the file, but not in last.pt, so they are to be taken back
        process.communicate()
        assert torch.load(tmp_path / "runs" / "a" / "last.pt", weights_only=True)["step"] == 0
        result = script("train.py", "resume=runs/a", "trainer.max_steps=50", cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        wait_for(lambda: curve() == list(range(1, 51)))
        events = EventAccumulator(
            str(tmp_path / "runs" / "a"), {"scalars": 0}
        ).Reload()  # the other reader of TensorBoard
        assert [point.step for point in events.Scalars("loss/train")] == list(range(1, 51))
        assert read("runs") == ["a"]


def on_a_terminal(*arguments: str, cwd: Path) -> str:
    """Everything that train.py writes to a terminal of 120 columns."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    command = [sys.executable, str(ROOT / "train.py"), *arguments]
    process = subprocess.Popen(command, cwd=cwd, env=environment(), stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    pieces = []
    while True:
        ready, _, _ = select.select([master], [], [], 60)
        assert ready, "the terminal stayed silent"
        try:
            piece = os.read(master, 4096)
        except OSError:  # Linux says so when the other side is closed
            break
        if not piece:
            break
        pieces.append(piece)
    os.close(master)
    assert process.wait(timeout=60) == 0, b"".join(pieces).decode()
    return b"".join(pieces).decode()


def test_one_live_bar_with_whole_lines_above_it(tmp_path: Path) -> None:
    shown = on_a_terminal(
        *SMALL, "trainer.max_steps=200", "trainer.eval_interval=50", "hydra.run.dir=run", cwd=tmp_path
    )
    lines = [line.rsplit("\r", 1)[-1] for line in shown.replace("\r\n", "\n").split("\n")]
    assert sum("steps [" in line for line in lines) == 1  # what scrolled away is one bar, the finished one
    (bar,) = [line for line in lines if "steps [" in line]
    finished = re.search(
        r"100%\|█+\| 200/200 steps \[\d\d:\d\d, 00:00 left, train \d\.\d+, val (\d\.\d+), [\d,]+ characters/s\]", bar
    )
    assert finished is not None
    assert float(finished[1]) == pytest.approx(
        json.loads((tmp_path / "run" / "summary.json").read_text())["loss_val"], abs=1e-3
    )
    for step in (50, 100, 150, 200):
        assert (
            sum(re.fullmatch(rf"step {step}: train \d\.\d+, val \d\.\d+ *", line.strip()) is not None for line in lines)
            == 1
        )
    logged = (tmp_path / "run" / "train.log").read_text(encoding="utf-8")
    assert "█" not in logged
    assert "\r" not in logged
    assert logged.count(" INFO step ") == 4
