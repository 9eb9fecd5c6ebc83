"""What a run is made of: its text, its model, what changes while it trains, and the folder that keeps it."""

import logging
import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from configs.schema import TrainConfig, UserError, values
from data.corpus import Corpus
from data.ngrams import baseline_losses, bigram_log_probabilities
from model.generation import generate
from model.language_model import LanguageModel
from training import checkpoint as checkpoints
from training.device import choose_setup
from training.evaluation import evaluate
from training.optimizers import make_optimizer
from training.tracking import Tracker

log = logging.getLogger(__name__)

_LARGEST_BIGRAM_VOCABULARY = 8192  # above it the table, its gradient and AdamW's two memories take over a gigabyte


class Diverged(UserError):
    """A loss or gradient is not a finite number any more; no step was taken with it."""

    def __init__(self, what: str, step: int, lr: float, last_loss: float) -> None:
        super().__init__(
            f"{what} is not a finite number at step {step} (learning rate {lr:.3g}, last finite training loss {last_loss:.4f}): "
            "stopped before it reached a saved file. Try a lower optimizer.lr or a longer optimizer.warmup_steps"
        )


class Run:
    """The content of a checkpoint, alive, and where it is written."""

    def __init__(
        self, config: TrainConfig, corpus: Corpus, folder: Path, saved: checkpoints.Checkpoint | None = None
    ) -> None:
        """A new run, or with `saved` the one that a checkpoint holds. Raises UserError for what cannot be built here."""
        self.config, self.corpus, self.folder = config, corpus, folder
        self.setup = choose_setup(config.trainer)
        torch.manual_seed(config.seed)
        model = new_model(config, corpus) if saved is None else checkpoints.model_from(saved, folder / "last.pt")
        self.model: LanguageModel = model.to(self.setup.device)
        self.optimizer: Optimizer = make_optimizer(self.model, config.optimizer)
        self.step = 0  # optimizer updates so far
        self.best: dict[str, Any] = {"step": 0, "loss_val": math.inf, "waited": 0}  # waited: evaluations since
        self.seconds = {"train": 0.0, "eval": 0.0}
        self.loss_train = self.loss_val = math.nan
        self.loss_val_by_position: list[float] = []
        if saved is not None:
            self.step, self.best, self.seconds = saved["step"], saved["best"], saved["seconds"]
            self.loss_val = self.best["loss_val"]
            # The optimizer's memory is the checkpoint's; its rates are the configuration's, which may have changed.
            groups = self.optimizer.state_dict()["param_groups"]
            self.optimizer.load_state_dict({"state": saved["optimizer"]["state"], "param_groups": groups})
            checkpoints.restore_random_state(saved["random"], self.setup.device)
        self.validation = torch.from_numpy(corpus.validation)
        self.baselines = baseline_losses(corpus.train, corpus.validation, corpus.tokenizer.vocab_size)
        self.tracker = Tracker(folder, self.step, values(config), ["loss/val", "bits_per_char/val"])

    def evaluate(self) -> float:
        """Evaluate the whole validation part, show the loss and a sample, save; returns nats per character."""
        started = time.perf_counter()
        evaluation = evaluate(self.model, self.validation, self.setup)
        self.seconds["eval"] += time.perf_counter() - started
        if not math.isfinite(evaluation.nats):
            raise Diverged("the validation loss", self.step, self.optimizer.param_groups[0]["lr"], self.loss_train)
        self.loss_val, self.loss_val_by_position = evaluation.nats, evaluation.nats_by_position
        points = {"loss/val": evaluation.nats, "bits_per_char/val": evaluation.bits_per_char}
        if self.corpus.floor is not None:
            points["loss/floor"] = self.corpus.floor
        self.tracker.scalars(points, self.step)
        if self.config.trainer.sample_length:
            self.show_sample()
        self.tracker.flush()
        self.best["waited"] += 1
        if evaluation.nats < self.best["loss_val"]:
            self.best = {"step": self.step, "loss_val": evaluation.nats, "waited": 0}
            self.save("best.pt")
        self.save("last.pt")
        return evaluation.nats

    def show_sample(self) -> None:
        """Put a sample of the model as it stands into TensorBoard and at the end of samples.txt."""
        text = self.sample(self.model, self.config.trainer.sample_length)
        self.tracker.text("sample/text", text, self.step)
        with open(self.folder / "samples.txt", "a", encoding="utf-8") as file:
            file.write(f"=== step {self.step}, validation loss {self.loss_val:.4f} ===\n{text}\n\n")

    def sample(self, model: LanguageModel, length: int) -> str:
        """A text of so many characters, drawn with the run's seed and no random number of training's."""
        generator = torch.Generator().manual_seed(self.config.seed)
        start = torch.tensor([self.corpus.tokenizer.start_id])
        return self.corpus.tokenizer.decode(list(generate(model, start, length, generator)))

    def save(self, name: str) -> None:
        """Write last.pt, from which the run goes on, or best.pt, which holds what sampling and sharing need."""
        to_go_on = name == "last.pt"
        checkpoints.save(
            self.folder / name,
            {
                "format": checkpoints.FORMAT,
                "model": self.model.state_dict(),
                "sizes": self.model.sizes(),
                "vocabulary": self.corpus.tokenizer.vocabulary,
                "corpus": self.corpus.identity(),
                "config": asdict(self.config),
                "step": self.step,
                "best": self.best,
                "seconds": self.seconds,
                "optimizer": self.optimizer.state_dict() if to_go_on else None,
                "random": checkpoints.random_state(self.setup.device) if to_go_on else None,
                "versions": checkpoints.versions(),
            },
        )

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
        best = self.best["loss_val"]
        return {
            "status": status,
            "model": self.config.model.name,
            "steps": self.step,
            "best_step": self.best["step"],
            "loss_val": best if math.isfinite(best) else None,
            "bits_per_char": best / math.log(2) if math.isfinite(best) else None,
            "last_loss_val_by_position": self.loss_val_by_position,
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
