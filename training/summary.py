"""The figures of a run, for scripts, tables and sweeps."""

import math
from typing import Any

from configs.schema import values
from training.run import Run


def summary_of(run: Run, status: str) -> dict[str, Any]:
    """What summary.json holds; losses in nats per character, of the whole validation part."""
    best, loss_train = run.best["loss_val"], run.latest["loss_train"]
    return {
        "status": status,
        "model": run.config.model.name,
        "steps": run.step,
        "best_step": run.best["step"],
        "loss_train": loss_train if math.isfinite(loss_train) else None,
        "loss_val": best if math.isfinite(best) else None,
        "bits_per_char": best / math.log(2) if math.isfinite(best) else None,
        "last_loss_val_by_position": run.latest["loss_val_by_position"],
        "train_seconds": run.seconds["train"],
        "eval_seconds": run.seconds["eval"],
        "chars_per_second": run.chars_per_second(),
        "parameters": sum(run.model.parameter_counts().values()),
        "corpus": run.corpus.identity(),
        "baselines": run.baselines,
        "floor": run.corpus.floor,
        "seed": run.config.seed,
        "overrides": run.starts[0]["overrides"],
        "resumed": run.starts[1:],
    }


def shared_facts(run: Run) -> dict[str, Any]:
    """What must be the same in all processes that share a run."""
    options = {key: value for key, value in values(run.config).items() if key not in ("data.path", "resume")}
    computing = {key: fact for key, fact in run.setup.facts().items() if key in ("device", "precision", "attention")}
    return {**options, **computing, "the step to go on from": run.step, "the text's SHA-256": run.corpus.sha256}
