"""Going on with a run: its own configuration, with the few changes that leave it the same run."""

import json
import logging
from pathlib import Path
from typing import Any

from configs.checks import problems
from configs.json_file import read_object
from configs.schema import TrainConfig, UserError
from data import corpus as texts
from data.corpus import Corpus
from training.checkpoint import Checkpoint, Damaged, configuration_of, load
from training.folders import BEST, LAST, PREVIOUS, SUMMARY
from training.run import Run

log = logging.getLogger(__name__)

# Where, how long and how fast to learn, and what to look at on the way. Anything else would make it another run.
MAY_CHANGE = {
    "data.path",
    "optimizer.lr",
    "optimizer.table_lr",
    "optimizer.n_gram_lr",
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
    "trainer.profile",
    "trainer.deterministic",
}
ENDINGS = ("finished", "early_stopped", "time_limit")  # what summary.json says of a run that has ended in order


def prepared_run(config: TrainConfig, folder: Path, overrides: list[str]) -> tuple[Run, list[str]]:
    """A new run, or the one of config.resume with a sentence for each option that changed; nothing is written yet.

    A run whose last.pt cannot be used goes on from previous.pt, the state before it. Raises UserError for what cannot be.
    """
    changes: list[str] = []
    if config.resume is None:
        run = Run(config, texts.load(config.data, config.model.block_size), folder)
    else:
        run, changes = _resumed_run(config, folder, overrides)
    run.starts.append({"step": run.step, "overrides": [word for word in overrides if not word.startswith("resume=")]})
    return run, changes


def _resumed_run(config: TrainConfig, folder: Path, overrides: list[str]) -> tuple[Run, list[str]]:
    try:
        return _run_from(folder, LAST, config, overrides)
    except Damaged as damage:
        if not (folder / PREVIOUS).exists():
            raise
        log.warning("%s; trying %s, the state before it", damage, PREVIOUS)
        try:
            return _run_from(folder, PREVIOUS, config, overrides)
        except Damaged as damage_too:
            left = f"; {folder / BEST} can still be sampled from" if (folder / BEST).exists() else ""
            raise UserError(f"there is nothing to go on with: {damage}; {damage_too}{left}") from None


def _run_from(folder: Path, source: str, typed: TrainConfig, overrides: list[str]) -> tuple[Run, list[str]]:
    saved = load(folder / source)
    config, changes = resumed_config(saved, typed, overrides)
    if found := problems(config) + reasons_to_stay_ended(saved, config, folder):
        raise UserError("; ".join(found))
    with texts.that_may_have_moved(config.data.path):
        corpus = texts.load(config.data, config.model.block_size)
    refuse_other_text(saved, corpus)
    return Run(config, corpus, folder, saved, source), changes


def resumed_config(saved: Checkpoint, typed: TrainConfig, overrides: list[str]) -> tuple[TrainConfig, list[str]]:
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
            changes.append(f"{section}.{name}: {_typed(before)} -> {_typed(now)}")
            setattr(getattr(config, section), name, now)
    return config, changes


def _typed(value: Any) -> str:
    """A value as one types it."""
    return value if isinstance(value, str) else json.dumps(value)


def reasons_to_stay_ended(saved: dict[str, Any], config: TrainConfig, folder: Path) -> list[str]:
    """Why a run that is over would end again at once, and what to change.

    A run that was stopped after its last step, and before its summary, is not over: it has that to write.
    """
    trainer, reasons = config.trainer, []
    over = has_ended(folder)
    if saved["step"] > trainer.max_steps:
        reasons.append(f"{folder} has done {saved['step']} steps, more than trainer.max_steps={trainer.max_steps}")
    elif over and saved["step"] == trainer.max_steps:
        reasons.append(f"{folder} has done its {saved['step']} steps: to train it further, add trainer.max_steps=N")
    if over and trainer.max_minutes is not None and saved["seconds"]["train"] >= 60 * trainer.max_minutes:
        reasons.append(f"{folder} has used its {trainer.max_minutes:g} minutes: add trainer.max_minutes=N, or null")
    if over and trainer.patience is not None and saved["best"]["waited"] >= trainer.patience:
        reasons.append(f"{folder} got no better for {trainer.patience} evaluations: add trainer.patience=N, or null")
    return reasons


def has_ended(folder: Path) -> bool:
    """Whether the run in a folder has come to its end in order, by its summary.json."""
    try:
        return read_object(folder / SUMMARY)["status"] in ENDINGS
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
