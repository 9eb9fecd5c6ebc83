"""Going on with a run: its own configuration, with the few changes that leave it the same run."""

from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from configs.schema import TrainConfig, UserError, literal

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
}


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
    try:
        config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(TrainConfig), _literal(saved)))
    except OmegaConfBaseException as error:
        raise UserError(f"the run was made by another version of this project: {str(error).splitlines()[0]}") from error
    assert isinstance(config, TrainConfig)
    changes = []
    for section, _, name in (key.rpartition(".") for key in keys if key != "resume"):
        before, now = (getattr(getattr(one, section), name) for one in (config, typed))
        if before != now:
            changes.append(f"{section}.{name}: {before} -> {now}")
            setattr(getattr(config, section), name, now)
    return config, changes


def _literal(saved: Any) -> Any:
    """A saved configuration whose texts are read as they are."""
    if isinstance(saved, dict):
        return {key: _literal(value) for key, value in saved.items()}
    if isinstance(saved, list):
        return [_literal(value) for value in saved]
    return literal(saved) if isinstance(saved, str) else saved


def reasons_to_stay_ended(saved: dict[str, Any], config: TrainConfig) -> list[str]:
    """Why a run that is over would end again at once, and what to change."""
    trainer, reasons = config.trainer, []
    if saved["step"] >= trainer.max_steps:
        reasons.append(f"the run has done its {saved['step']} steps: to train it further, add trainer.max_steps=N")
    if trainer.max_minutes is not None and saved["seconds"]["train"] >= 60 * trainer.max_minutes:
        reasons.append(f"the run has used its {trainer.max_minutes:g} minutes: add trainer.max_minutes=N, or null")
    if trainer.patience is not None and saved["best"]["waited"] >= trainer.patience:
        reasons.append(f"the run got no better for {trainer.patience} evaluations: add trainer.patience=N, or null")
    return reasons


def refuse_other_text(saved: dict[str, Any], found: dict[str, Any]) -> None:
    """Raises UserError that names every difference, if the text of a checkpoint is not the one found now."""
    if saved["sha256"] != found["sha256"]:
        differences = [f"{key} was {saved[key]} and is {found[key]}" for key in found if saved[key] != found[key]]
        raise UserError(
            f"this is not the text the run was trained on ({'; '.join(differences)}): give the same text with data.path=FILE"
        )
