"""Checkpoints: one file that holds everything a run or a sample needs, only tensors and plain types inside.

Top-level keys: format, run (a name that all files of the run share), model (weights by name), sizes, vocabulary, corpus,
config, starts (what was typed, first and on going on), step, best, latest, points, seconds, samples_length, optimizer,
random, versions. `best.pt` has no optimizer and no random state: it is what one samples from and shares.

The file is a zip archive, as torch.save writes it, and the archive's comment holds the SHA-256 of all before it.
"""

import hashlib
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from configs.checks import problems
from configs.schema import ModelConfig, TrainConfig, UserError, literal
from data.tokenizer import Tokenizer
from model.language_model import LanguageModel
from training.device import is_memory_shortage
from training.files import write_bytes
from training.folders import STATES

FORMAT = 3
_TYPES: dict[str, Any] = {
    "format": int, "run": str, "model": dict, "sizes": dict, "vocabulary": str, "corpus": dict, "config": dict,
    "starts": list, "step": int, "best": dict, "latest": dict, "points": dict, "seconds": dict, "samples_length": int,
    "optimizer": dict | None, "random": dict | None, "versions": dict,
}  # fmt: skip
_PARTS: dict[str, dict[str, Any]] = {
    "best": {"step": int, "loss_val": float, "waited": int},
    "latest": {"evaluated": int, "loss_train": float, "loss_val": float, "loss_val_by_position": list},
    "seconds": {"train": float, "eval": float},
    "corpus": {"name": str, "sha256": str, "characters": int, "vocab_size": int},
    "versions": {"torch": str, "device": str, "precision": str, "attention": str, "threads": str},
}

Checkpoint = dict[str, Any]


class Damaged(UserError):
    """A checkpoint file whose content cannot be used, or none at all: an older one may do instead."""


@contextmanager
def taken_for_damage(sentence: str, kinds: tuple[type[Exception], ...] = (Exception,)) -> Iterator[None]:
    """Raise Damaged with this sentence in the place of an error of these kinds, unless it is for want of memory."""
    try:
        yield
    except kinds as error:
        if is_memory_shortage(error):
            raise
        raise Damaged(sentence) from error


def save(path: Path, checkpoint: Checkpoint, previous: Path | None = None) -> None:
    """Write a checkpoint; the one before goes on under the name `previous`, where that is given.

    Raises UserError that names path and cause where the file cannot be written; the file before is then untouched.
    """
    buffer = io.BytesIO()
    torch.save(checkpoint, buffer)
    seal(buffer)
    with buffer.getbuffer() as content:
        write_bytes(path, content, previous)


def seal(buffer: io.BytesIO) -> None:
    """Add the checksum. A zip archive ends in two bytes, here zero, that count the characters of the comment after them."""
    with buffer.getbuffer() as content:
        end = _seal_of(content[:-2])
    buffer.seek(-2, io.SEEK_END)
    buffer.write(end)


def _seal_of(content: bytes | memoryview) -> bytes:
    comment = b"sha256:" + hashlib.sha256(content).hexdigest().encode()
    return len(comment).to_bytes(2, "little") + comment


_SEAL_LENGTH = len(_seal_of(b""))


