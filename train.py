"""Train a model on a text.

The commands that people need first:

    python train.py                                        Tiny Shakespeare, about a minute on two cores
    python train.py data=text data.path=mine.txt           a text of yours
    python train.py model=head model.block_size=8 model.head_size=16
    python train.py -m model.head_size=8,16,32 seed=1,2    a sweep: every combination
    python train.py resume=runs/NAME                       go on with a run; resume=latest: with the newest
    python train.py debug=smoke                            everything once, in seconds
    torchrun --standalone --nproc_per_node=2 train.py      one run in two processes
    tensorboard --logdir runs                              watch
    python sample.py prompt="ROMEO:"                       read
"""

import os
import signal
import sys

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
    # Ctrl-C while Python is still importing needs no traceback.
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))

from configs.command_line import CommandLine
from configs.launch import launch
from configs.overrides import override_of
from configs.schema import TrainConfig, UserError

COMMAND_LINE = CommandLine("train", TrainConfig, __doc__)
if __name__ == "__main__":  # help, completion and refusals do not wait for torch
    COMMAND_LINE.prepare(sys.argv[1:])

import contextlib
import logging
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
from training.distributed import (
    anywhere,
    averaging,
    count,
    end_together,
    folder_before_restart,
    from_first,
    in_turn,
    joined,
    own_part,
    parallel,
    refuse_differences,
    remember,
    step_back,
)
from training.folders import LAST, TRACE, folder_to_resume
from training.losses import Diverged
from training.precision import in_precision, loss_scale, unscale_gradients
from training.profiling import profiling
from training.results import show_sweep
from training.resuming import prepared_run
from training.run import Run
from training.schedule import lr_factor
from training.speaking import introduce, log_evaluation, report, writing_to
from training.stopping import Stopped, StopSignal
from training.summary import shared_facts, summary_of
from training.tracking import progress_bar, write_summary

log = logging.getLogger(__name__)


def train(run: Run, stop: StopSignal) -> str:
    """The training loop; returns why it ended. It ends between two steps, and last.pt is then up to date."""
    config, model, optimizer, precision = run.config.trainer, run.model, run.optimizer, run.setup.precision
    text = torch.from_numpy(run.corpus.train)
    batches = Batches(text, run.config.model.block_size, config.batch_size, run.config.seed, run.setup.device)
    scale = loss_scale(precision, config.batch_size // count() * run.config.model.block_size)
    network: nn.Module = model
    if config.compile:
        part = own_part(batches.windows(0)).chunk(config.grad_accumulation)[0]
        network = compiled(model, lambda fast: loss_of(in_precision(fast, precision), part))
        if anywhere(network is model)[0]:  # in one process it failed
            network = model
    network = parallel(network)
    model.train()
    with (
        progress_bar(config.max_steps, run.step, shown=run.leads) as bar,
        profiling(run.folder / TRACE, config.profile and run.leads) as end_of_step,
    ):

        def show_bar() -> None:
            losses = f"train {run.latest['loss_train']:.3f}, val {run.latest['loss_val']:.3f}"
            bar.set_postfix_str(f"{losses}, {run.chars_per_second():,.0f} characters/s", refresh=False)

        while True:
            stopping = run.agree(stop)
            due = run.ending is not None or run.step % config.eval_interval == 0
            if due and not stopping and run.latest["evaluated"] != run.step:
                with contextlib.suppress(Stopped):  # then the run goes on with this evaluation
                    run.evaluate_and_save(between=lambda _: run.leave_if_stopped(stop))
                    log_evaluation(run)
                    show_bar()
                    bar.refresh()
                stopping = run.agree(stop)
            if run.ending is not None and run.latest["evaluated"] == run.step:
                return run.ending
            if stopping:
                run.save()
                return "interrupted"

            started = time.perf_counter()
            factor = lr_factor(run.step, config.max_steps, run.config.optimizer)
            for group in optimizer.param_groups:
                group["lr"] = factor * group["peak_lr"]
            logits_of = in_precision(network, precision)
            loss = torch.zeros((), device=run.setup.device)
            windows = batches.windows(0 if config.overfit_batch else run.step)  # (batch_size, T + 1)
            parts = own_part(windows).chunk(config.grad_accumulation)
            for number, part in enumerate(parts, start=1):
                with averaging(network, last=number == len(parts)):
                    part_loss = loss_of(logits_of, part) / len(parts)
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


def main(config: TrainConfig) -> float:
    """One run, from a text to a trained model and its figures; returns the best validation loss in nats per character."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    if folder.is_relative_to(Path.cwd()):  # shorter to read and to paste
        folder = folder.relative_to(Path.cwd())
    overrides = list(HydraConfig.get().overrides.task)
    try:
        with joined(), torch_errors_in_words():
            best = one_run(config, from_first(folder), overrides)
            end_together()
            return best
    except UserError as error:
        if launch().rank == 0:
            raise
        step_back(error)


def one_run(config: TrainConfig, folder: Path, overrides: list[str]) -> float:
    """The run of `main`, in one of the processes that share it, or in one alone."""
    config.resume = from_first(config.resume)
    if from_first(folder_before_restart()) is not None:
        overrides = []  # they are the run's own by now
    with writing_to(folder) as check, StopSignal() as stop:
        run, changes = in_turn(lambda: prepared_run(config, folder, overrides))
        refuse_differences(shared_facts(run))
        run.open_folder(check)
        remember(folder)
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
                if run.leads:
                    run.tracker.close(in_order)
                    check()
                    write_summary(folder, summary_of(run, status))
        if status == "interrupted":
            # Said only of what is there; and no process ends before that.
            saved = from_first(checkpoints.load(folder / LAST)["step"] if run.leads else None)
            go_on = shlex.quote(f"resume={folder}")
            log.info("interrupted: saved after step %d. Go on with: python train.py %s", saved, go_on)
            raise SystemExit(stop.exit_status)
        if run.leads:
            report(run, status)
    return float(run.best["loss_val"])


def before_any_run(config: Any, sweeping: bool) -> list[str]:
    """Find the folder of a run to go on with; have the text of a new one at hand, or turn a plain run to the Playlet.

    In a sweep, among several processes, or with data.fallback=null, CannotBeHad is raised instead: nobody may find a night
    of runs on another text.
    """
    if launch().size > 1 and sweeping:
        raise UserError(
            f"-m runs one job after another, and {launch().size} processes share one: leave out -m or torchrun"
        )
    if launch().rank > 0:
        return [override_of("hydra.run.dir", ".")]  # where nothing is written: the first process has the folder
    if not sweeping and (folder := folder_before_restart()) is not None:
        return [override_of("hydra.run.dir", str(folder)), override_of("resume", str(folder))]
    if config.resume is not None:
        return [override_of("hydra.run.dir", str(folder_to_resume(config.resume)))]
    if config.data.name != "tiny_shakespeare":
        return []
    try:
        texts.tiny_shakespeare(config.data)
    except texts.CannotBeHad as error:
        if sweeping or launch().size > 1 or config.data.fallback is None:
            raise
        return ["data=playlet", override_of("data.fallback_reason", str(error))]
    return []


if __name__ == "__main__":
    COMMAND_LINE.run(main, before_any_run, show_sweep)
