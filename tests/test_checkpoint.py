"""Checkpoints: whole or not there, plain inside, and every other file refused without running anything in it."""

import errno
import hashlib
import io
import os
import pickle
import resource
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from configs.schema import TrainConfig, UserError
from data import corpus as texts
from data.corpus import Corpus
from training import checkpoint as checkpoints
from training.run import Run


@pytest.fixture
def run(small_config: TrainConfig, corpus: Corpus, tmp_path: Path) -> Iterator[Run]:
    run = Run(small_config, corpus, tmp_path)
    run.open_folder()
    yield run
    run.tracker.close(succeeded=True)


KEYS = {
    "format",
    "model",
    "sizes",
    "vocabulary",
    "corpus",
    "config",
    "step",
    "best",
    "latest",
    "points",
    "seconds",
    "samples_length",
    "run",
    "starts",
    "optimizer",
    "random",
    "versions",
}


def test_a_checkpoint_holds_everything_and_nothing_but_plain_types(trained: Path) -> None:
    program = (
        "import sys, torch; c = torch.load(sys.argv[1], weights_only=True);"
        "assert not {'hydra', 'omegaconf', 'training', 'model', 'configs'} & set(sys.modules); print(sorted(c))"
    )
    for name in ("last.pt", "best.pt"):
        command = [sys.executable, "-c", program, str(trained / name)]
        result = subprocess.run(command, cwd=trained, capture_output=True, text=True, check=True)
        assert result.stdout.strip() == str(sorted(KEYS))
    last, best = checkpoints.load(trained / "last.pt"), checkpoints.load(trained / "best.pt")
    assert best["optimizer"] is None
    assert best["random"] is None
    assert last["optimizer"]["state"]
    assert last["step"] == 20
    assert last["corpus"]["name"] == "playlet"
    assert last["config"]["data"]["name"] == "playlet"
    assert not any("_orig_mod" in name or "module." in name for name in last["model"])
    assert (trained / "best.pt").stat().st_size < (trained / "last.pt").stat().st_size / 2


def test_the_model_comes_back(run: Run) -> None:
    path = run.folder / "last.pt"
    run.save()
    again = checkpoints.model_from(checkpoints.load(path), path)
    ids = torch.randint(run.model.vocab_size, (2, 16))
    assert torch.equal(again(ids), run.model(ids))


