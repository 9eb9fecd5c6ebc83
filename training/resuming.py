"""Going on with a run: its own configuration, with the few changes that leave it the same run."""

import json
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from configs.schema import TrainConfig, UserError, literal
from data.corpus import Corpus
from training.checkpoint import Checkpoint

# Where, how long and how fast to learn, and what to look at on the way. Anything else would make it another run.
MAY_CHANGE = {
    "data.path",
    "optimizer.lr",
    "optimizer.table_lr",
    "trainer.max_steps",
    "trainer.max_minutes",
    "trainer.eval_interval",
    "trainer.save_interval",
    "trainer.log_interval",
    "trainer.patience",
    "trainer.sample_length",
    "trainer.probe",
    "trainer.device",
    "trainer.precision",
    "trainer.attention_path",
    "trainer.threads",
    "trainer.compile",
    "trainer.deterministic",
}
_ENDINGS = ("finished", "early_stopped", "time_limit")


def resumed_config(saved: dict[str, Any], typed: TrainConfig, overrides: list[str]) -> tuple[TrainConfig, list[str]]:
    """The checkpoint's configuration with the overrides typed now, and a sentence for each change.

    `typed` is the configuration that the command line alone would give. Raises UserError that names every override that
    may not change.
    """
    keys = [override.lstrip("+").partition("=")[0] for override in overrides]
    refused = [key for key in keys if key not in MAY_CHANGE | {"resume"}]
    if refused:
        raise UserError(
            f"resume= goes on with the run's own configuration, so {', '.join(refused)} cannot be given; "
            f"these can: {', '.join(sorted(MAY_CHANGE))}"
        )
    config = configuration_of(saved)
    changes = []
    for section, _, name in (key.rpartition(".") for key in keys if key != "resume"):
        before, now = (getattr(getattr(one, section), name) for one in (config, typed))
        if before != now:
            changes.append(f"{section}.{name}: {before} -> {now}")
            setattr(getattr(config, section), name, now)
    return config, changes


def configuration_of(saved: dict[str, Any]) -> TrainConfig:
    """The configuration in a checkpoint. Raises UserError if it is of another version of this project."""
    try:
        config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(TrainConfig), _literal(saved)))
    except OmegaConfBaseException as error:
        raise UserError(f"the run was made by another version of this project: {str(error).splitlines()[0]}") from error
    assert isinstance(config, TrainConfig)
    return config


def _literal(saved: Any) -> Any:
    """A saved configuration whose texts are read as they are."""
    if isinstance(saved, dict):
        return {key: _literal(value) for key, value in saved.items()}
    if isinstance(saved, list):
        return [_literal(value) for value in saved]
    return literal(saved) if isinstance(saved, str) else saved


def reasons_to_stay_ended(saved: dict[str, Any], config: TrainConfig, folder: Path) -> list[str]:
    """Why a run that is over would end again at once, and what to change.

    A run that was stopped after its last step, and before its summary, is not over: it has that to write.
    """
    trainer, reasons = config.trainer, []
    over = has_ended(folder)
    if saved["step"] > trainer.max_steps or (over and saved["step"] == trainer.max_steps):
        reasons.append(f"the run has done its {saved['step']} steps: to train it further, add trainer.max_steps=N")
    if over and trainer.max_minutes is not None and saved["seconds"]["train"] >= 60 * trainer.max_minutes:
        reasons.append(f"the run has used its {trainer.max_minutes:g} minutes: add trainer.max_minutes=N, or null")
    if over and trainer.patience is not None and saved["best"]["waited"] >= trainer.patience:
        reasons.append(f"the run got no better for {trainer.patience} evaluations: add trainer.patience=N, or null")
    return reasons


def has_ended(folder: Path) -> bool:
    """Whether the run in a folder has come to its end in order, by its summary.json."""
    try:
        return json.loads((folder / "summary.json").read_text(encoding="utf-8"))["status"] in _ENDINGS
    except (OSError, ValueError, LookupError, TypeError):
        return False


def refuse_other_text(saved: Checkpoint, corpus: Corpus) -> None:
    """Raises UserError that names every difference, if the text of a checkpoint is not the one found now."""
    before, now = saved["corpus"], corpus.identity()
    if before["sha256"] == now["sha256"] and saved["vocabulary"] == corpus.tokenizer.vocabulary:
        return
    differences = [f"{key} was {before[key]} and is {now[key]}" for key in now if before[key] != now[key]]
    was, found = set(saved["vocabulary"]), set(corpus.tokenizer.vocabulary)
    for which, characters in (("only the old text has", was - found), ("only the new text has", found - was)):
        if characters:
            shown = ", ".join(map(repr, sorted(characters)[:20]))
            differences.append(
                f"{which} {shown}" + (f" and {len(characters) - 20} more" if len(characters) > 20 else "")
            )
    raise UserError(
        f"this is not the text the run was trained on ({'; '.join(differences)}): give the same text with data.path=FILE"
    )
