"""Train a model on a text.

The commands that people need first:

    python train.py                                        Tiny Shakespeare, about a minute on two cores
    python train.py data=text data.path=mine.txt           a text of yours
    python train.py model=head model.block_size=8 model.head_size=16
    python train.py -m model.head_size=8,16,32 seed=1,2    a sweep: every combination
    python train.py resume=runs/NAME                       go on with a run; resume=latest: with the newest
    python train.py debug=smoke                            everything once, in seconds
    tensorboard --logdir runs                              watch
    python sample.py prompt="ROMEO:"                       read
"""

import os
import signal
import sys

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
    # Ctrl-C while Python is still importing needs no traceback.
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))

from configs.command_line import CommandLine, drop_standard_output
from configs.overrides import override_of
from configs.schema import TrainConfig, UserError

COMMAND_LINE = CommandLine("train", TrainConfig, __doc__)
if __name__ == "__main__":  # help, completion and refusals do not wait for torch
    COMMAND_LINE.prepare(sys.argv[1:])

import contextlib
import logging
import math
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from hydra.core.hydra_config import HydraConfig
from torch import Tensor, nn

from data import corpus as texts
from data.batches import Batches
from training import checkpoint as checkpoints
from training.device import compiled, torch_errors_in_words
from training.files import held
from training.folders import BEST, FILES, LAST, TRACE, folder_to_resume, refuse_odd_files
from training.losses import Diverged
from training.precision import in_precision, loss_scale, unscale_gradients
from training.previews import MOST_MAPS
from training.profiling import profiling
from training.resuming import prepared_run
from training.run import Run
from training.schedule import lr_factor
from training.stopping import Stopped, StopSignal
from training.tracking import logging_to, progress_bar, results_table, write_summary

log = logging.getLogger(__name__)


def train(run: Run, stop: StopSignal) -> str:
    """The training loop; returns why it ended. It ends between two steps, and last.pt is then up to date."""
    config, model, optimizer, precision = run.config.trainer, run.model, run.optimizer, run.setup.precision
    text = torch.from_numpy(run.corpus.train).to(run.setup.device)
    batches = Batches(text, run.config.model.block_size, config.batch_size, run.config.seed)
    scale = loss_scale(precision, config.batch_size * run.config.model.block_size)
    network: nn.Module = model
    if config.compile:
        part = batches.windows(0).chunk(config.grad_accumulation)[0]
        network = compiled(model, lambda fast: loss_of(in_precision(fast, precision), part))
    model.train()
    with (
        progress_bar(config.max_steps, run.step) as bar,
        profiling(run.folder / TRACE, config.profile) as end_of_step,
    ):

        def show_bar() -> None:
            losses = f"train {run.latest['loss_train']:.3f}, val {run.latest['loss_val']:.3f}"
            bar.set_postfix_str(f"{losses}, {run.chars_per_second():,.0f} characters/s", refresh=False)

        while True:
            due = run.ending is not None or run.step % config.eval_interval == 0
            if due and run.latest["evaluated"] != run.step:
                with contextlib.suppress(Stopped):  # then the run goes on with this evaluation
                    run.evaluate_and_save(between=lambda _: stop.check())
                    log_evaluation(run)
                    show_bar()
                    bar.refresh()
            if run.ending is not None and run.latest["evaluated"] == run.step:
                return run.ending
            if stop.received:
                run.save()
                return "interrupted"

            started = time.perf_counter()
            factor = lr_factor(run.step, config.max_steps, run.config.optimizer)
            for group in optimizer.param_groups:
                group["lr"] = factor * group["peak_lr"]
            logits_of = in_precision(network, precision)
            loss = torch.zeros((), device=run.setup.device)
            windows = batches.windows(0 if config.overfit_batch else run.step)  # (batch_size, T + 1)
            for part in windows.chunk(config.grad_accumulation):
                part_loss = loss_of(logits_of, part) / config.grad_accumulation
                (part_loss * scale).backward()
                loss += part_loss.detach()
            unscale_gradients(model, scale)
            grad_norm = optimizer.clip_gradients(run.config.optimizer.grad_clip)
            optimizer.step()
            optimizer.zero_grad()
            run.advance(loss, grad_norm, time.perf_counter() - started)

            if run.step % config.log_interval == 0 or run.ending is not None:
                run.read_losses()
                points = {
                    "loss/train": run.latest["loss_train"],
                    "optim/grad_norm": run.losses.grad_norm,
                    "optim/lr": run.lr,
                }
                run.draw({**points, "speed/chars_per_s": run.chars_per_second()})
                show_bar()
            if config.save_interval is not None and run.step % config.save_interval == 0:
                run.save()
            bar.update()
            end_of_step()


