"""The schema: defaults are sound, every limit is checked, and all problems come at once."""

import math

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from configs.checks import problems
from configs.command_line import CONFIGS, CommandLine
from configs.schema import (
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    SampleConfig,
    TrainConfig,
    options,
    values,
)


def test_the_defaults_have_no_problem() -> None:
    assert problems(TrainConfig()) == []
    assert problems(SampleConfig()) == []


def test_every_option_says_what_it_means() -> None:
    for schema in (TrainConfig, SampleConfig):
        for key, metadata in options(schema).items():
            assert 3 <= len(metadata["help"]) <= 60, key


def test_the_yaml_of_the_default_run_says_what_the_schema_says() -> None:
    CommandLine("train", TrainConfig, "")
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        composed = compose("train")
    assert OmegaConf.to_container(composed) == OmegaConf.to_container(OmegaConf.structured(TrainConfig))


def _limits() -> list[tuple[type, str, float]]:
    """Every option with a limit, and a value just outside it."""
    outside = {
        "least": lambda limit: limit - 1,
        "most": lambda limit: limit + 1,
        "above": lambda limit: limit,
        "below": lambda limit: limit,
    }
    return [
        (schema, key, outside[name](limit))
        for schema in (TrainConfig, SampleConfig)
        for key, metadata in options(schema).items()
        for name, limit in metadata["limits"].items()
    ]


@pytest.mark.parametrize(("schema", "key", "value"), _limits())
def test_a_value_outside_its_limit_is_named(schema: type, key: str, value: float) -> None:
    config = schema()
    group, _, name = key.rpartition(".")
    setattr(getattr(config, group) if group else config, name, value)
    assert any(f"{key}={value} is refused" in problem for problem in problems(config))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused(value: float) -> None:
    config = TrainConfig()
    config.optimizer.lr = value
    config.optimizer.grad_clip = value
    assert len(problems(config)) == 2
    assert len(problems(SampleConfig(temperature=value))) == 1


def test_all_problems_come_at_once() -> None:
    config = TrainConfig()
    config.model.dropout, config.model.norm, config.trainer.batch_size, config.data.name = 1.5, "batch", 0, "text"
    found = "\n".join(problems(config))
    for words in (
        "model.dropout=1.5",
        "model.norm=batch is not one of layer_norm, rms_norm",
        "batch_size=0",
        "data.path",
    ):
        assert words in found


IMPOSSIBLE = {
    "nothing to train": ModelConfig(n_layer=0, bigram=False, n_previous=0, n_gram_order=0),
    "with no room for model.n_previous=2": ModelConfig(n_layer=0, n_gram_order=0),
    "with no room for model.n_gram_order=7": ModelConfig(n_layer=0, n_previous=0),
    "model.n_gram_order=1 would be the character itself": ModelConfig(n_gram_order=1),
    "model.head_size=7 must be even": ModelConfig(head_size=7),
    "no queries or keys to turn": ModelConfig(attention="uniform", qk_norm=False),
    "no queries or keys to normalise": ModelConfig(attention="uniform", positions="none"),
    "model.name='a/b'": ModelConfig(name="a/b"),
}


def test_muon_without_blocks_is_refused() -> None:
    table = ModelConfig(n_layer=0, n_previous=0, n_gram_order=0)
    (problem,) = problems(TrainConfig(model=table, optimizer=OptimizerConfig(name="muon")))
    assert "optimizer=muon learns the matrices of blocks, and model.n_layer=0 has none" in problem


@pytest.mark.parametrize("words", IMPOSSIBLE)
def test_a_model_that_cannot_be_is_refused(words: str) -> None:
    (problem,) = problems(TrainConfig(model=IMPOSSIBLE[words]))
    assert words in problem


def test_head_size_is_free_of_width_and_heads() -> None:
    assert problems(TrainConfig(model=ModelConfig(n_embd=10, n_head=3, head_size=14))) == []


def test_parts_of_a_step_must_be_equal() -> None:
    config = TrainConfig()
    config.trainer.batch_size, config.trainer.grad_accumulation = 12, 5
    (problem,) = problems(config)
    assert "trainer.batch_size=12" in problem
    assert "trainer.grad_accumulation=5" in problem


def test_something_must_be_left_to_train_on() -> None:
    (problem,) = problems(TrainConfig(data=DataConfig(validation_fraction=0.5, test_fraction=0.5)))
    assert "data.validation_fraction=0.5 and data.test_fraction=0.5 leave nothing to train on" in problem


def test_one_prompt_is_enough() -> None:
    (problem,) = problems(SampleConfig(prompt="a", prompt_file="b"))
    assert "prompt and prompt_file are both given" in problem


def test_values_are_flat_and_complete() -> None:
    flat = values(TrainConfig())
    assert flat["model.block_size"] == 64
    assert flat.keys() == options(TrainConfig).keys()