def load(path: Path) -> Checkpoint:
    """Read a checkpoint without running anything in it, its tensors on the CPU.

    Raises Damaged, in one sentence, for a file that is missing, not whole to the last bit, or not one of ours, and a plain
    UserError for one that cannot be read at the moment.
    """
    try:
        if path.exists() and not path.is_file():
            raise Damaged(f"the checkpoint {path} is no file")
        raw = path.read_bytes()
    except OSError as error:
        kind = Damaged if isinstance(error, FileNotFoundError) else UserError
        raise kind(f"cannot read the checkpoint {path}: {error.strerror or error}") from error
    if b"sha256:" not in raw[-_SEAL_LENGTH:]:
        raise Damaged(
            f"{path} is cut short, or of another program or an earlier version: it does not end in a checksum"
        )
    if raw[-_SEAL_LENGTH:] != _seal_of(memoryview(raw)[:-_SEAL_LENGTH]):
        raise Damaged(f"{path} is damaged: its checksum is not right")
    # Torch has many ways to report a file that is no checkpoint.
    with (
        taken_for_damage(f"{path} holds more than tensors and plain values: nothing in it was run"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # torch muses about odd files before it refuses them
        checkpoint = torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True)
    if isinstance(checkpoint, dict) and isinstance(checkpoint.get("format"), int) and checkpoint["format"] != FORMAT:
        raise Damaged(f"{path} has checkpoint format {checkpoint['format']}, and this version reads format {FORMAT}")
    if not (_has(checkpoint, _TYPES) and all(_has(checkpoint[part], types) for part, types in _PARTS.items())):
        raise Damaged(f"{path} is not a checkpoint of this project, or a damaged one")
    return checkpoint


def model_from(checkpoint: Checkpoint, path: Path) -> LanguageModel:
    """The model of a loaded checkpoint, with its weights; no random number of the caller's is drawn.

    Raises Damaged if the weights do not fit the sizes beside them, or are not finite.
    """
    with taken_for_damage(f"{path} is damaged: its weights and sizes do not belong together"):
        sizes = dict(checkpoint["sizes"])
        vocab_size = sizes.pop("vocab_size")
        known = {entry.name for entry in fields(ModelConfig)}
        if sizes.keys() != known or vocab_size != Tokenizer(checkpoint["vocabulary"]).vocab_size:
            raise ValueError("sizes do not match")
        config = ModelConfig(**sizes)
        if found := problems(config):
            raise ValueError(found[0])
        with torch.random.fork_rng(devices=[]):  # building one draws weights, to be replaced
            model = LanguageModel(config, vocab_size)
        model.load_state_dict(checkpoint["model"])
    if not has_finite_weights(model):
        raise Damaged(f"{path} holds weights that are not finite numbers")
    return model


def best_from_states(folder: Path, step: int) -> Checkpoint | None:
    """What best.pt of this step held, from a full state that was saved together with it; None if there is none."""
    for name in STATES:
        try:
            state = load(folder / name)
        except Damaged:
            continue
        if state["step"] == state["best"]["step"] == step:
            return {**state, "optimizer": None, "random": None}
    return None


def configuration_of(checkpoint: Checkpoint) -> TrainConfig:
    """The configuration of a checkpoint. Raises UserError if this version of the project would not take it."""
    try:
        saved = _literal(checkpoint["config"])
        config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(TrainConfig), saved))
    except OmegaConfBaseException as error:
        raise UserError(f"the run was made by another version of this project: {str(error).splitlines()[0]}") from error
    assert isinstance(config, TrainConfig)
    if found := problems(config):
        raise UserError(f"the run's own configuration cannot be used: {'; '.join(found)}")
    return config


def _literal(saved: Any) -> Any:
    """A saved configuration whose texts are read as they are."""
    if isinstance(saved, dict):
        return {key: _literal(value) for key, value in saved.items()}
    if isinstance(saved, list):
        return [_literal(value) for value in saved]
    return literal(saved) if isinstance(saved, str) else saved


def restore_optimizer(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Give an optimizer its saved memory and the rates of its latest step; all else is as the configuration has it now.

    Raises ValueError, LookupError, TypeError or AttributeError if the memory is not of this optimizer's parameters.
    """
    state, groups = saved["state"], optimizer.state_dict()["param_groups"]
    for group, before in zip(groups, saved["param_groups"], strict=True):
        group["lr"] = float(before["lr"])
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, memory in state.items():  # torch would take any shape, and fail at the next step
        for name, value in memory.items():
            shape = (len(parameters[number]), 1) if name == "sums" else parameters[number].shape
            if value.dim() and (value.shape != shape or not bool(torch.isfinite(value).all())):
                raise ValueError(f"parameter {number} has a memory of another shape, or one that is not finite")
    if state and len(state) != len(parameters):
        raise ValueError(f"a memory for {len(state)} of {len(parameters)} parameters")
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def has_finite_weights(model: torch.nn.Module) -> bool:
    """Whether every weight is a finite number."""
    return all(bool(torch.isfinite(weight).all()) for weight in model.parameters())


def versions() -> dict[str, str]:
    """The libraries whose versions may change the numbers of a run."""
    return {"torch": str(torch.__version__), "numpy": np.__version__}


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