def loss_of(logits_of: Callable[..., Tensor], windows: Tensor) -> Tensor:
    """The mean of -log P over the windows (B, T + 1): each character but the first is a target."""
    logits = logits_of(windows[:, :-1])  # (B, T, V)
    return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


def log_evaluation(run: Run) -> None:
    """A line for people on the evaluation that was just made."""
    if run.step > 0:
        log.info("step %d: train %.4f, val %.4f", run.step, run.latest["loss_train"], run.latest["loss_val"])
    else:
        size = run.corpus.tokenizer.vocab_size
        guessing = f"pure guessing: ln {size} = {math.log(size):.4f}"
        log.info("before training: val %.4f; %s", run.latest["loss_val"], guessing)


def main(config: TrainConfig) -> float:
    """One run, from a text to a trained model and its figures; returns the best validation loss in nats per character."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    if folder.is_relative_to(Path.cwd()):  # shorter to read and to paste
        folder = folder.relative_to(Path.cwd())
    overrides = list(HydraConfig.get().overrides.task)
    refuse_odd_files(folder)
    with held(folder) as check, logging_to(folder), StopSignal() as stop, torch_errors_in_words():
        run, changes = prepared_run(config, folder, overrides)
        run.open_folder(check)
        status = "failed"
        try:
            introduce(run, overrides, changes)
            status = train(run, stop)
        except Diverged:
            status = "diverged"
            raise
        finally:
            in_order = status not in ("failed", "diverged")
            # Where the disk is full, say, the first error is the one to tell.
            with contextlib.nullcontext() if in_order else contextlib.suppress(OSError, UserError):
                run.tracker.close(in_order)
                check()
                write_summary(folder, run.summary(status))
        if status == "interrupted":
            saved = checkpoints.load(folder / LAST)["step"]  # said only of what is there
            go_on = shlex.quote(f"resume={folder}")
            log.info("interrupted: saved after step %d. Go on with: python train.py %s", saved, go_on)
            raise SystemExit(stop.exit_status)
        report(run, status)
    return float(run.best["loss_val"])


def report(run: Run, status: str) -> None:
    """What a person wants to see at the end: figures, a text if any are wanted, where things are, what to type next."""
    try:
        print(f"\n{results_table(run.summary(status))}\n")
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


def before_any_run(config: Any, sweeping: bool) -> list[str]:
    """Find the folder of a run to go on with; have the text of a new one at hand, or turn a plain run to the Playlet.

    In a sweep, or with data.fallback=null, CannotBeHad is raised instead: nobody may find a night of runs on another text.
    """
    processes = os.environ.get("WORLD_SIZE", "1")
    if processes not in ("", "0", "1"):
        raise UserError(
            f"{processes} processes were started; training in several is not supported: run python train.py"
        )
    if config.resume is not None:
        return [override_of("hydra.run.dir", str(folder_to_resume(config.resume)))]
    if config.data.name != "tiny_shakespeare":
        return []
    try:
        texts.tiny_shakespeare(config.data)
    except texts.CannotBeHad as error:
        if sweeping or config.data.fallback is None:
            raise
        return ["data=playlet", override_of("data.fallback_reason", str(error))]
    return []


if __name__ == "__main__":
    COMMAND_LINE.run(main, before_any_run)
