"""What a run is made of: its text, its model, what changes while it trains, and the folder that keeps it."""

import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import yaml
from torch.optim import Optimizer

from configs.schema import TrainConfig, UserError, values
from data.corpus import Corpus
from data.ngrams import baseline_losses, bigram_log_probabilities
from model.language_model import LanguageModel
from training import checkpoint as checkpoints
from training.device import choose_setup
from training.evaluation import evaluate
from training.files import remove_strays, write_text
from training.optimizers import make_optimizer
from training.previews import Previews, take_back_samples
from training.tracking import Tracker

log = logging.getLogger(__name__)

_LARGEST_BIGRAM_VOCABULARY = 8192  # above it the table, its gradient and AdamW's two memories take over a gigabyte


class Diverged(UserError):
    """A loss, gradient or weight is not a finite number any more; nothing that led to it is saved."""

    def __init__(self, what: str, step: int, lr: float, last_loss: float) -> None:
        last = f", last finite training loss {last_loss:.4f}" if math.isfinite(last_loss) else ""
        super().__init__(
            f"{what} is not a finite number at step {step} (learning rate {lr:.3g}{last}): stopped before it reached a saved "
            "file. Try lower optimizer.lr and optimizer.table_lr, or a longer optimizer.warmup_steps"
        )


class Run:
    """The content of a checkpoint, alive, and the folder it is written to."""

    tracker: Tracker

    def __init__(
        self,
        config: TrainConfig,
        corpus: Corpus,
        folder: Path,
        saved: checkpoints.Checkpoint | None = None,
        source: str = "last.pt",
    ) -> None:
        """A new run, or with `saved` the one that the file `source` of the folder holds; nothing is written yet.

        Raises UserError for what cannot be built here, and Damaged if the file cannot be used.
        """
        self.config, self.corpus, self.folder = config, corpus, folder
        self.resumed_from = None if saved is None else folder / source
        self.setup = choose_setup(config.trainer)
        torch.manual_seed(config.seed)
        model = new_model(config, corpus) if saved is None else checkpoints.model_from(saved, folder / source)
        model.use_attention(self.setup.attention_path)
        self.model: LanguageModel = model.to(self.setup.device)
        self.optimizer: Optimizer = make_optimizer(self.model, config.optimizer)
        self.step = 0  # optimizer updates so far
        self.best: dict[str, Any] = {"step": 0, "loss_val": math.inf, "waited": 0}  # waited: evaluations since
        # The losses of the latest step and of the latest evaluation, which was after step `evaluated`.
        nothing = {"loss_train": math.nan, "evaluated": -1, "loss_val": math.nan, "loss_val_by_position": []}
        self.latest: dict[str, Any] = nothing
        self.points: dict[str, float] = {}  # of TensorBoard's curves, at this step
        self.seconds = {"train": 0.0, "eval": 0.0}
        self.loss_of_best_file = math.inf  # what best.pt holds; inf: there is none
        self.recovered_best: checkpoints.Checkpoint | None = None
        self.moved: list[str] = []  # what is not as it was where the run was saved
        if saved is not None:
            self._restore(saved, folder / source)
            self._look_at_best()
        self.validation = torch.from_numpy(corpus.validation)
        self.baselines = baseline_losses(corpus.train, corpus.validation, corpus.tokenizer.vocab_size)
        self.previews = Previews(config, corpus, self.baselines)

    def _restore(self, saved: checkpoints.Checkpoint, path: Path) -> None:
        if saved["optimizer"] is None or saved["random"] is None:
            raise checkpoints.Damaged(f"{path} holds a model to sample from, as best.pt does, and no run to go on with")
        self.step, self.best, self.latest = saved["step"], saved["best"], saved["latest"]
        self.points, self.seconds = saved["points"], saved["seconds"]
        try:
            checkpoints.restore_optimizer(self.optimizer, saved["optimizer"])
            checkpoints.restore_random_state(saved["random"], self.setup.device)
        except (ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
            raise checkpoints.Damaged(f"{path} is damaged: its optimizer or random state does not fit") from error
        here = self._made_with()
        self.moved = [
            f"{key} {was} -> {here.get(key)}" for key, was in saved["versions"].items() if was != here.get(key)
        ]

    def _look_at_best(self) -> None:
        """See what best.pt holds, and where it is lost, whether a state holds the same."""
        path = self.folder / "best.pt"
        try:
            found = checkpoints.load(path)
            checkpoints.model_from(found, path)
            self.loss_of_best_file = found["best"]["loss_val"]
        except checkpoints.Damaged as damage:
            if not math.isfinite(self.best["loss_val"]):
                return  # none was saved yet
            self.recovered_best = checkpoints.best_from_states(self.folder, self.best["step"])
            if self.recovered_best is None:
                log.warning("%s; the best model from now on takes its place", damage)
                self.best = {"step": self.step, "loss_val": math.inf, "waited": 0}
            else:
                log.warning("%s; it is written again, since a state of the run has the same weights", damage)
                self.loss_of_best_file = self.best["loss_val"]

    def open_folder(self) -> None:
        """Claim the folder, which this process holds, and open what is written there. Raises UserError if it has a run.

        A run that goes on takes back what was shown of its step and later ones, and shows its step anew. So each step is
        there once, whenever the process before was stopped.
        """
        last = self.folder / "last.pt"
        if self.resumed_from is None:
            if any((self.folder / name).exists() for name in ("last.pt", "previous.pt", "best.pt", "summary.json")):
                advice = f"choose another folder, or go on with resume={self.folder}"
                raise UserError(f"{self.folder} holds a run already: {advice}")
        elif self.resumed_from != last and last.exists():
            # Else the next save would put it in the place of a good one.
            os.replace(last, last.with_name("last.pt.damaged"))
        remove_strays(self.folder)
        # A run that goes on has no summary until it ends again.
        (self.folder / "summary.json").unlink(missing_ok=True)
        take_back_samples(self.folder / "samples.txt", self.step)
        described = yaml.safe_dump(asdict(self.config), sort_keys=False, allow_unicode=True)
        write_text(self.folder / "config.yaml", described)
        shown = {key: value for key, value in values(self.config).items() if key == "data.name" or "data." not in key}
        self.tracker = Tracker(self.folder, shown, ["loss/val", "bits_per_char/val"], self.step)
        try:
            self.tracker.text("config", described, self.step)
            self.tracker.scalars(self.points, self.step)
            if self.recovered_best is not None:
                checkpoints.save(self.folder / "best.pt", self.recovered_best)
            if self.resumed_from != last:
                self.save()  # from its first second there is something to go on with
            if self.latest["evaluated"] == self.step:
                self._show()
        except BaseException:
            self.tracker.close(succeeded=False)
            raise

    def advance(self, loss_train: float, seconds: float) -> None:
        """One more step has been taken."""
        self.step += 1
        self.latest["loss_train"] = loss_train
        self.seconds["train"] += seconds
        self.points = {}

    @property
    def ending(self) -> str | None:
        """Why no step is left to take, in the words of summary.json; None while there is one."""
        trainer = self.config.trainer
        if self.step >= trainer.max_steps:
            return "finished"
        if trainer.max_minutes is not None and self.seconds["train"] >= 60 * trainer.max_minutes:
            return "time_limit"
        if trainer.patience is not None and self.best["waited"] >= trainer.patience:
            return "early_stopped"
        return None

    def draw(self, points: dict[str, float]) -> None:
        """Put a point of each named curve into TensorBoard, at this step."""
        self.points |= points
        self.tracker.scalars(points, self.step)

    def evaluate_and_save(self, between: Callable[[int], object] = lambda counted: None) -> None:
        """Evaluate the whole validation part, save, then show pictures and a sample.

        `between` is called before each batch; what it raises ends the evaluation, with everything as it was before.
        """
        started = time.perf_counter()
        evaluation = evaluate(self.model, self.validation, self.setup, between=between)
        self._refuse_unsound(evaluation.nats)
        self.seconds["eval"] += time.perf_counter() - started
        self.latest["evaluated"], self.latest["loss_val"] = self.step, evaluation.nats
        self.latest["loss_val_by_position"] = evaluation.nats_by_position
        points = {"loss/val": evaluation.nats, "bits_per_char/val": evaluation.bits_per_char}
        if self.corpus.floor is not None:
            points["loss/floor"] = self.corpus.floor
        self.draw(points)
        self.best["waited"] += 1
        overfitting = self.config.trainer.overfit_batch  # what learned the batch is kept, whatever the text says of it
        if evaluation.nats <= self.best["loss_val"] or overfitting:
            self.best = {"step": self.step, "loss_val": evaluation.nats, "waited": 0}
            # After a kill between the two saves of an evaluation, best.pt can be ahead of the run.
            if evaluation.nats <= self.loss_of_best_file or overfitting:
                checkpoints.save(self.folder / "best.pt", self._content(to_go_on=False))
                self.loss_of_best_file = evaluation.nats
        self.save()
        self._show()

    def save(self) -> None:
        """Write last.pt, and keep the one before it as previous.pt. Raises Diverged for a state that is not sound."""
        window = self.validation[: self.config.model.block_size + 1]
        self._refuse_unsound(evaluate(self.model, window, self.setup).nats)
        self.tracker.flush()  # first: a run that goes on from this file does not draw what came before it again
        checkpoints.save(self.folder / "last.pt", self._content(to_go_on=True), previous=self.folder / "previous.pt")

    def _refuse_unsound(self, nats: float) -> None:
        if not math.isfinite(nats):
            raise Diverged("the validation loss", self.step, self.lr, self.latest["loss_train"])
        if not checkpoints.has_finite_weights(self.model):  # a rare character's row, which this text does not need
            raise Diverged("a weight", self.step, self.lr, self.latest["loss_train"])

    def _show(self) -> None:
        self.previews.show(self.model, self.latest, self.step, self.tracker, self.folder / "samples.txt")
        self.tracker.flush()

    @property
    def lr(self) -> float:
        """The learning rate of the latest step, of the matrices where the model has any."""
        return float(self.optimizer.param_groups[0]["lr"])

    def _content(self, to_go_on: bool) -> checkpoints.Checkpoint:
        """What last.pt holds, from which the run goes on, or best.pt, for sampling and sharing."""
        return {
            "format": checkpoints.FORMAT,
            "model": self.model.state_dict(),
            "sizes": self.model.sizes(),
            "vocabulary": self.corpus.tokenizer.vocabulary,
            "corpus": self.corpus.identity(),
            "config": asdict(self.config),
            "step": self.step,
            "best": self.best,
            "latest": self.latest,
            "points": self.points,
            "seconds": self.seconds,
            "optimizer": self.optimizer.state_dict() if to_go_on else None,
            "random": checkpoints.random_state(self.setup.device) if to_go_on else None,
            "versions": self._made_with(),
        }

    def _made_with(self) -> dict[str, str]:
        """All that the bits of the run depend on beside its configuration and its text."""
        return {**checkpoints.versions(), **self.setup.facts()}

    def best_model(self) -> LanguageModel:
        """The model of best.pt."""
        path = self.folder / "best.pt"
        return checkpoints.model_from(checkpoints.load(path), path)

    def chars_per_second(self) -> float:
        """Training characters for each second spent on training alone."""
        characters = self.step * self.config.trainer.batch_size * self.config.model.block_size
        return characters / self.seconds["train"] if self.seconds["train"] else 0.0

    def summary(self, status: str, overrides: list[str]) -> dict[str, Any]:
        """What summary.json holds; losses in nats per character, of the whole validation part."""
        best, loss_train = self.best["loss_val"], self.latest["loss_train"]
        return {
            "status": status,
            "model": self.config.model.name,
            "steps": self.step,
            "best_step": self.best["step"],
            "loss_train": loss_train if math.isfinite(loss_train) else None,
            "loss_val": best if math.isfinite(best) else None,
            "bits_per_char": best / math.log(2) if math.isfinite(best) else None,
            "last_loss_val_by_position": self.latest["loss_val_by_position"],
            "train_seconds": self.seconds["train"],
            "eval_seconds": self.seconds["eval"],
            "chars_per_second": self.chars_per_second(),
            "parameters": sum(self.model.parameter_counts().values()),
            "corpus": self.corpus.identity(),
            "baselines": self.baselines,
            "floor": self.corpus.floor,
            "seed": self.config.seed,
            "overrides": overrides,
        }


def new_model(config: TrainConfig, corpus: Corpus) -> LanguageModel:
    """An untrained model, its bigram table counted from the training part where the configuration says so."""
    vocab_size = corpus.tokenizer.vocab_size
    if config.model.bigram and vocab_size > _LARGEST_BIGRAM_VOCABULARY:
        raise UserError(
            f"a bigram table for {vocab_size:,} distinct characters would not fit (at most {_LARGEST_BIGRAM_VOCABULARY:,}): "
            "set model.bigram=false"
        )
    model = LanguageModel(config.model, vocab_size)
    if model.bigram is not None and config.model.bigram_init == "counts":
        table = bigram_log_probabilities(corpus.train, vocab_size)
        model.bigram.weight.data.copy_(torch.from_numpy(table))
    return model
