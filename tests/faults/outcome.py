"""What a run leaves, to be compared to the last bit."""

from pathlib import Path
from typing import Any

import torch
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

from training import checkpoint as checkpoints
from training.folders import STATES


def whole(folder: Path) -> None:
    """Assert that every checkpoint of a run is whole, and that a state never stands behind the one before."""
    found = {path.name: checkpoints.load(path) for path in folder.glob("*.pt")}
    for name, checkpoint in found.items():
        checkpoints.model_from(checkpoint, folder / name)
    if len(found.keys() & {*STATES}) == 2:
        assert found["last.pt"]["step"] >= found["previous.pt"]["step"]


def outcome(folder: Path) -> dict[str, Any]:
    """All that a run leaves but seconds: to the last bit, and each point of each curve once."""
    found: dict[str, Any] = {}
    for name in ("last.pt", "best.pt"):
        checkpoint = checkpoints.load(folder / name)
        checkpoint["latest"]["loss_val_by_position"] = tuple(checkpoint["latest"]["loss_val_by_position"])
        del (
            checkpoint["seconds"],
            checkpoint["points"],
            checkpoint["run"],
            checkpoint["starts"],
            checkpoint["samples_length"],
        )
        found |= {f"{name} {key}": plain(value) for key, value in checkpoint.items()}
    events = EventAccumulator(str(folder), {"tensors": 0}).Reload()  # as TensorBoard's own server reads them
    for tag in events.Tags()["tensors"]:
        if tag not in ("speed/chars_per_s", "config/text_summary") and not tag.startswith("_hparams_"):
            found[tag] = [(event.step, event.tensor_proto.SerializeToString()) for event in events.Tensors(tag)]
    found["samples.txt"] = (folder / "samples.txt").read_text(encoding="utf-8", errors="replace")
    found["config.yaml"] = (folder / "config.yaml").read_text(encoding="utf-8")
    return found


def plain(value: Any) -> Any:
    """Tensors as bytes and nested values as they are, so that == compares bits."""
    if isinstance(value, torch.Tensor):
        return value.numpy().tobytes()
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list) else value
