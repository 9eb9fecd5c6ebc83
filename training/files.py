"""Files that are whole at every moment, and a folder that one process alone writes to."""

import contextlib
import itertools
import logging
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from configs.schema import UserError

if sys.platform != "win32":
    import fcntl

log = logging.getLogger(__name__)

LOCK = "run.lock"


def write_bytes(path: Path, content: bytes | memoryview, previous: Path | None = None) -> None:
    """Put content in the place of `path`; what stood there goes on under the name `previous`, where that is given.

    At every moment, also if the process is killed or the power fails, each of the two names holds a whole file: the one
    before or the new one, and never both the same. What is written is on the disk when this returns.

    Raises UserError that names path and cause.
    """
    temporary, spare = _beside(path), None
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if previous is not None and path.exists():
            spare = _named_also(path, _beside(previous))
        os.replace(temporary, path)
        if previous is not None and spare is not None:
            os.replace(spare, previous)
            spare.unlink(missing_ok=True)  # where both were one file already, POSIX renames nothing
        if os.name == "posix":  # the new name, too, must survive a power cut
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
            if spare is not None:
                spare.unlink(missing_ok=True)
        unharmed = ". What was saved before is unharmed" if path.exists() else ""
        raise UserError(f"cannot write {path}: {error.strerror or error}{unharmed}") from error


def write_text(path: Path, text: str) -> None:
    """Write a small UTF-8 file, as `write_bytes` does; what cannot be UTF-8, as in odd file names, becomes escapes."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def append_text(path: Path, text: str) -> None:
    """Add to the end of a UTF-8 file. Raises UserError that names path and cause."""
    try:
        with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error


def length_of(path: Path) -> int:
    """The size of a file in bytes, 0 if there is none."""
    return path.stat().st_size if path.exists() else 0


def first_free(path: Path) -> Path:
    """The path, or with _2, _3, ... behind it, the first that is not taken."""
    numbered = (path.with_name(f"{path.name}_{number}") for number in itertools.count(2))
    return next(free for free in itertools.chain([path], numbered) if not os.path.lexists(free))


def cut_short(path: Path, length: int) -> None:
    """Leave at most the first `length` bytes of a file."""
    if length_of(path) > length:
        os.truncate(path, length)


def remove_strays(folder: Path, names: Iterable[str]) -> None:
    """Remove what a kill may have left of writing files with these names."""
    for name in names:
        _beside(folder / name).unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    """The name under which the new content of a file stands until it is whole."""
    return path.with_name(f".{path.name}.tmp")


def _named_also(path: Path, name: Path) -> Path:
    """Give the file of `path` another name, or where the file system has no hard links, a copy."""
    name.unlink(missing_ok=True)
    try:
        os.link(os.path.realpath(path), name)  # what a symbolic link leads to, not the link
    except OSError:
        shutil.copyfile(path, name)
    return name


@contextlib.contextmanager
def held(folder: Path) -> Iterator[Callable[[], None]]:
    """Hold a run folder for this process alone; whoever comes second gets a UserError that says who holds it.

    Gives a function that raises UserError once another folder, or none, stands in the place of the one that is held. The
    operating system lets go of what a killed process held. Windows has no such lock: there, two may meet.
    """
    path = folder / LOCK
    descriptor = _locked(path)
    place = os.stat(folder)

    def check() -> None:
        if not folder.is_dir() or not os.path.samestat(place, os.stat(folder)):
            raise UserError(f"{folder} is not the folder any more that the run began in: stopped")

    try:
        with contextlib.suppress(OSError):  # on a full disk the lock holds, though it cannot say whose it is
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            os.write(descriptor, f"process {os.getpid()} on {platform.node()}, since {since}\n".encode())
        yield check
    finally:
        if _is_still(path, descriptor):
            with contextlib.suppress(OSError):
                path.unlink()
        os.close(descriptor)


def _locked(path: Path) -> int:
    never_elsewhere = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | never_elsewhere, 0o644)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from error
        if sys.platform != "win32":
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(descriptor, 1000, 0).decode("utf-8", "replace").strip() or "another process"
                os.close(descriptor)
                advice = "wait until it ends, or stop it"
                raise UserError(f"{path.parent} is in use by {holder}: {advice}") from None
            except OSError as error:  # some network file systems
                log.warning(
                    "%s cannot be locked (%s): see to it that nothing else goes on with it", path, error.strerror
                )
        if _is_still(path, descriptor):
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)  # the words of a process that was killed
            return descriptor
        os.close(descriptor)  # whoever held it removed it in the meantime: this is no file any more


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False
