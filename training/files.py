"""Files that are whole at every moment, and a folder that one process alone writes to."""

import contextlib
import logging
import os
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from configs.schema import UserError

if sys.platform != "win32":
    import fcntl

log = logging.getLogger(__name__)


def write_bytes(path: Path, content: bytes | memoryview, previous: Path | None = None) -> None:
    """Put content in the place of `path`; what stood there goes on under the name `previous`, where that is given.

    At every moment, also if the process is killed or the power fails, each of the two names holds a whole file: the one
    before or the new one. What is written is on the disk when this returns. Raises UserError that names path and cause.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if previous is not None and path.exists():
            _name_also(path, previous)
        os.replace(temporary, path)
        if os.name == "posix":  # the new name, too, must survive a power cut
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
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


def remove_strays(folder: Path) -> None:
    """Remove what writes that a kill cut short have left behind."""
    for stray in folder.glob(".*.tmp"):
        stray.unlink(missing_ok=True)


def _name_also(path: Path, previous: Path) -> None:
    """Let `previous` name the file of `path` as well, in one stroke where the file system has hard links."""
    link = previous.with_name(f".{previous.name}.tmp")
    link.unlink(missing_ok=True)
    try:
        os.link(path, link)
    except OSError:  # no hard links here: for a moment there is no `path`, but `previous` is whole
        os.replace(path, previous)
        return
    try:
        os.replace(link, previous)
    finally:
        link.unlink(missing_ok=True)  # where both were one file already, POSIX renames nothing


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a run folder for this process alone; whoever comes second gets a UserError that says who holds it.

    The operating system lets go of what a killed process held. Windows has no such lock: there, two may meet.
    """
    path = folder / "lock"
    descriptor = _locked(path)
    try:
        with contextlib.suppress(OSError):  # on a full disk the lock holds, though it cannot say whose it is
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            os.write(descriptor, f"process {os.getpid()} on {platform.node()}, since {since}\n".encode())
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(descriptor)


def _locked(path: Path) -> int:
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
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
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                os.ftruncate(descriptor, 0)  # the words of a process that was killed
                return descriptor
        os.close(descriptor)  # whoever held it removed it in the meantime: this is no file any more
