"""Files as text: which ones a path names, and their characters, checked, in pieces of bounded size."""

import codecs
import glob
import io
import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from configs.schema import UserError

log = logging.getLogger(__name__)

PIECE = 1 << 18  # bytes that are read at once


def files_of(path: str) -> list[Path]:
    """The files that a path names: itself, or, if it does not exist, those that match its *, ? and [], by name.

    Raises UserError if none matches.
    """
    if not _is_pattern(path):
        return [Path(path)]
    found = sorted(glob.glob(path, recursive=True))
    if not found:
        raise UserError(f"no file matches data.path={path}")
    return [Path(name) for name in found]


def name_of(path: str) -> str:
    """What tables call the text of a path: the file's name; of a pattern the words of its name, or of its folder's."""
    if not _is_pattern(path):
        return Path(path).stem
    words = (re.findall(r"[\w-]+", Path(part).stem) for part in reversed(Path(path).parts))
    return next(("_".join(found) for found in words if found), "texts")


def _is_pattern(path: str) -> bool:
    return any(sign in path for sign in "*?[") and not os.path.lexists(path)


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, as `decoded` says. Raises UserError that says what is wrong with the file."""
    return "".join(file_pieces(path))


def file_pieces(path: Path, tell: bool = True, between: Callable[[int], object] = lambda read: None) -> Iterator[str]:
    """The text of a UTF-8 file in pieces, as `pieces` gives them. Raises UserError that says what is wrong with the file."""
    try:
        if path.is_char_device() or path.is_block_device():
            raise UserError(f"cannot read the text {path}: it is a device, which may never end, and no file")
        with open(path, "rb") as file:
            yield from pieces(file, str(path), tell, between)
    except IsADirectoryError as error:
        raise UserError(
            f"cannot read the text {path}: {error.strerror}. To read the files in it, write data.path={path / '*.txt'}"
        ) from error
    except OSError as error:
        raise UserError(f"cannot read the text {path}: {error.strerror or error}") from error


def decoded(raw: bytes, source: str) -> str:
    """UTF-8 bytes as text, checked as `pieces` says."""
    return "".join(pieces(io.BytesIO(raw), source))


def pieces(
    file: BinaryIO, source: str, tell: bool = True, between: Callable[[int], object] = lambda read: None
) -> Iterator[str]:
    """UTF-8 as text in pieces, without byte-order mark and with \\n for every line end.

    Other line ends are logged unless `tell` is false. `between` is called with the number of bytes that were read.
    Raises UserError that names the source, the first wrong byte and a remedy.
    """
    lines = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")(), translate=True)
    read, at_the_start, raw = 0, True, b"all but the last"
    while raw:
        raw = file.read(PIECE)
        if read == 0 and raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise UserError(
                f"{source} is UTF-16, seen at byte 0: save it as UTF-8, for example with iconv -f UTF-16 -t UTF-8"
            )
        read += len(raw)
        try:
            text = lines.decode(raw, final=not raw)
        except UnicodeDecodeError as error:  # in what was read last, and what was left of a character before it
            wrong = read - len(error.object) + error.start
            raise UserError(
                f"{source} is not UTF-8: byte {wrong} is 0x{error.object[error.start]:02x}. "
                "Save it as UTF-8, for example with iconv -f WINDOWS-1252 -t UTF-8"
            ) from error
        if at_the_start and text:
            text, at_the_start = text.removeprefix("\ufeff"), False
        if text:
            yield text
        between(len(raw))
    if tell and "\r" in "".join(lines.newlines or ""):
        log.info("%s: line ends CRLF and CR are read as LF", source)


def unescaped(text: str) -> str:
    """A text from the command line, in which \\n is a line end and \\t a tab.

    What is no character becomes one that says so: a byte that is not UTF-8, or half of a pair of surrogates.
    """
    try:  # where the locale is no UTF-8, Python keeps what was typed as surrogates, a byte each
        text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    except UnicodeEncodeError:
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text.replace("\\n", "\n").replace("\\t", "\t")
