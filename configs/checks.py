"""What is wrong with the values of a configuration, each alone and all together. It imports no torch."""

import math
import re
from collections.abc import Iterator
from typing import Any

from configs.launch import launch
from configs.schema import (
    DataConfig,
    EvaluateConfig,
    ModelConfig,
    OtherTextConfig,
    SampleConfig,
    TrainConfig,
    leaves,
    values,
)


def problems(config: object) -> list[str]:
    """Everything wrong with the values of a script's configuration, one sentence each; empty if all is well."""
    found = [problem for key, value, metadata in leaves(config) for problem in _limit_problems(key, value, metadata)]
    if isinstance(config, TrainConfig | EvaluateConfig):
        found += data_problems(config.data)
    if isinstance(config, EvaluateConfig) and config.inspect:
        found += _needless(config, "inspect=true reads no text and computes nothing", "checkpoint inspect json")
    if isinstance(config, ModelConfig):
        found += _model_problems(config)
    elif isinstance(config, TrainConfig):
        found += _train_problems(config)
    elif isinstance(config, SampleConfig):
        found += _sample_problems(config)
    return found


def _limit_problems(key: str, value: Any, metadata: Any) -> Iterator[str]:
    if value is None:
        return
    if metadata["choices"] and value not in metadata["choices"]:
        yield f"{key}={value} is not one of {', '.join(metadata['choices'])}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    words = {"least": "at least", "most": "at most", "above": "above", "below": "below"}
    holds = {
        "least": lambda limit: value >= limit,
        "most": lambda limit: value <= limit,
        "above": lambda limit: value > limit,
        "below": lambda limit: value < limit,
    }
    limits = dict(metadata["limits"])
    if isinstance(value, int):
        limits.setdefault("most", 2**31 - 1)
    if not math.isfinite(value):
        yield f"{key}={value} is refused: it must be a finite number"
    elif not all(holds[name](limit) for name, limit in limits.items()):
        wanted = " and ".join(f"{words[name]} {limit}" for name, limit in limits.items())
        yield f"{key}={value} is refused: it must be {wanted}"


def data_problems(data: DataConfig | OtherTextConfig) -> Iterator[str]:
    """What is wrong with the values of a text's options together, one sentence each."""
    validation, test = data.validation_fraction, data.test_fraction
    if (validation or 0) + (test or 0) >= 1:
        yield (
            f"data.validation_fraction={validation} and data.test_fraction={test} leave nothing to train on: "
            "together they must be below 1"
        )
    if data.path == "":
        yield "data.path is empty: name a file, or leave it out"
    elif data.name == "text" and data.path is None:
        yield "data=text needs a file: add data.path=FILE"
    if data.name == "playlet" and data.path is not None:
        yield f"data=playlet writes its own text and cannot read data.path={data.path}: use data=text"


def _train_problems(config: TrainConfig) -> Iterator[str]:
    model, data, trainer = config.model, config.data, config.trainer
    if not re.fullmatch(r"[\w.-]+", model.name, re.ASCII):
        yield f"model.name={model.name!r} names folders: write letters, digits, dots, dashes and underscores only"
    yield from _model_problems(model)
    if model.n_layer == 0 and config.optimizer.name == "muon":
        yield "optimizer=muon learns the matrices of blocks, and model.n_layer=0 has none: use optimizer=adamw"
    if not data.urls or not all(isinstance(url, str) for url in data.urls):
        yield f"data.urls={data.urls} is refused: it must be a list of at least one address"
    if trainer.batch_size < 1 or trainer.grad_accumulation < 1:
        return
    if trainer.batch_size % trainer.grad_accumulation:
        yield (
            f"trainer.batch_size={trainer.batch_size} cannot be cut into "
            f"trainer.grad_accumulation={trainer.grad_accumulation} equal parts"
        )
    elif trainer.batch_size % (trainer.grad_accumulation * launch().size):
        each = (
            f", each in trainer.grad_accumulation={trainer.grad_accumulation}" if trainer.grad_accumulation > 1 else ""
        )
        yield (
            f"trainer.batch_size={trainer.batch_size} cannot be shared equally by {launch().size} processes{each}: "
            "choose a multiple"
        )


def _model_problems(model: ModelConfig) -> Iterator[str]:
    if model.n_layer == 0 and not model.bigram:
        yield "model.n_layer=0 with model.bigram=false leaves nothing to train: turn the table on or add a layer"
    for option_name in ("n_previous", "n_gram_order"):
        if model.n_layer == 0 and (value := getattr(model, option_name)) > 0:
            yield f"model.n_layer=0 is the bigram table alone, with no room for model.{option_name}={value}: set it to 0"
    if model.n_layer > 0 and model.n_gram_order == 1:
        yield "model.n_gram_order=1 would be the character itself, which has its embedding: write 0 for none, or 2 or more"
    if model.n_layer > 0 and model.positions == "rotary" and model.head_size % 2:
        yield f"model.positions=rotary turns pairs of numbers, so model.head_size={model.head_size} must be even"
    if model.n_layer > 0 and model.attention == "uniform":
        if model.positions == "rotary":
            yield "model.attention=uniform has no queries or keys to turn: set model.positions to learned or none"
        if model.qk_norm:
            yield "model.attention=uniform has no queries or keys to normalise: set model.qk_norm=false"


def _sample_problems(config: SampleConfig) -> Iterator[str]:
    if config.prompt is not None and config.prompt_file is not None:
        yield "prompt and prompt_file are both given: give one of them"
    for key, file in (("prompt_file", config.prompt_file), ("report_text", config.report_text)):
        if file == "":
            yield f"{key} is empty: name a file, or leave it out"
    if config.stop == "":
        yield "stop is empty: write the characters before which a text is to end, or leave it out"
    if config.interactive:
        if config.prompt_file == "-":
            yield "interactive=true reads what you type from standard input: prompt_file=- cannot come from there, too"
        for key, value in (
            ("num_samples", config.num_samples > 1),
            ("novelty", config.novelty),
            ("report", config.report),
        ):
            if value:
                yield f"interactive=true writes one text with you: leave out {key}"
    if config.report is not None and not config.report.endswith(".html"):
        yield f"report={config.report} is refused: the page is written to a file that ends in .html"
    if config.report_text is not None:
        if config.report is None:
            yield "report_text says what the page shows: add report=FILE.html, where the page is written"
        used = "checkpoint report report_text on_unknown device"
        yield from _needless(config, "report_text shows a text that is there, and nothing is written", used)


def _needless(config: object, why: str, used: str) -> Iterator[str]:
    """A sentence for each option that is set but not among the used ones."""
    defaults = values(type(config)())
    for key, value in values(config).items():
        if value != defaults[key] and key not in used.split():
            yield f"{why}: leave out {key}={value}"
