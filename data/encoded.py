"""A text as ids, encoded in pieces: a small one into memory, a large one into a file that later runs find again.

For each large text the folder of the cache holds

    SHA256.ids      its ids as they are in memory, from where they are read as they are needed
    SHA256.json     their vocabulary, and the files that they are from: paths, sizes and times of change

A text whose files are as recorded is not read again. Each file is written under another name and renamed when it is whole;
what does not belong together, or was cut short, is made anew.
"""

import contextlib
import hashlib
import io
import json
import logging
import math
import os
import sys
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from configs.json_file import read_object
from configs.schema import UserError
from data.reading import file_pieces, read_text
from data.tokenizer import Tokenizer, cut, dtype_of, vocabulary_of

if sys.platform != "win32":
    import fcntl

log = logging.getLogger(__name__)

FOLDER = Path(__file__).parent / "cache" / "texts"
SMALL = 32 << 20  # bytes; so long a text is read again each time
_VERSION = 1  # of the files in the cache
_TIME = 946_684_800  # of change, in seconds, for each file here: whoever changes one later changes that too
_ENDS = 1 << 16  # bytes of each end of the ids that are proved before they are used
_PIECE = 1 << 18  # ids that are handled at once


@dataclass(frozen=True)
class EncodedText:
    """A whole text; its ids (characters,) are places in `vocabulary` and cannot be written to where they lie in a file."""

    ids: NDArray[np.integer]
    vocabulary: str  # its distinct characters, in code-point order
    sha256: str  # of the text as UTF-8
    nats: NDArray[np.float64] | None = None  # true -log P of each character, where it is known


def encode(text: str, nats: NDArray[np.float64] | None = None) -> EncodedText:
    """A text that is in memory, encoded into memory."""
    vocabulary, sha256, _ = _survey(cut(text))
    file = io.BytesIO()
    _write_ids(cut(text), vocabulary, file)
    return EncodedText(np.frombuffer(file.getbuffer(), dtype_of(len(vocabulary))), vocabulary, sha256, nats)


def encode_files(paths: Sequence[Path]) -> EncodedText:
    """The text of UTF-8 files, one after the other; where they are large, from the cache or by way of it.

    Raises UserError if a file cannot be read or is no UTF-8, if a large one changes meanwhile, or if it finds no room.
    """
    files = [_facts(path) for path in paths]
    if not all(map(os.path.isfile, paths)) or sum(size for _, size, *_ in files) <= SMALL:
        return encode("".join(map(read_text, paths)))  # a pipe, for one, can be read only once
    for found in FOLDER.glob("*.json"):
        if (known := _read(found.stem)) and known[1] == files:
            return known[0]
    return _encode_into_cache(paths, files)


def translated(
    ids: NDArray[np.integer], vocabulary: str, tokenizer: Tokenizer
) -> tuple[NDArray[np.integer], dict[str, int]]:
    """The ids of a part of a text as the ids of another tokenizer, without the characters that it does not know.

    These are given with the number of times that each is there, in code-point order.
    """
    if vocabulary == tokenizer.vocabulary or len(ids) == 0:
        return ids, {}
    table = tokenizer.find(vocabulary)
    counts = np.zeros(len(vocabulary), dtype=np.int64)
    for start in range(0, len(ids), _PIECE):
        counts += np.bincount(ids[start : start + _PIECE], minlength=len(vocabulary))
    unknown = {vocabulary[place]: int(counts[place]) for place in np.flatnonzero(counts) if table[place] < 0}
    others = np.empty(len(ids) - sum(unknown.values()), dtype=tokenizer.dtype)
    length = 0
    for start in range(0, len(ids), _PIECE):
        piece = table[ids[start : start + _PIECE]]
        piece = piece[piece >= 0]
        others[length : length + len(piece)] = piece
        length += len(piece)
    return others, unknown


def text_pieces(ids: NDArray[np.integer], tokenizer: Tokenizer, overlap: int, size: int = 1 << 24) -> Iterator[str]:
    """The text of ids (N,) in pieces; each but the first begins with the last `overlap` characters of the one before."""
    for start in range(0, len(ids), size):
        yield tokenizer.decode(ids[max(0, start - overlap) : start + size])


def remembered(name: str, count: Callable[[], dict[str, float]]) -> dict[str, float]:
    """A few figures on a text from the cache, or counted now, and kept where that can be."""
    path = FOLDER / f"{name}.figures{_VERSION}"
    with contextlib.suppress(OSError, ValueError):
        figures = read_object(path)
        if figures and all(isinstance(one, float) and math.isfinite(one) for one in figures.values()):
            return figures
    figures = count()
    with contextlib.suppress(UserError), _new_file(path) as file:
        file.write(json.dumps(figures).encode())
    return figures


def _survey(pieces: Iterable[str]) -> tuple[str, str, int]:
    """The vocabulary of a text that comes in pieces, its SHA-256 as UTF-8, and its length in characters."""
    digest, characters = hashlib.sha256(), 0

    def counted() -> Iterator[str]:
        nonlocal characters
        for piece in pieces:
            digest.update(piece.encode("utf-8"))
            characters += len(piece)
            yield piece

    vocabulary = vocabulary_of(counted())
    return vocabulary, digest.hexdigest(), characters


def _write_ids(pieces: Iterable[str], vocabulary: str, file: BinaryIO) -> None:
    """The one way in which texts are encoded, wherever their ids are put."""
    if not vocabulary:  # nor is there any text
        return
    tokenizer = Tokenizer(vocabulary)
    for piece in pieces:
        file.write(tokenizer.encode(piece).data)


