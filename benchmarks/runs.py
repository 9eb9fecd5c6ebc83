"""Runs as the benchmarks need them: the presets of train.py, timed, without files that stay."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from configs.command_line import CONFIGS, CommandLine
from configs.overrides import OverrideReader, yaml_groups
from configs.schema import TrainConfig, UserError, problems
from data import corpus as texts
from train import train
from training.run import Run
from training.stopping import StopSignal


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
        try:
            train(run, StopSignal())
        finally:
            run.tracker.close(succeeded=True)
    return run