class Bomb:
    """What a crafted file would hold: unpickling it makes a marker."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch '{self.marker}'",)


def sealed(raw: bytes) -> bytes:
    buffer = io.BytesIO(raw)
    checkpoints.seal(buffer)
    return buffer.getvalue()


def bad_files(folder: Path, good: bytes) -> dict[str, Path]:
    """Files that are no checkpoints, each in its own way."""
    content = torch.load(folder / "last.pt", weights_only=True)
    odd: dict[str, Any] = {
        "bomb": {**content, "versions": Bomb(folder / "marker")},
        "a list": [1, 2, 3],
        "no keys": {"format": 1},
        "newer": {**content, "format": checkpoints.FORMAT + 1},
        "no number": {**content, "format": "1"},
        **{f"{key} of another type": {**content, key: 1.5} for key in content},
        "best without a loss": {**content, "best": {"step": 1, "waited": 0}},
    }
    files = {name: folder / f"{name}.pt" for name in odd}
    for name, path in files.items():
        checkpoints.save(path, odd[name])  # with a good checksum, so that this is not what saves us
    raw = {
        "empty": b"",
        "text": b"To be, or not to be",
        "half": good[: len(good) // 2],
        "zeros": bytes(len(good)),
        "plain pickle bomb": pickle.dumps(Bomb(folder / "marker")),
        "pickle bomb with a good checksum": sealed(pickle.dumps(Bomb(folder / "marker")) + b"\0\0"),
        "no checksum": good[:-75] + b"\0\0",
        "more behind": good + b"\n",
    }
    for name, data in raw.items():
        files[name] = folder / f"{name}.pt"
        files[name].write_bytes(data)
    return files


def test_what_is_no_checkpoint_is_refused_and_runs_nothing(run: Run) -> None:
    run.save()
    for name, path in bad_files(run.folder, (run.folder / "last.pt").read_bytes()).items():
        with pytest.raises(UserError) as error:
            checkpoints.load(path)
        assert str(path) in str(error.value), name
        assert "\n" not in str(error.value), name
    assert not (run.folder / "marker").exists()


def test_every_byte_counts(run: Run) -> None:
    run.save()
    path = run.folder / "last.pt"
    good = path.read_bytes()
    for place in [*range(0, len(good), 997), *range(len(good) - 100, len(good))]:
        path.write_bytes(good[:place] + bytes([good[place] ^ 4]) + good[place + 1 :])
        with pytest.raises(checkpoints.Damaged, match="checksum"):
            checkpoints.load(path)
    path.write_bytes(good)
    checkpoints.load(path)


def test_the_checksum_is_the_comment_of_a_zip_archive_like_any_other(run: Run) -> None:
    run.save()
    with zipfile.ZipFile(run.folder / "last.pt") as archive:
        assert archive.testzip() is None
        content = (run.folder / "last.pt").read_bytes()[: -len(archive.comment) - 2]
        assert archive.comment.decode() == f"sha256:{hashlib.sha256(content).hexdigest()}"


@pytest.mark.parametrize("kind", ["folder", "fifo"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "last.pt"
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    with pytest.raises(checkpoints.Damaged, match=r"last\.pt is no file"):
        checkpoints.load(path)


def test_the_bomb_would_go_off_in_an_unsafe_loader(run: Run) -> None:
    run.save()
    path = bad_files(run.folder, b"")["bomb"]
    torch.load(path, weights_only=False)
    assert (run.folder / "marker").exists()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.pt: No such file"):
        checkpoints.load(tmp_path / "none.pt")


DAMAGE: dict[str, Any] = {
    "other sizes": lambda c: c["sizes"].update(n_embd=32),
    "unknown size": lambda c: c["sizes"].update(depth=3),
    "no such kind": lambda c: c["sizes"].update(n_embd="wide"),
    "no such norm": lambda c: c["sizes"].update(norm="batch"),
    "no end of layers": lambda c: c["sizes"].update(n_layer=10**12),
    "unsorted vocabulary": lambda c: c.update(vocabulary=c["vocabulary"][::-1]),
    "other vocabulary": lambda c: c.update(vocabulary=c["vocabulary"][:-1]),
    "missing weight": lambda c: c["model"].popitem(),
    "not finite": lambda c: c["model"]["bigram.weight"].fill_(float("nan")),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_weights_that_do_not_belong_are_refused(run: Run, damage: str) -> None:
    run.save()
    checkpoint = checkpoints.load(run.folder / "last.pt")
    DAMAGE[damage](checkpoint)
    with pytest.raises(UserError, match=r"last\.pt"):
        checkpoints.model_from(checkpoint, run.folder / "last.pt")


def test_a_full_disk_leaves_the_file_before(run: Run) -> None:
    run.save()
    before = (run.folder / "last.pt").read_bytes()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))  # no file may grow above this
    try:
        with pytest.raises(UserError) as error:
            run.save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert "last.pt" in str(error.value)
    assert os.strerror(errno.EFBIG) in str(error.value)
    assert (run.folder / "last.pt").read_bytes() == before
    assert not list(run.folder.glob(".*.tmp"))


def test_a_vanished_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"last\.pt: No such file or directory"):
        checkpoints.save(tmp_path / "gone" / "last.pt", {})


MEMORY_DAMAGE: dict[str, Any] = {
    "another shape": lambda state: state[0].update(exp_avg=torch.zeros(3)),
    "not finite": lambda state: state[0]["exp_avg_sq"].fill_(float("inf")),
    "one missing": lambda state: state.pop(0),
    "one too many": lambda state: state.update({99: state[0]}),
    "no memory": lambda state: state.update({0: 1.5}),
}


@pytest.mark.parametrize("damage", MEMORY_DAMAGE)
def test_a_memory_of_the_optimizer_that_does_not_belong_is_refused(trained: Path, damage: str) -> None:
    saved = checkpoints.load(trained / "last.pt")
    config = checkpoints.configuration_of(saved)
    corpus = texts.load(config.data, config.model.block_size)
    Run(config, corpus, trained, saved)
    MEMORY_DAMAGE[damage](saved["optimizer"]["state"])
    with pytest.raises(checkpoints.Damaged, match="its optimizer or random state does not fit"):
        Run(config, corpus, trained, saved)


def test_random_states_come_back() -> None:
    cpu = torch.device("cpu")
    state = checkpoints.random_state(cpu)
    drawn = torch.rand(3)
    checkpoints.restore_random_state(state, cpu)
    assert torch.equal(torch.rand(3), drawn)


def test_a_model_comes_back_without_a_random_number_of_training(run: Run) -> None:
    run.save()
    before = torch.get_rng_state()
    checkpoints.model_from(checkpoints.load(run.folder / "last.pt"), run.folder / "last.pt")
    assert torch.equal(torch.get_rng_state(), before)
