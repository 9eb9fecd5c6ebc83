"""Runs as the benchmarks need them: the presets of train.py, timed, without files that stay."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor

from configs.checks import problems
from configs.command_line import CONFIGS, CommandLine
from configs.overrides import OverrideReader, yaml_groups
from configs.schema import TrainConfig, UserError
from data import corpus as texts
from model.language_model import LanguageModel
from train import loss_of, train
from training.device import Setup
from training.optimizers import Optimizer, make_optimizer
from training.precision import in_precision, loss_scale, unscale_gradients
from training.run import Run
from training.stopping import StopSignal

VOCAB_SIZE = 65  # as many as Tiny Shakespeare has


def train_config(arguments: list[str]) -> TrainConfig:
    """What `python train.py` with these arguments would train. Raises UserError with all that is wrong with them."""
    CommandLine("train", TrainConfig, "")  # makes the schema known to Hydra
    overrides, found = OverrideReader(TrainConfig, yaml_groups(CONFIGS), sweeping=False).read(arguments)
    if found:
        raise UserError("; ".join(found))
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        try:
            config = OmegaConf.to_object(compose("train", overrides))
        except OmegaConfBaseException as error:
            raise UserError(str(error).splitlines()[0]) from error
    assert isinstance(config, TrainConfig)
    if found := problems(config):
        raise UserError("; ".join(found))
    return config


def model_to_step(config: TrainConfig, setup: Setup) -> tuple[LanguageModel, Optimizer, Callable[[], Tensor]]:
    """A new model, its optimizer, and a function that trains it by one step on random characters; it returns the loss.

    Raises UserError for options of which such a step knows nothing.
    """
    if config.trainer.compile or config.trainer.grad_accumulation > 1:
        raise UserError(
            "this benchmark takes steps without trainer.compile and trainer.grad_accumulation: leave them out"
        )
    model = LanguageModel(config.model, VOCAB_SIZE).to(setup.device)
    model.use_attention(setup.attention_path)
    optimizer = make_optimizer(model, config.optimizer)
    windows = torch.randint(VOCAB_SIZE, (config.trainer.batch_size, config.model.block_size + 1)).to(setup.device)
    scale = loss_scale(setup.precision, config.trainer.batch_size * config.model.block_size)

    def step() -> Tensor:
        loss = loss_of(in_precision(model, setup.precision), windows)
        (loss * scale).backward()
        unscale_gradients(model, scale)
        optimizer.clip_gradients(config.optimizer.grad_clip)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return model, optimizer, step


class TimedRun(Run):
    """A run that notes after how many seconds of training it had which loss."""

    def __init__(self, config: TrainConfig, folder: Path) -> None:
        super().__init__(config, texts.load(config.data, config.model.block_size), folder)
        self.curve: list[tuple[float, float]] = []

    def evaluate_and_save(self, between: Callable[[int], object] = lambda counted: None) -> None:
        super().evaluate_and_save(between)
        self.curve.append((self.seconds["train"], self.latest["loss_val"]))


def trained(arguments: list[str]) -> TimedRun:
    """A finished run without samples and pictures, whose files are thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        run = TimedRun(train_config([*arguments, "trainer.sample_length=0", "trainer.probe=''"]), Path(folder))
        run.open_folder()
        succeeded = False
        try:
            train(run, StopSignal())
            succeeded = True
        finally:
            run.tracker.close(succeeded)
    return run
