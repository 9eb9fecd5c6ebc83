"""The configuration that a command line gives, as the benchmarks take it from the presets of train.py."""

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from configs.command_line import CONFIGS, CommandLine
from configs.overrides import OverrideReader, yaml_groups
from configs.schema import TrainConfig, UserError, problems


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
