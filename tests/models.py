"""Every rung of the ladder and every variant of the model, small, for the tests that must hold for all of them."""

from dataclasses import replace
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from configs.command_line import CONFIGS, CommandLine
from configs.schema import ModelConfig, TrainConfig
from model.language_model import LanguageModel

V = 11


def rungs() -> dict[str, ModelConfig]:
    """Every rung and its variants, shrunk."""
    CommandLine("train", TrainConfig, "")
    found: dict[str, ModelConfig] = {}
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        for name in ("bigram", "average", "head", "multihead", "gpt"):
            config = OmegaConf.to_object(compose("train", [f"model={name}"]).model)
            assert isinstance(config, ModelConfig)
            small = replace(config, block_size=12, n_embd=10, head_size=4, n_layer=min(config.n_layer, 2))
            found[name] = replace(small, n_gram_rows=50)
    gpt = found["gpt"]
    for field, choices in {
        "positions": ("learned", "none"),
        "norm": ("rms_norm",),
        "activation": ("gelu", "relu"),
        "qk_norm": (False,),
        "bigram": (False,),
        "n_previous": (0, 1, 30),
        "n_gram_order": (0, 2, 30),
        "feed_forward": (False,),
    }.items():
        for choice in choices:
            changed: dict[str, Any] = {field: choice}
            found[f"gpt, {field}={choice}"] = replace(gpt, **changed)
    return found


RUNGS = rungs()


def woken(config: ModelConfig, vocab_size: int = V) -> LanguageModel:
    """A model whose every weight matters: zeros replaced by random numbers."""
    torch.manual_seed(0)
    model = LanguageModel(config, vocab_size)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.3)
    return model.eval()
