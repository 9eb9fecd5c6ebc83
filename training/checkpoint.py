"""Checkpoints: one file that holds everything a run or a sample needs, only tensors and plain types inside.

Top-level keys: format, model (weights by name), sizes, vocabulary, corpus, config, step, best, seconds, optimizer, random,
versions. `best.pt` has no optimizer and no random state: it is what one samples from and shares.
"""

import io
import platform
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from configs.schema import ModelConfig, TrainConfig, UserError, problems
from data.tokenizer import Tokenizer
from model.language_model import LanguageModel
from training.files import replacing

FORMAT = 1
_TYPES: dict[str, Any] = {
    "format": int, "model": dict, "sizes": dict, "vocabulary": str, "corpus": dict, "config": dict, "step": int,
    "best": dict, "seconds": dict, "optimizer": dict | None, "random": dict | None, "versions": dict,
}  # fmt: skip
_BEST = {"step": int, "loss_val": float, "waited": int}
_SECONDS = {"train": float, "eval": float}

Checkpoint = dict[str, Any]


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint so that the path holds, at every moment, a whole file: the one before or this one.

    Raises UserError that names path and cause where the file cannot be written; the file before is then untouched.
    """
    try:
        with replacing(path) as file:
            torch.save(checkpoint, file)
    except (OSError, RuntimeError) as error:  # torch turns a failed write into a RuntimeError
        raise UserError(f"cannot save {path}: {_cause(error)}. What was saved before is unharmed") from error


def load(path: Path) -> Checkpoint:
    """Read a checkpoint without running anything in it, its tensors on the CPU.

    Raises UserError, in one sentence, for a file that is missing, damaged, or not one of ours.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the checkpoint {path}: {error.strerror or error}") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch muses about odd files before it refuses them
            checkpoint = torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True)
    except Exception as error:  # the many ways in which torch reports a file that is no checkpoint
        raise UserError(f"{path} is no checkpoint, or a damaged one: nothing in it was run") from error
    if isinstance(checkpoint, dict) and isinstance(checkpoint.get("format"), int) and checkpoint["format"] != FORMAT:
        raise UserError(f"{path} has checkpoint format {checkpoint['format']}, and this version reads format {FORMAT}")
    if not (_has(checkpoint, _TYPES) and _has(checkpoint["best"], _BEST) and _has(checkpoint["seconds"], _SECONDS)):
        raise UserError(f"{path} is not a checkpoint of this project, or a damaged one")
    return checkpoint


def model_from(checkpoint: Checkpoint, path: Path) -> LanguageModel:
    """The model of a loaded checkpoint, with its weights. Raises UserError if they do not fit the sizes beside them."""
    try:
        sizes = dict(checkpoint["sizes"])
        vocab_size = sizes.pop("vocab_size")
        known = {entry.name for entry in fields(ModelConfig)}
        if sizes.keys() != known or vocab_size != Tokenizer(checkpoint["vocabulary"]).vocab_size:
            raise ValueError("sizes do not match")
        config = ModelConfig(**sizes)
        if found := problems(TrainConfig(model=config)):
            raise ValueError(found[0])
        model = LanguageModel(config, vocab_size)
        model.load_state_dict(checkpoint["model"])
    except Exception as error:
        raise UserError(f"{path} is damaged: its weights and sizes do not belong together") from error
    if not all(bool(torch.isfinite(weight).all()) for weight in model.parameters()):
        raise UserError(f"{path} holds weights that are not finite numbers")
    return model


def versions() -> dict[str, str]:
    """What wrote a checkpoint."""
    return {"python": platform.python_version(), "torch": str(torch.__version__)}


def random_state(device: torch.device) -> dict[str, torch.Tensor | None]:
    """The state of the generators that dropout draws from."""
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def restore_random_state(state: dict[str, torch.Tensor | None], device: torch.device) -> None:
    """Put back what `random_state` saved, as far as this device has it."""
    if state["cpu"] is not None:
        torch.set_rng_state(state["cpu"])
    if state["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)


def _has(value: Any, types: dict[str, Any]) -> bool:
    return isinstance(value, dict) and all(key in value and isinstance(value[key], types[key]) for key in types)


def _cause(error: Exception) -> str:
    """The operating system's words for a failed write, also where torch has wrapped them."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError):
            return inner.strerror or str(inner)
        inner = inner.__context__
    return str(error).splitlines()[0]
