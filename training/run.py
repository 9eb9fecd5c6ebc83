"""What a run is made of: its text, its model, what changes while it trains, and the folder that keeps it."""

import logging
import math
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from configs.schema import TrainConfig, UserError, values
from data.corpus import Corpus
from model.language_model import LanguageModel
from training import checkpoint as checkpoints
from training import distributed
from training.device import choose_setup
from training.evaluation import evaluate
from training.files import cut_short, first_free, length_of, remove_strays, write_text
from training.folders import BEST, CONFIG, FILES, LAST, PREVIOUS, SAMPLES, SUMMARY, holds_a_run
from training.initialization import new_model
from training.losses import MOST_UNREAD, Diverged, Losses
from training.optimizers import Optimizer, make_optimizer
from training.previews import Previews
from training.stopping import Stopped, StopSignal
from training.tracking import Tracker

log = logging.getLogger(__name__)


class Run:
    """The content of a checkpoint, alive, and the folder it is written to."""

    tracker: Tracker
    check: Callable[[], None] = staticmethod(lambda: None)

    def __init__(
        self,
        config: TrainConfig,
        corpus: Corpus,
        folder: Path,
        saved: checkpoints.Checkpoint | None = None,
        source: str = LAST,
    ) -> None:
        """A new run, or with `saved` the one that the file `source` of the folder holds; nothing is written yet.

        Raises UserError for what cannot be built here, and Damaged if the file cannot be used.
        """
        self.config, self.corpus, self.folder = config, corpus, folder
        self.resumed_from = None if saved is None else folder / source
        self.same_as_saved = False  # whether last.pt says all that this run is
        self.leads = distributed.leads()  # writes and speaks, where several processes share the run
        self.setup = choose_setup(config.trainer, dropout=config.model.dropout)
        torch.manual_seed(config.seed)
        model = new_model(config, corpus) if saved is None else checkpoints.model_from(saved, folder / source)
        model.use_attention(self.setup.attention_path)
        self.model: LanguageModel = model.to(self.setup.device)
        self.optimizer: Optimizer = make_optimizer(self.model, config.optimizer)
        self.name = uuid.uuid4().hex  # tells its files from any other run's
        self.step = 0  # optimizer updates so far
        self.best: dict[str, Any] = {"step": 0, "loss_val": math.inf, "waited": 0}  # waited: evaluations since
        nothing = {"loss_train": math.nan, "evaluated": -1, "loss_val": math.nan, "loss_val_by_position": []}
        self.latest: dict[str, Any] = nothing  # of the latest step, and of the evaluation after step `evaluated`
        self.losses = Losses()  # of the steps since they were last read
        self.points: dict[str, float] = {}  # of TensorBoard's curves, at this step
        self.seconds = {"train": 0.0, "eval": 0.0}
        self.time_is_up = False
        self.samples_length = 0  # bytes of samples.txt when it held no sample of this step yet
        self.recovered_best: checkpoints.Checkpoint | None = None
        self.moved: list[str] = []  # what is not as it was where the run was saved
        self.starts: list[dict[str, Any]] = []  # after which step, and with what typed, it was begun and gone on with
        if saved is not None:
            self._restore(saved, folder / source)
            self._look_at_best()
            self.same_as_saved = source == LAST and saved["config"] == asdict(config)
        distributed.own_random_numbers(config.seed, self.step)
        self.validation = torch.from_numpy(corpus.validation)
        self.baselines = corpus.baselines()
        self.previews = Previews(config, corpus, self.baselines)

    def _restore(self, saved: checkpoints.Checkpoint, path: Path) -> None:
        if saved["optimizer"] is None or saved["random"] is None:
            raise checkpoints.Damaged(f"{path} holds a model to sample from, as best.pt does, and no run to go on with")
        self.name, self.step, self.best, self.latest = saved["run"], saved["step"], saved["best"], saved["latest"]
        self.points, self.seconds, self.samples_length = saved["points"], saved["seconds"], saved["samples_length"]
        self.starts, self.losses.loss = saved["starts"], saved["latest"]["loss_train"]
        unfit = (ValueError, LookupError, TypeError, AttributeError, RuntimeError)
        with checkpoints.taken_for_damage(f"{path} is damaged: its optimizer or random state does not fit", unfit):
            checkpoints.restore_optimizer(self.optimizer, saved["optimizer"])
            checkpoints.restore_random_state(saved["random"], self.setup.device)
        for key, now in self._made_with().items():
            if (was := saved["versions"].get(key)) != now:
                self.moved.append(f"{key} was {was} and is {now}")

    def _look_at_best(self) -> None:
        """Hold best.pt against what the state says of it, and see where to have it from if they differ."""
        path, lost = self.folder / BEST, None
        try:
            found = checkpoints.load(path)
            checkpoints.model_from(found, path)
            if found["run"] != self.name:
                raise checkpoints.Damaged(f"{path} is of another run")
            if found["best"]["loss_val"] == self.best["loss_val"]:
                return
            if found["step"] > self.best["step"] or not math.isfinite(self.best["loss_val"]):
                self.best = found["best"]  # this is the state before: the run will come there
                return
        except checkpoints.Damaged as damage:
            if not math.isfinite(self.best["loss_val"]):
                return  # none was saved yet
            lost = damage
        self.recovered_best = checkpoints.best_from_states(self.folder, self.best["step"])
        if self.recovered_best is not None:
            if lost is not None:  # else the process was killed before it wrote best.pt
                log.warning("%s; it is written again, since a state of the run has the same weights", lost)
            return
        log.warning("%s; the best model from now on takes its place", lost or f"{path} is not the run's best any more")
        self.best = {"step": self.step, "loss_val": math.inf, "waited": 0}
        self.latest["evaluated"] = -1  # now, that is

    def open_folder(self, check: Callable[[], None] = lambda: None) -> None:
        """Claim the folder and open what is written there. Raises UserError if it has a run.

        `check` is called before every save, and raises UserError once the folder is not this process's own any more.

        A run that goes on takes back what was shown of its step and later ones, and shows its step anew. So each step is
        there once, whenever the process before was stopped. What was there is given up last, when all else has been
        written.
        """
        if not self.leads:
            return
        last, self.check = self.folder / LAST, check
        if self.resumed_from is None:
            if reason := holds_a_run(self.folder):
                raise UserError(reason)
        elif self.resumed_from != last and last.exists():
            # Else the next save would put it in the place of a good one.
            os.replace(last, first_free(last.with_name(f"{LAST}.damaged")))
        remove_strays(self.folder, FILES)
        described = yaml.safe_dump(asdict(self.config), sort_keys=False, allow_unicode=True)
        shown = {key: value for key, value in values(self.config).items() if key == "data.name" or "data." not in key}
        self.tracker = Tracker(self.folder, shown, ["loss/val", "bits_per_char/val"], self.step)
        try:
            self.tracker.text("config", described, self.step)
            self.tracker.scalars(self.points, self.step)
            if self.recovered_best is not None:
                checkpoints.save(self.folder / BEST, self.recovered_best)
                self.recovered_best = None
            if not self.same_as_saved:
                self.save()  # from its first second on there is this run to go on with, and with its options
            write_text(self.folder / CONFIG, described)
            cut_short(self.folder / SAMPLES, self.samples_length)
            self.samples_length = length_of(self.folder / SAMPLES)  # less, where somebody has cut it
            (self.folder / SUMMARY).unlink(missing_ok=True)  # until it ends again
            if self.latest["evaluated"] == self.step:
                self._show()
        except BaseException:
            self.tracker.close(succeeded=False)
            raise

    def advance(self, loss: Tensor, grad_norm: Tensor, seconds: float) -> None:
        """One more step has been taken. Its loss stays where it was computed, so that Python need not wait for it."""
        if self.latest["evaluated"] == self.step:  # only then was a sample added
            self.samples_length = length_of(self.folder / SAMPLES)
        self.step += 1
        distributed.own_random_numbers(self.config.seed, self.step)
        self.seconds["train"] += seconds
        self.points = {}
        self.losses.add(self.step, self.lr, loss, grad_norm)
        if len(self.losses.unread) == MOST_UNREAD:
            self.read_losses()

    def read_losses(self) -> None:
        """Learn the loss of the latest step, for which Python waits for a GPU. Raises Diverged if any was not finite."""
        started = time.perf_counter()
        try:
            self.losses.read()
        finally:
            self.latest["loss_train"] = self.losses.loss
            self.seconds["train"] += time.perf_counter() - started

    def agree(self, stop: StopSignal) -> bool:
        """Whether a signal has come to any process of the run, which must all end after the same step."""
        limit = self.config.trainer.max_minutes
        time_is_up = limit is not None and self.seconds["train"] >= 60 * limit
        stopping, self.time_is_up = distributed.anywhere(stop.received is not None, time_is_up)
        return stopping

    def leave_if_stopped(self, stop: StopSignal) -> None:
        """Raises Stopped once a signal has come to any process of the run."""
        if self.agree(stop):
            raise Stopped

    @property
    def ending(self) -> str | None:
        """Why no step is left to take, in the words of summary.json; None while there is one."""
        trainer = self.config.trainer
        if self.step >= trainer.max_steps:
            return "finished"
        if self.time_is_up:
            return "time_limit"
        if trainer.patience is not None and self.best["waited"] >= trainer.patience:
            return "early_stopped"
        return None

    def draw(self, points: dict[str, float]) -> None:
        """Put a point of each named curve into TensorBoard, at this step, unless it is there."""
        if self.leads:
            self.tracker.scalars({tag: value for tag, value in points.items() if tag not in self.points}, self.step)
        self.points |= points

    def evaluate_and_save(self, between: Callable[[int], object] = lambda counted: None) -> None:
        """Evaluate the whole validation part, save, then show pictures and a sample.

        `between` is called before each batch; what it raises ends the evaluation, with everything as it was before.
        """
        self.read_losses()
        started = time.perf_counter()
        evaluation = evaluate(self.model, self.validation, self.setup, between=between, together=True)
        self._refuse_unsound(evaluation.nats)
        self.seconds["eval"] += time.perf_counter() - started
        self.latest["evaluated"], self.latest["loss_val"] = self.step, evaluation.nats
        self.latest["loss_val_by_position"] = evaluation.nats_by_position
        points = {"loss/val": evaluation.nats, "bits_per_char/val": evaluation.bits_per_char}
        if self.corpus.floor is not None:
            points["loss/floor"] = self.corpus.floor
        self.draw(points)
        self.best["waited"] += 1
        # What learned the batch by heart is kept, whatever the text says of it.
        better = evaluation.nats <= self.best["loss_val"] or self.config.trainer.overfit_batch
        if better:
            self.best = {"step": self.step, "loss_val": evaluation.nats, "waited": 0}
        self.save()
        if better and self.leads:  # second: after a kill between the two, best.pt can be had from last.pt
            checkpoints.save(self.folder / BEST, self._content(to_go_on=False))
        self._show()

    def save(self) -> None:
        """Write last.pt, and keep the one before it as previous.pt. Raises Diverged for a state that is not sound."""
        self.read_losses()
        if not self.leads:
            return
        window = self.validation[: self.config.model.block_size + 1]
        self._refuse_unsound(evaluate(self.model, window, self.setup).nats)
        self.check()
        self.tracker.flush()  # first: a run that goes on from this file does not draw what came before it again
        checkpoints.save(self.folder / LAST, self._content(to_go_on=True), previous=self.folder / PREVIOUS)

    def _refuse_unsound(self, nats: float) -> None:
        if not math.isfinite(nats):
            raise Diverged("the validation loss", self.step, self.lr, self.latest["loss_train"])
        if not checkpoints.has_finite_weights(self.model):  # a rare character's row, which this text does not need
            raise Diverged("a weight", self.step, self.lr, self.latest["loss_train"])

    def _show(self) -> None:
        if not self.leads:
            return
        self.previews.show(self.model, self.latest, self.step, self.tracker, self.folder / SAMPLES)
        self.tracker.flush()

    @property
    def lr(self) -> float:
        """The learning rate of the latest step, of the matrices where the model has any."""
        return float(self.optimizer.param_groups[0]["lr"])

    def _content(self, to_go_on: bool) -> checkpoints.Checkpoint:
        """What last.pt holds, from which the run goes on, or best.pt, for sampling and sharing."""
        return {
            "format": checkpoints.FORMAT,
            "run": self.name,
            "model": self.model.state_dict(),
            "sizes": self.model.sizes(),
            "vocabulary": self.corpus.tokenizer.vocabulary,
            "corpus": self.corpus.identity(),
            "config": asdict(self.config),
            "starts": self.starts,
            "step": self.step,
            "best": self.best,
            "latest": self.latest,
            "points": self.points,
            "seconds": self.seconds,
            "samples_length": self.samples_length,
            "optimizer": self.optimizer.state_dict() if to_go_on else None,
            "random": checkpoints.random_state(self.setup.device) if to_go_on else None,
            "versions": self._made_with(),
        }

    def _made_with(self) -> dict[str, str]:
        """All that the bits of the run depend on beside its configuration and its text."""
        return {**checkpoints.versions(), **self.setup.facts()}

    def chars_per_second(self) -> float:
        """Training characters for each second spent on training alone."""
        characters = self.step * self.config.trainer.batch_size * self.config.model.block_size
        return characters / self.seconds["train"] if self.seconds["train"] else 0.0
