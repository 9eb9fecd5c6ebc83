"""What a run is made of: its text, its model, what changes while it trains, and the folder that keeps it."""

import logging
import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch.optim import Optimizer

from configs.schema import TrainConfig, UserError, values
from data.corpus import Corpus, unescaped
from data.ngrams import baseline_losses, bigram_log_probabilities
from model.generation import generate
from model.language_model import LanguageModel
from training import checkpoint as checkpoints
from training.device import choose_setup
from training.evaluation import evaluate
from training.files import write_text
from training.optimizers import make_optimizer
from training.pictures import LONGEST_PROBE, Picture, attention_map, chart
from training.tracking import Tracker

log = logging.getLogger(__name__)

MOST_MAPS = 64  # of a model with more heads the first ones are drawn
_LARGEST_BIGRAM_VOCABULARY = 8192  # above it the table, its gradient and AdamW's two memories take over a gigabyte


class Diverged(UserError):
    """A loss or gradient is not a finite number any more; nothing that led to it is saved."""

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
        self, config: TrainConfig, corpus: Corpus, folder: Path, saved: checkpoints.Checkpoint | None = None
    ) -> None:
        """A new run, or with `saved` the one that a checkpoint holds; nothing is written yet.

        Raises UserError for what cannot be built here.
        """
        self.config, self.corpus, self.folder = config, corpus, folder
        self.resumed = saved is not None
        self.setup = choose_setup(config.trainer)
        torch.manual_seed(config.seed)
        model = new_model(config, corpus) if saved is None else checkpoints.model_from(saved, folder / "last.pt")
        model.use_attention(self.setup.attention_path)
        self.model: LanguageModel = model.to(self.setup.device)
        self.probe = probe_of(config, corpus)
        self.optimizer: Optimizer = make_optimizer(self.model, config.optimizer)
        self.step = 0  # optimizer updates so far
        self.best: dict[str, Any] = {"step": 0, "loss_val": math.inf, "waited": 0}  # waited: evaluations since
        self.seconds = {"train": 0.0, "eval": 0.0}
        self.loss_train = self.loss_val = math.nan
        self.loss_val_by_position: list[float] = []
        if saved is not None:
            self._restore(saved)
        self.validation = torch.from_numpy(corpus.validation)
        self.baselines = baseline_losses(corpus.train, corpus.validation, corpus.tokenizer.vocab_size)

    def _restore(self, saved: checkpoints.Checkpoint) -> None:
        if saved["optimizer"] is None:
            raise UserError(
                f"{self.folder / 'last.pt'} holds a model to sample from, as best.pt does, and no run to go on with"
            )
        self.step, self.best, self.seconds = saved["step"], saved["best"], saved["seconds"]
        self.loss_val = self.best["loss_val"]
        try:
            # The optimizer's memory is the checkpoint's; its rates are the configuration's, which may have changed.
            groups = self.optimizer.state_dict()["param_groups"]
            self.optimizer.load_state_dict({"state": saved["optimizer"]["state"], "param_groups": groups})
            checkpoints.restore_random_state(saved["random"], self.setup.device)
        except (ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
            raise UserError(
                f"{self.folder / 'last.pt'} is damaged: its optimizer or random state does not fit"
            ) from error
        best = self.folder / "best.pt"
        if not best.is_file():
            log.warning("%s is missing: the best model from now on takes its place", best)
            self.best = {"step": self.step, "loss_val": math.inf, "waited": 0}
        elif (best_saved := checkpoints.load(best)["best"])["loss_val"] < self.best["loss_val"]:
            self.best = best_saved  # the run was killed between the two saves of an evaluation

    def open_folder(self) -> None:
        """Claim the folder for a new run and open what is written there. Raises UserError if it holds a run already."""
        if not self.resumed:
            try:
                if any((self.folder / name).exists() for name in ("last.pt", "best.pt", "summary.json")):
                    raise FileExistsError
                (self.folder / "config.yaml").touch(exist_ok=False)  # of two runs that come at once, one is first
            except FileExistsError:
                advice = f"choose another folder, or go on with resume={self.folder}"
                raise UserError(f"{self.folder} holds a run already: {advice}") from None
        # A run that goes on has no summary until it ends again.
        (self.folder / "summary.json").unlink(missing_ok=True)
        described = yaml.safe_dump(asdict(self.config), sort_keys=False, allow_unicode=True)
        write_text(self.folder / "config.yaml", described)
        resumed_at = self.step if self.resumed else None
        shown = {key: value for key, value in values(self.config).items() if key == "data.name" or "data." not in key}
        self.tracker = Tracker(self.folder, shown, ["loss/val", "bits_per_char/val"], resumed_at)
        self.tracker.text("config", described, self.step)

    def evaluate_and_save(self) -> float:
        """Evaluate the whole validation part, save, then show pictures and a sample; returns nats per character."""
        started = time.perf_counter()
        evaluation = evaluate(self.model, self.validation, self.setup)
        self.seconds["eval"] += time.perf_counter() - started
        if not math.isfinite(evaluation.nats):
            raise Diverged("the validation loss", self.step, self.lr, self.loss_train)
        self.loss_val, self.loss_val_by_position = evaluation.nats, evaluation.nats_by_position
        points = {"loss/val": evaluation.nats, "bits_per_char/val": evaluation.bits_per_char}
        if self.corpus.floor is not None:
            points["loss/floor"] = self.corpus.floor
        self.tracker.scalars(points, self.step)
        self.tracker.flush()  # before last.pt, since a run that goes on from it does not draw them again
        self.best["waited"] += 1
        if evaluation.nats <= self.best["loss_val"] or self.config.trainer.overfit_batch:
            self.best = {"step": self.step, "loss_val": evaluation.nats, "waited": 0}
            checkpoints.save(self.folder / "best.pt", self._content(to_go_on=False))
        checkpoints.save(self.folder / "last.pt", self._content(to_go_on=True))
        self.tracker.picture("loss_by_position/val", self.loss_by_position(), self.step)
        self.show_attention()
        if self.config.trainer.sample_length:
            self.show_sample()
        self.tracker.flush()
        return evaluation.nats

    def save(self) -> None:
        """Write last.pt, between evaluations; first one window proves that the last step led to sound weights."""
        window = self.validation[: self.config.model.block_size + 1]
        if not math.isfinite(evaluate(self.model, window, self.setup).nats):
            raise Diverged("the validation loss", self.step, self.lr, self.loss_train)
        checkpoints.save(self.folder / "last.pt", self._content(to_go_on=True))

    @property
    def lr(self) -> float:
        """The learning rate of the latest step, of the matrices where the model has any."""
        return float(self.optimizer.param_groups[0]["lr"])

    def show_sample(self) -> None:
        """Put a sample of the model as it stands into TensorBoard and at the end of samples.txt."""
        text = self.sample(self.model, self.config.trainer.sample_length)
        self.tracker.text("sample/text", text, self.step)
        with open(self.folder / "samples.txt", "a", encoding="utf-8") as file:
            file.write(f"=== step {self.step}, validation loss {self.loss_val:.4f} ===\n{text}\n\n")

    def show_attention(self) -> None:
        """Put a map of every head's attention on the probe into TensorBoard, or of the first of very many."""
        if not self.probe:
            return
        ids = torch.from_numpy(self.corpus.tokenizer.encode(self.probe)).long().to(self.setup.device)
        weights = self.model.attention_weights(ids[None])[:, 0].float().cpu().numpy()  # (n_layer, H, T, T)
        for layer, head in list(np.ndindex(weights.shape[:2]))[:MOST_MAPS]:
            title = f"layer {layer + 1}, head {head + 1}, step {self.step}"
            picture = attention_map(weights[layer, head], self.probe, title)
            self.tracker.picture(f"attention/layer_{layer + 1}_head_{head + 1}", picture, self.step)

    def loss_by_position(self) -> Picture:
        """The latest evaluation as a curve over the characters that the model saw, beside what counting achieves.

        Single positions are noisy, so a point is the mean over positions 1, 2, 3 to 4, 5 to 8 and so on, in their middle.
        """
        levels = {f"counted {order}-gram": nats for order, nats in self.baselines.items() if order != "1"}
        if self.corpus.floor is not None:
            levels["true entropy"] = self.corpus.floor
        nats, points, first = self.loss_val_by_position, [], 0
        while first < len(nats):
            group = nats[first : max(1, 2 * first)]
            points.append((math.sqrt((first + 1) * (first + len(group))), sum(group) / len(group)))
            first += len(group)
        title = f"validation loss in nats, by characters seen, step {self.step}"
        return chart(title, "characters seen", {self.config.model.name: points}, levels)

    def sample(self, model: LanguageModel, length: int) -> str:
        """A text of so many characters, drawn with the run's seed and no random number of training's."""
        generator = torch.Generator().manual_seed(self.config.seed)
        start = torch.tensor([self.corpus.tokenizer.start_id])
        return self.corpus.tokenizer.decode(list(generate(model, start, length, generator)))

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
            "seconds": self.seconds,
            "optimizer": self.optimizer.state_dict() if to_go_on else None,
            "random": checkpoints.random_state(self.setup.device) if to_go_on else None,
            "versions": checkpoints.versions(),
        }

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
            "loss_train": self.loss_train if math.isfinite(self.loss_train) else None,
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


def probe_of(config: TrainConfig, corpus: Corpus) -> str:
    """The text whose attention is drawn: trainer.probe, or a line of the validation part; "" for none.

    Raises UserError for a text that the model cannot read or the picture not hold.
    """
    if config.model.n_layer == 0:
        return ""
    longest = min(config.model.block_size, LONGEST_PROBE)
    if config.trainer.probe is None:
        lines = corpus.tokenizer.decode(corpus.validation[:2000]).split("\n")
        return next((line for line in lines if len(line) > 30), max(lines, key=len))[: min(longest, 40)]
    probe = unescaped(config.trainer.probe)
    if len(probe) > longest:
        raise UserError(
            f"trainer.probe has {len(probe)} characters, but at most {longest} fit (model.block_size, a picture)"
        )
    try:
        corpus.tokenizer.encode(probe)
    except UserError as error:
        played = f". The text is the Playlet: {config.data.fallback_reason}" if config.data.fallback_reason else ""
        raise UserError(f"trainer.probe: {error}{played}") from None
    return probe
