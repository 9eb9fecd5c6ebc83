"""Fixtures that several files share."""

import os
from pathlib import Path

import pytest
import torch

from configs.schema import DataConfig, ModelConfig, OptimizerConfig, TrainConfig, TrainerConfig
from data import corpus as texts
from tests.scripts import SMALL, process

TINY_SHAKESPEARE = os.environ.get("TINY_SHAKESPEARE")


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Tiny models are fastest on one thread, and equal bits need an equal number of them."""
    torch.set_num_threads(1)


@pytest.fixture
def small_config() -> TrainConfig:
    """A model and a Playlet that train in a second."""
    return TrainConfig(
        model=ModelConfig(block_size=16, n_layer=1, n_head=2, head_size=8, n_embd=16, n_previous=2, n_gram_rows=99),
        data=DataConfig(name="playlet", characters=20_000),
        optimizer=OptimizerConfig(warmup_steps=2),
        trainer=TrainerConfig(
            max_steps=20, batch_size=4, eval_interval=10, log_interval=1, sample_length=0, threads=1, device="cpu"
        ),
    )


@pytest.fixture
def corpus(small_config: TrainConfig) -> texts.Corpus:
    return texts.load(small_config.data, small_config.model.block_size)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of train.py, to be read only; it lies in runs/ of the folder above it."""
    home = tmp_path_factory.mktemp("trained")
    result = process("train.py", *SMALL, "trainer.sample_length=50", cwd=home)
    assert result.returncode == 0, result.stderr
    (folder,) = (home / "runs").iterdir()
    return folder


@pytest.fixture(scope="session")
def tiny_shakespeare_path() -> Path:
    """Where Tiny Shakespeare lies; without TINY_SHAKESPEARE set, tests on the real text are skipped."""
    if TINY_SHAKESPEARE is None:
        pytest.skip("TINY_SHAKESPEARE does not name a copy of the real text")
    return Path(TINY_SHAKESPEARE).absolute()
