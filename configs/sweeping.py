"""The jobs of a sweep: how each runs in whichever process a launcher gives it, and what became of it. It imports no torch.

A launcher hands back no more than a number. So each job leaves a record in the sweep's folder, and beside the records a
file says when no other job is to begin: both can be read wherever jobs run.
"""

import contextlib
import json
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from configs.checks import problems
from configs.json_file import read_object
from configs.overrides import key_and_value, name_of_changes, short
from configs.schema import UserError
from configs.terminal import mend_standard_streams, sentence

_RECORDS = ".jobs"
_FROM_TERMINAL = {getattr(signal, name) for name in ("SIGINT", "SIGHUP") if hasattr(signal, name)}


@dataclass
class Record:
    """What became of a job: it has `begun` or `ended`, was `refused`, `interrupted` or `not begun`, or has `failed`."""

    number: int
    changed: str  # what sets it apart from the other jobs
    overrides: list[str]
    folder: str | None  # seen from the sweep's; None if the job has none of its own
    status: str = "begun"
    error: str | None = None  # why, in a sentence

    def __post_init__(self) -> None:
        """Raises TypeError for a value of another type, as a damaged file may hold one."""
        texts = [
            self.changed,
            self.status,
            *self.overrides,
            *(text for text in (self.folder, self.error) if text is not None),
        ]
        if not isinstance(self.number, int) or not all(isinstance(text, str) for text in texts):
            raise TypeError("a value in it is of another type")

    def __str__(self) -> str:
        changed = f" ({self.changed})" if self.changed else ""
        return f"job {self.number}{changed}" + (f": {self.error}" if self.error else "")


def records_of(sweep: Path) -> list[Record]:
    """The records in a sweep's folder, in the order of jobs; none if it is no sweep's. Raises UserError for a damaged one."""
    found = []
    for path in (sweep / _RECORDS).glob("*.json"):
        try:
            found.append(Record(**read_object(path)))
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"{path} is damaged: {error}") from error
    return sorted(found, key=lambda record: record.number)


def holds_a_sweep(folder: Path) -> bool:
    """Whether a sweep was begun in a folder. Not every sweeper of Hydra's leaves a file there itself."""
    return (folder / "multirun.yaml").exists() or (folder / _RECORDS).exists()


def checked(composed: Any) -> Any:
    """The configuration that Hydra composed, as its class. Raises UserError with all that is wrong with it."""
    config = OmegaConf.to_object(composed)
    if found := problems(config):
        raise UserError("; ".join(found))
    return config


class Job:
    """What a launcher calls for each job of a sweep. It goes to other processes by way of pickle."""

    def __init__(self, script: str, main: Callable[[Any], float] | None = None, home: int | None = None) -> None:
        """`main` takes the checked configuration and returns the loss; `script` is the name that messages begin with.

        `home` is the process of the command line; None for this one.
        """
        self.script, self.home = script, home or os.getpid()
        if main is not None:
            self.main = main
        if not self.is_home:  # here, main comes next, and with it torch
            for number in _FROM_TERMINAL:  # which the sweep hears, and passes on
                signal.signal(number, signal.SIG_IGN)
            mend_standard_streams()
            name_job_folders()

    @property
    def is_home(self) -> bool:
        """Whether this is the process of the command line, and not one that a launcher has started."""
        return os.getpid() == self.home

    def __reduce__(self) -> tuple[Any, ...]:
        return Job, (self.script, None, self.home), {"main": self.main}

    def __call__(self, composed: Any) -> float:
        """The loss that the job comes to; infinity if it comes to none, which any sweeper can compare with the others'."""
        hydra = HydraConfig.get()
        sweep, folder = Path(hydra.sweep.dir).absolute(), Path(hydra.runtime.output_dir)
        own = not any(folder.iterdir())
        place = os.path.relpath(folder, sweep) if own else None
        changed = ",".join(f"{key}={short(value)}" for key, value in map(key_and_value, _changes(hydra)))
        record = Record(hydra.job.num, changed, list(hydra.overrides.task), place)
        if _stop_file(sweep).exists():
            record.status = "not begun"
            if own:
                folder.rmdir()
            _write(record, sweep)
            return math.inf
        _write(record, sweep)
        loss, log = math.inf, ""
        try:
            with contextlib.nullcontext() if self.is_home else _told_to_stop(_stop_file(sweep)):
                loss = self.main(checked(composed))
            record.status, record.folder = "ended", os.path.relpath(folder, sweep)
        except SystemExit as end:  # it was stopped, has saved and said so
            record.status = "interrupted"
            if self.is_home:  # whoever stops a job here means the sweep
                _stop(sweep, end.code)
        except (UserError, OSError) as error:
            record.status, record.error = "refused", sentence(error)
            log = record.error
        except Exception as error:  # a bug, which must not cost the other jobs
            record.status, record.error = "failed", f"{type(error).__name__}: {sentence(error)}"
            log = traceback.format_exc()
        if record.error is not None:
            print(f"{self.script}.py: {record}", file=sys.stderr, flush=True)
            if own:
                with contextlib.suppress(OSError), open(folder / "train.log", "a", encoding="utf-8") as file:
                    file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} ERROR {log}\n")
        _write(record, sweep)
        return loss


