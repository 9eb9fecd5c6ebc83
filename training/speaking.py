"""What a run tells people: what it is, how far it has come, and where everything is at its end."""

import contextlib
import logging
import math
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

from configs.terminal import drop_standard_output
from training import checkpoint as checkpoints
from training import distributed
from training.files import held
from training.folders import BEST, FILES, LAST, refuse_odd_files
from training.previews import MOST_MAPS
from training.run import Run
from training.summary import summary_of
from training.tracking import logging_to, results_table

log = logging.getLogger(__name__)


@contextlib.contextmanager
def writing_to(folder: Path) -> Iterator[Callable[[], None]]:
    """The folder and its log as this process's own, if it is the one that writes; others keep quiet.

    Gives what is to be called before each save.
    """
    if distributed.leads():
        refuse_odd_files(folder)
        with held(folder) as check, logging_to(folder):
            yield check
    else:
        log.root.addHandler(logging.NullHandler())
        yield lambda: None


def introduce(run: Run, overrides: list[str], changes: list[str]) -> None:
    """Say what this run is, here and in its folder."""
    config, corpus = run.config, run.corpus
    if config.data.fallback_reason:
        log.warning("NOT Tiny Shakespeare: %s. Training on the built-in Playlet instead", config.data.fallback_reason)
    log.info("run folder: %s", run.folder)
    if overrides:
        log.info("options: %s", " ".join(overrides))
    log.info(run.setup.reasons)
    sizes = f"{len(corpus.train):,} + {len(corpus.validation):,} characters, {corpus.tokenizer.vocab_size} distinct"
    log.info("text: %s, training + validation part %s", corpus.name, sizes)
    counts = run.model.parameter_counts()
    parts = ", ".join(f"{part} {count:,}" for part, count in counts.items() if count)
    log.info("model: %s, %s parameters (%s)", config.model.name, f"{sum(counts.values()):,}", parts)
    heads = config.model.n_layer * config.model.n_head
    if run.previews.probe and heads > MOST_MAPS:
        log.info("attention is drawn for the first %d of %d heads", MOST_MAPS, heads)
    if config.trainer.max_minutes is not None:
        used = f", {run.seconds['train'] / 60:.2f} of them used" if run.resumed_from is not None else ""
        log.info("the run stops after %g minutes of training%s", config.trainer.max_minutes, used)
    if run.resumed_from is not None:
        log.info("going on after step %d; changed: %s", run.step, ", ".join(changes) or "nothing")
        if run.moved:
            moved = ", ".join(run.moved)
            log.warning("%s, so from here on the last digits may differ from an unbroken run's", moved)
    elif config.model.bigram and config.model.bigram_init == "counts":
        log.info("the bigram table starts from counted pairs of characters: the model knows them before its first step")


def log_evaluation(run: Run) -> None:
    """A line for people on the evaluation that was just made."""
    if run.step > 0:
        log.info("step %d: train %.4f, val %.4f", run.step, run.latest["loss_train"], run.latest["loss_val"])
    else:
        size = run.corpus.tokenizer.vocab_size
        guessing = f"pure guessing: ln {size} = {math.log(size):.4f}"
        log.info("before training: val %.4f; %s", run.latest["loss_val"], guessing)


def report(run: Run, status: str) -> None:
    """What a person wants to see at the end: figures, a text if any are wanted, where things are, what to type next."""
    try:
        print(f"\n{results_table(summary_of(run, status))}\n")
        if run.config.trainer.sample_length:
            best = checkpoints.model_from(checkpoints.load(run.folder / BEST), run.folder / BEST)
            print(f"{run.previews.sample(best, 500)}\n")
        print(f"Saved in {run.folder}: {', '.join(saved_files(run.folder))}")
        print(f"Watch:  tensorboard --logdir {shlex.quote(str(run.folder.parent))}")
        print(f"Sample: python sample.py {shlex.quote(f'checkpoint={run.folder}')}", flush=True)
    except OSError as error:
        drop_standard_output()
        log.warning("standard output took no more (%s), but all is saved in %s", error.strerror, run.folder)
    if run.config.data.fallback_reason:
        log.warning("NOT Tiny Shakespeare: %s. This was the built-in Playlet", run.config.data.fallback_reason)


def saved_files(folder: Path) -> list[str]:
    """The names of what a run has left, each checkpoint read back. Raises Damaged for one that is not what was written."""
    for name in (BEST, LAST):
        checkpoints.load(folder / name)
    return [name for name in FILES if (folder / name).exists()]
