"""What a checkpoint holds, as lines for people or one dictionary for scripts."""

import math
import shlex
from pathlib import Path
from typing import Any

from configs.schema import TrainConfig
from training.checkpoint import Checkpoint, configuration_of, model_from, taken_for_damage


def contents(checkpoint: Checkpoint, path: Path) -> dict[str, Any]:
    """Everything but the numbers themselves. Raises UserError for a checkpoint that cannot be used."""
    config, parameters = configuration_of(checkpoint), model_from(checkpoint, path).parameter_counts()
    with taken_for_damage(f"{path} is damaged: what it says of itself cannot be read"):
        return _contents(checkpoint, path, config, parameters)


def _contents(checkpoint: Checkpoint, path: Path, config: TrainConfig, parameters: dict[str, int]) -> dict[str, Any]:
    best = {key: checkpoint["best"][key] for key in ("step", "loss_val")}
    if not all(math.isfinite(spent) for spent in checkpoint["seconds"].values()):
        raise ValueError("no times")
    return {
        "checkpoint": str(path),
        "bytes": path.stat().st_size,
        "step": checkpoint["step"],
        "max_steps": config.trainer.max_steps,
        "best": best if math.isfinite(best["loss_val"]) else None,
        "seconds": {name: round(spent, 1) for name, spent in checkpoint["seconds"].items()},
        "name": config.model.name,
        "sizes": {key: value for key, value in checkpoint["sizes"].items() if key != "name"},
        "parameters": parameters,
        "vocabulary": checkpoint["vocabulary"],
        "corpus": checkpoint["corpus"],
        "resumable": checkpoint["optimizer"] is not None,
        "commands": [shlex.join(["python", "train.py", *start["overrides"]]) for start in checkpoint["starts"]],
        "versions": checkpoint["versions"],
    }


def lines(held: dict[str, Any]) -> list[str]:
    """The same, to be read."""
    best, corpus, parameters = held["best"], held["corpus"], held["parameters"]
    of_parts = ", ".join(f"{part} {count:,}" for part, count in parameters.items() if count)
    kind = (
        "all that it takes to go on" if held["resumable"] else "a model to sample from, without the optimizer's memory"
    )
    rows = {
        "file": f"{held['checkpoint']}, {held['bytes']:,} bytes: {kind}",
        "model": held["name"],
        "sizes": ", ".join(f"{name} {value}" for name, value in held["sizes"].items()),
        "parameters": f"{sum(parameters.values()):,} ({of_parts})",
        "vocabulary": f"{len(held['vocabulary'])} characters: {held['vocabulary']!r}",
        "step": f"{held['step']:,} of {held['max_steps']:,}",
        "best": f"validation loss {best['loss_val']:.4f} at step {best['step']:,}" if best else "not evaluated yet",
        "seconds": ", ".join(f"{name} {spent:,}" for name, spent in held["seconds"].items()),
        "corpus": f"{corpus['name']}, {corpus['characters']:,} characters, SHA-256 {corpus['sha256']}",
        "made by": ", then ".join(held["commands"]),
        "with": ", ".join(f"{name} {version}" for name, version in held["versions"].items()),
    }
    return [f"{name:<12}{text}" for name, text in rows.items()]