def run_sweep(job: Job, sweep: Path, launch: Callable[[], None], show: Callable[[Path], None]) -> int:
    """`launch` all jobs, which run `job`, `show` what they came to, and say what went wrong; returns the exit status.

    Raises UserError if no job could begin.
    """
    sentences = []
    with _stopped_in_order(sweep):
        try:
            launch()
        except Exception as error:  # of a plugin: jobs themselves raise nothing
            if not records_of(sweep):
                if isinstance(error, OSError) and not error.filename:  # as on a full disk
                    raise UserError(f"cannot write to {sweep}: {sentence(error)}") from error
                raise UserError(sentence(error)) from error
            sentences.append(f"the launcher or the sweeper gave up: {type(error).__name__}: {sentence(error)}")
    records = records_of(sweep)
    for record in records:
        if record.status == "begun":
            record.status, record.error = "failed", "its process was killed, or found no room for its record"
            _write(record, sweep)
    try:
        show(sweep)
    except (UserError, OSError) as error:
        sentences.append(sentence(error))
    for said, statuses in (("failed", ("refused", "failed")), ("interrupted", ()), ("not begun", ())):
        found = [record for record in records if record.status in (said, *statuses)]
        if found:
            sentences += [f"{len(found)} of {len(records)} jobs {said}:", *(f"    {record}" for record in found)]
    for said in sentences:
        print(f"{job.script}.py: {said}", file=sys.stderr)
    stop = _stop_file(sweep)
    if stop.exists():
        return int(stop.read_text() or 128 + signal.SIGINT)  # nothing, where the disk was full
    return 2 if sentences else 0


def name_job_folders() -> None:
    """Let configs/train.yaml name a job's folder by its changes; each process that makes such folders needs this once."""

    def changed_keys(*, _root_: Any) -> str:
        return name_of_changes(_changes(_root_.hydra)) or f"{_root_.model.name}_{_root_.data.name}"

    OmegaConf.register_new_resolver("changed_keys", changed_keys, replace=True)


def _changes(hydra: Any) -> list[str]:
    """The overrides that set a job apart, of Hydra's part of its configuration."""
    fixed = hydra.job.config.override_dirname.exclude_keys
    return [typed for typed in hydra.overrides.task if typed.lstrip("+").partition("=")[0] not in fixed]


def _stop_file(sweep: Path) -> Path:
    """Where it stands that no other job is to begin, and with which exit status the sweep ends."""
    return sweep / _RECORDS / "stop"


def _stop(sweep: Path, status: Any) -> None:
    with contextlib.suppress(OSError):  # on a full disk the file is there, and empty
        _stop_file(sweep).parent.mkdir(exist_ok=True)
        _stop_file(sweep).write_text(str(status))


def _write(record: Record, sweep: Path) -> None:
    path = sweep / _RECORDS / f"{record.number}.json"
    with contextlib.suppress(OSError):  # a full disk: the run itself says so
        path.parent.mkdir(exist_ok=True)
        path.with_suffix(".tmp").write_text(json.dumps(asdict(record)), encoding="utf-8")
        os.replace(path.with_suffix(".tmp"), path)


@contextlib.contextmanager
def _stopped_in_order(sweep: Path) -> Iterator[None]:
    """While entered, a first signal lets no other job begin and has those under way save and end; a second quits at once.

    What comes from the terminal reaches every process in it. Those that a launcher starts must not hear it: they would
    end in the middle of something, and learn of it from the file as well. They inherit that this thread is deaf, before
    they come to a job. Another thread listens, and Python has the handler run in this one.
    """
    stop = _stop_file(sweep)

    def receive(number: int, _: object) -> None:
        if stop.exists():
            os._exit(128 + number)
        _stop(sweep, 128 + number)
        with contextlib.suppress(OSError):  # not print: the signal may come in the middle of one
            os.write(2, b"\nstopping: jobs under way save and end, no other begins; again to quit at once\n")

    def listen() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FROM_TERMINAL)
        over.wait()

    over = threading.Event()
    heeded = [number for number in (*_FROM_TERMINAL, signal.SIGTERM) if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, receive) for number in heeded}
    if sys.platform != "win32":
        threading.Thread(target=listen, daemon=True).start()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _FROM_TERMINAL)
    try:
        yield
    finally:
        if sys.platform != "win32":
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            over.set()
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _told_to_stop(stop: Path) -> Iterator[None]:
    """While entered, turn the file that stops a sweep into the signal that stops the run in this process."""
    over = threading.Event()

    def ignore(*_: object) -> None:
        """Until the run listens, and when it does not any more."""

    def watch() -> None:
        while not over.wait(0.3):
            if stop.exists() and signal.getsignal(signal.SIGTERM) is not ignore:
                os.kill(os.getpid(), signal.SIGTERM)
                return

    before = signal.signal(signal.SIGTERM, ignore)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        signal.signal(signal.SIGTERM, before)