def _encode_into_cache(paths: Sequence[Path], files: list[Any]) -> EncodedText:
    size = sum(file[1] for file in files)
    with tqdm(desc="encoding the text", total=2 * size, unit="B", unit_scale=True, disable=None, leave=False) as bar:

        def pieces(tell: bool) -> Iterator[str]:
            for path in paths:
                yield from file_pieces(path, tell, bar.update)

        vocabulary, sha256, characters = _survey(pieces(tell=True))
        if not (known := _read(sha256)):
            room = characters * np.dtype(dtype_of(len(vocabulary))).itemsize
            with _new_file(FOLDER / f"{sha256}.ids", room) as file:
                try:
                    _write_ids(pieces(tell=False), vocabulary, file)
                finally:
                    _refuse_changes(paths, files)
    _refuse_changes(paths, files)
    seal = _seal(vocabulary, FOLDER / f"{sha256}.ids")
    record = {"version": _VERSION, "seal": seal, "vocabulary": vocabulary, "files": files}
    # Where the ids were there before, they are good without a new record: this text is only read again the next time.
    with (
        contextlib.suppress(UserError) if known else contextlib.nullcontext(),
        _new_file(FOLDER / f"{sha256}.json") as file,
    ):
        file.write(json.dumps(record).encode())
    _forget_what_was_there(sha256, files)
    log.info("the encoded text is kept in %s", FOLDER / f"{sha256}.ids")
    if not (known := _read(sha256)):
        raise UserError(f"{FOLDER} does not hold what was just written to it: start again")
    return known[0]


def _facts(path: Path) -> list[Any]:
    """What tells that a file has changed."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise UserError(f"cannot read the text {path}: {error.strerror or error}") from error
    return [os.path.realpath(path), found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def _refuse_changes(paths: Sequence[Path], files: list[Any]) -> None:
    for path, facts in zip(paths, files, strict=True):
        if _facts(path) != facts:
            raise UserError(f"{path} changed while it was read: start again when it is complete")


def _read(sha256: str) -> tuple[EncodedText, list[Any]] | None:
    """A text of the cache and the files that it is from, or None where there is none of this version and complete."""
    path = FOLDER / f"{sha256}.ids"
    try:
        record = read_object(path.with_suffix(".json"))
        vocabulary = record["vocabulary"]
        if record["version"] != _VERSION or record["seal"] != _seal(vocabulary, path):
            return None
        ids = np.memmap(path, dtype_of(len(vocabulary)), mode="r").view(np.ndarray)
        files = [[str(name), *map(int, numbers)] for name, *numbers in record["files"]]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError):
        return None
    warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # torch: nobody will write to it
    return EncodedText(ids, vocabulary, sha256), files


def _seal(vocabulary: str, path: Path) -> str:
    """Tells a vocabulary and ids from all others, by time of change and both ends: it must be quick."""
    found = path.stat()
    with open(path, "rb") as file:
        ends = file.read(_ENDS)
        file.seek(max(0, found.st_size - _ENDS))
        facts = f"{found.st_size} {found.st_mtime_ns} {vocabulary}"
        return hashlib.sha256(facts.encode() + ends + file.read(_ENDS)).hexdigest()


def _forget_what_was_there(sha256: str, files: list[Any]) -> None:
    """Give up the room of what these files held before they changed. Who has it mapped keeps it, where the system is POSIX."""
    paths = [path for path, *_ in files]
    for record in FOLDER.glob("*.json"):
        known = None if record.stem == sha256 else _read(record.stem)
        if known and [path for path, *_ in known[1]] == paths:
            for old in FOLDER.glob(f"{record.stem}.*"):
                with contextlib.suppress(OSError):
                    old.unlink()


@contextlib.contextmanager
def _new_file(path: Path, room: int = 0) -> Iterator[BinaryIO]:
    """A file of the cache that is there under its name, whole and on the disk, when the block ends, or not at all.

    What stood under the name stays there until then. Raises UserError that names cause and remedy, `room` in bytes.
    """
    file = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_strays(path.parent)
        file = _open_new(path)
        yield file
        file.flush()
        os.fsync(file.fileno())
        if sys.platform == "win32":  # which renames no open file
            file.close()
        os.utime(file.name, (_TIME, _TIME))
        os.replace(file.name, path)
    except OSError as error:
        needed = f" The text takes {room / 1e6:,.0f} MB there." if room else ""
        raise UserError(
            f"cannot write {path}: {error.strerror or error}.{needed} "
            f"Make room, or make {path.parent} a link to a folder that has it and that you may write to"
        ) from error
    finally:
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()  # which may have to write what is left
            with contextlib.suppress(OSError):
                os.unlink(file.name)


def _open_new(path: Path) -> BinaryIO:
    """A new file beside a path, held until it is closed."""
    while True:
        file = open(path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp"), "xb")  # noqa: SIM115
        if sys.platform != "win32":
            with contextlib.suppress(OSError):  # some network file systems: there, strays stay
                fcntl.flock(file, fcntl.LOCK_EX)
        if os.path.exists(file.name):
            return file
        file.close()  # taken for a stray before it was held


def _remove_strays(folder: Path) -> None:
    """Remove what killed processes left half written: what nobody holds, since the system lets go of what they held."""
    for stray in folder.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            if sys.platform == "win32":  # which removes no open file
                stray.unlink()
            else:
                with open(stray, "rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    stray.unlink()
