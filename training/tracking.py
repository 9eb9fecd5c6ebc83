"""What a run leaves to look at: log lines, the progress bar, TensorBoard and summary.json."""

import contextlib
import json
import logging
import math
import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams
from tqdm import tqdm

from configs.schema import UserError
from training.files import write_text
from training.folders import LOG, SUMMARY
from training.pictures import Picture

_FLUSH_SECONDS = 2  # so that a run of seconds is seen while it lasts


class _AboveTheBar(logging.Handler):
    """Log lines to standard error, whole, above a running bar."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            tqdm.write(self.format(record), file=sys.stderr)
        except OSError:  # nobody reads it any more: no reason to stop training, nor to fail at exit over what is left
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


class _LogFile(logging.FileHandler):
    """train.log. Where it takes no more lines, that is said once; what matters is saved elsewhere, or refused there."""

    full = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        if not self.full:
            self.full = True
            tqdm.write(f"cannot write {self.baseFilename}: {sys.exc_info()[1]}", file=sys.stderr)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()


@contextlib.contextmanager
def logging_to(folder: Path) -> Iterator[None]:
    """Send log lines to standard error and to train.log in the run folder, as long as this is entered."""
    root = logging.getLogger()
    screen = _AboveTheBar()
    if _is_worker():
        screen.setFormatter(logging.Formatter(f"{folder.name}: %(message)s"))
    file = _LogFile(folder / LOG, encoding="utf-8", errors="backslashreplace", delay=True)
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    level = root.level
    root.setLevel(logging.INFO)
    for handler in (screen, file):
        root.addHandler(handler)
    # TensorBoard writes in a thread of its own; what stops that is said in a line, and again where the run notices.
    hook, threading.excepthook = (
        threading.excepthook,
        lambda args: root.warning("TensorBoard's writer: %s", args.exc_value),
    )
    try:
        yield
    finally:
        root.setLevel(level)
        threading.excepthook = hook
        for handler in (screen, file):
            root.removeHandler(handler)
            handler.close()


def progress_bar(total: int, done: int, shown: bool = True) -> "tqdm[Any]":
    """A bar on standard error that counts steps, from `done` of `total`; none where standard error is no terminal.

    Nor in one of several processes that share the terminal.
    """
    shape = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} steps [{elapsed}, {remaining} left{postfix}]"
    disable = None if shown and not _is_worker() else True
    return tqdm(total=total, initial=done, disable=disable, bar_format=shape, dynamic_ncols=True, file=sys.stderr)


def _is_worker() -> bool:
    """Whether this process was started to take its part of the work, beside others."""
    return multiprocessing.current_process().name != "MainProcess"


class Tracker:
    """TensorBoard's view of one run: its curves, texts and hyperparameters, written into the run folder itself."""

    def __init__(self, folder: Path, hyperparameters: dict[str, Any], metrics: list[str], step: int) -> None:
        """Open the run's events and its row in the HPARAMS tab, whose `metrics` are tags of the run's own curves.

        What is there already of this step and later ones is taken back. torch's own add_hparams is no help: it would open
        a second run for the row.
        """
        self.folder = folder
        plain = {
            key: value if isinstance(value, bool | int | float) else _utf8(str(value))
            for key, value in hyperparameters.items()
        }
        experiment, start, self._end = hparams(plain, dict.fromkeys(metrics, 0.0))
        with self._writing():
            self.writer = SummaryWriter(str(folder), flush_secs=_FLUSH_SECONDS, purge_step=step)
            self._add_to_file(experiment)
            self._add_to_file(start)

    def scalars(self, values: dict[str, float], step: int) -> None:
        """One point of each named curve."""
        with self._writing():
            for tag, value in values.items():
                self.writer.add_scalar(tag, value, step)

    def text(self, tag: str, text: str, step: int) -> None:
        """A text panel. Four spaces before each line keep TensorBoard's Markdown away from it."""
        with self._writing():
            self.writer.add_text(tag, "\n".join("    " + line for line in _utf8(text).split("\n")), step)

    def picture(self, tag: str, picture: Picture, step: int) -> None:
        """An image (height, width, 3) of bytes."""
        with self._writing():
            self.writer.add_image(tag, picture, step, dataformats="HWC")

    def flush(self) -> None:
        """Make everything so far visible."""
        with self._writing():
            self.writer.flush()

    def close(self, succeeded: bool) -> None:
        """End the row in the HPARAMS tab, well or badly, and write out what is still in memory."""
        if not succeeded:
            plugin = self._end.value[0].metadata.plugin_data
            end = HParamsPluginData.FromString(plugin.content)
            end.session_end_info.status = api_pb2.STATUS_FAILURE
            plugin.content = end.SerializeToString()
        with self._writing():
            self._add_to_file(self._end)
            self.writer.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Name the file in what the operating system says; it may speak of what was to be written some time before."""
        try:
            yield
        except OSError as error:
            raise UserError(f"cannot write {self.folder}/events.*: {error.strerror or error}") from error

    def _add_to_file(self, summary: Any) -> None:
        self.writer._get_file_writer().add_summary(summary)


def _utf8(text: str) -> str:
    """The text with escapes for what cannot be UTF-8, as in odd file names."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def write_summary(folder: Path, summary: dict[str, Any]) -> None:
    """Write summary.json, for scripts and sweeps."""
    write_text(folder / SUMMARY, json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def changed_on_the_way(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Where a run was gone on with under other options: {"step": ..., "overrides": [...]} for each time."""
    return [again for again in summary["resumed"] if again["overrides"]]


def results_table(summary: dict[str, Any]) -> str:
    """The figures of a summary as lines for people: the model beside what counting alone achieves."""
    rows = [(f"counted {order}-gram", nats) for order, nats in summary["baselines"].items()]
    rows.append((f"{summary['model']}, step {summary['best_step']}", summary["loss_val"]))
    rows.append(("(last training batch)", summary["loss_train"]))
    if summary["floor"] is not None:
        rows.append(("true entropy", summary["floor"]))
    lines = [f"options: {' '.join(summary['overrides']) or 'the defaults'}"]
    lines += [f"after step {again['step']}: {' '.join(again['overrides'])}" for again in changed_on_the_way(summary)]
    lines.append(f"{'validation loss':<24}{'nats':>8}{'bits':>8}  per character")
    lines += [f"{name:<24}{nats:>8.4f}{nats / math.log(2):>8.4f}" for name, nats in rows]
    seconds = f"{summary['train_seconds']:.1f} s ({summary['chars_per_second']:,.0f} characters/s)"
    lines.append(f"{summary['parameters']:,} parameters, {summary['steps']:,} steps in {seconds}")
    lines.append(f"evaluation beside it: {summary['eval_seconds']:.1f} s")
    return "\n".join(lines)
