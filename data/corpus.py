"""Where a text comes from: a file of yours, Tiny Shakespeare, or the built-in Playlet."""

import codecs
import hashlib
import http.client
import logging
import os
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from configs.schema import DataConfig, UserError
from data import playlet
from data.tokenizer import Tokenizer

log = logging.getLogger(__name__)

TINY_SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
TINY_SHAKESPEARE_BYTES = 1_115_394
CACHE = Path(__file__).parent / "cache" / "tiny_shakespeare.txt"


class CannotBeHad(UserError):
    """Tiny Shakespeare is neither here nor to be downloaded; the message says why."""


@dataclass(frozen=True)
class Corpus:
    """A text as ids: its training part, its validation part after it, and after that what is kept from both, if anything."""

    name: str
    sha256: str  # of the text as UTF-8
    tokenizer: Tokenizer
    train: NDArray[np.integer]
    validation: NDArray[np.integer]
    characters: int  # of the whole text
    floor: float | None  # true nats per character of the validation part, where it is known

    def identity(self) -> dict[str, Any]:
        """What names this text in checkpoints and summaries."""
        return {
            "name": self.name,
            "sha256": self.sha256,
            "characters": self.characters,
            "vocab_size": self.tokenizer.vocab_size,
        }


def load(config: DataConfig, block_size: int) -> Corpus:
    """The corpus that the configuration names, cut into its parts.

    Raises UserError if the text cannot be had, is not UTF-8, or is too short for windows of block_size.
    """
    text, nats = read(config)
    parts = parts_of(text, config)
    train, validation = parts["train"], parts["validation"]
    _refuse_too_short(len(text), parts, block_size, config)
    tokenizer = Tokenizer.of(text)
    ids = tokenizer.encode(text)
    # The first validation character is nobody's target: predicting it would need the training part.
    floor = None if nats is None else float(nats[validation][1:].mean())
    return Corpus(name_of(config), sha256(text), tokenizer, ids[train], ids[validation], len(text), floor)


def read(config: DataConfig) -> tuple[str, NDArray[np.float64] | None]:
    """The text that the configuration names and, where they are known, the true nats of each of its characters."""
    if config.name == "playlet":
        return playlet.write(config.characters)
    if config.name == "text":
        return read_text(Path(config.path or "")), None
    return tiny_shakespeare(config), None


@contextmanager
def that_may_have_moved(path: str | None) -> Iterator[None]:
    """Add to what is wrong with a text that the user has not named this time, but when the model was trained, what to do."""
    try:
        yield
    except UserError as error:
        raise UserError(
            f"{error}. If it has moved, say where it is with data.path=FILE" if path else str(error)
        ) from None


def parts_of(text: str, config: DataConfig) -> dict[str, slice]:
    """Where the parts of a text are: train, validation and test, in this order, and all of it."""
    validation = int(len(text) * (1 - config.validation_fraction - config.test_fraction))
    test = int(len(text) * (1 - config.test_fraction))
    return {
        "train": slice(0, validation),
        "validation": slice(validation, test),
        "test": slice(test, len(text)),
        "all": slice(0, len(text)),
    }


def name_of(config: DataConfig) -> str:
    """What tables call the text."""
    return Path(config.path).stem if config.name == "text" and config.path else config.name


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, as `decoded` says. Raises UserError that says what is wrong with the file."""
    try:
        if path.is_char_device() or path.is_block_device():
            raise UserError(f"cannot read the text {path}: it is a device, which may never end, and no file")
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the text {path}: {error.strerror or error}") from error
    return decoded(raw, str(path))


def unescaped(text: str) -> str:
    """A text from the command line, in which \\n is a line end and \\t a tab.

    What is no character becomes one that says so: a byte that is not UTF-8, or half of a pair of surrogates.
    """
    try:  # where the locale is no UTF-8, Python keeps what was typed as surrogates, a byte each
        text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    except UnicodeEncodeError:
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text.replace("\\n", "\n").replace("\\t", "\t")


def decoded(raw: bytes, source: str) -> str:
    """UTF-8 bytes as text, without byte-order mark and with \\n for every line end.

    Raises UserError that names the source, the first wrong byte and a remedy.
    """
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UserError(
            f"{source} is UTF-16, seen at byte 0: save it as UTF-8, for example with iconv -f UTF-16 -t UTF-8"
        )
    try:
        text = raw.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{source} is not UTF-8: byte {error.start} is 0x{raw[error.start]:02x}. "
            "Save it as UTF-8, for example with iconv -f WINDOWS-1252 -t UTF-8"
        ) from error
    if "\r" in text:
        log.info("%s: line ends CRLF and CR are read as LF", source)
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text


def tiny_shakespeare(config: DataConfig) -> str:
    """Tiny Shakespeare from data.path, $TINY_SHAKESPEARE, the cache or a download, always checked against its SHA-256.

    Raises UserError if a file that was named is not it, and CannotBeHad if there is none and no download succeeds.
    """
    named = config.path or os.environ.get("TINY_SHAKESPEARE")
    if named:
        try:
            text = read_text(Path(named))
        except UserError as error:
            raise UserError(f"{error} (named by data.path or the environment variable TINY_SHAKESPEARE)") from error
        if sha256(text) != TINY_SHAKESPEARE_SHA256:
            raise UserError(
                f"{named} is not Tiny Shakespeare (SHA-256 {sha256(text)}): to train on it, use data=text data.path={named}"
            )
        return text
    if CACHE.is_file():
        text = read_text(CACHE)
        if sha256(text) == TINY_SHAKESPEARE_SHA256:
            return text
        log.warning("%s is damaged: downloading it again", CACHE)
    text = _download(tuple(config.urls), config.timeout)
    _keep(text)
    return text


@cache  # one process asks once, even where the text cannot be kept
def _download(urls: tuple[str, ...], timeout: float) -> str:
    failures = []
    for url in urls:
        try:
            raw = _fetch(url, timeout)
        except (OSError, ValueError, http.client.HTTPException) as error:  # urllib's errors are OSErrors
            failures.append(f"{url}: {getattr(error, 'reason', None) or error}")
            continue
        if hashlib.sha256(raw).hexdigest() == TINY_SHAKESPEARE_SHA256:
            return raw.decode("utf-8")
        failures.append(f"{url}: sent {len(raw):,} bytes that are not Tiny Shakespeare")
    remedy = f"put a copy at {CACHE}, or name one with data.path=FILE or TINY_SHAKESPEARE=FILE"
    raise CannotBeHad(f"Tiny Shakespeare could not be had ({'; '.join(failures)}): {remedy}")


def _fetch(url: str, timeout: float) -> bytes:
    """The body at an address, up to the first byte too many.

    A server that falls silent is given up after `timeout` seconds, one that drips after twenty times as many.
    """
    deadline = time.monotonic() + 20 * timeout
    with (
        urllib.request.urlopen(url, timeout=timeout) as response,
        tqdm(
            desc="downloading Tiny Shakespeare",
            total=TINY_SHAKESPEARE_BYTES,
            unit="B",
            unit_scale=True,
            disable=None,
            leave=False,
        ) as bar,
    ):
        body = bytearray()
        while len(body) <= TINY_SHAKESPEARE_BYTES and (piece := response.read1(1 << 14)):
            body += piece
            bar.update(len(piece))
            if time.monotonic() > deadline:
                raise TimeoutError(f"only {len(body):,} bytes after {20 * timeout:.0f} s")
    return bytes(body)


def _keep(text: str) -> None:
    """Put a checked text in the cache whole or not at all; where that cannot be, this run goes on without."""
    temporary = CACHE.with_name(f".{CACHE.name}.{os.getpid()}.tmp")
    try:
        CACHE.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_bytes(text.encode("utf-8"))
            os.replace(temporary, CACHE)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        log.warning(
            "Tiny Shakespeare could not be kept in %s (%s): the next run will download it again", CACHE, error.strerror
        )


def _refuse_too_short(characters: int, parts: dict[str, slice], block_size: int, config: DataConfig) -> None:
    sizes = {name: part.stop - part.start for name, part in parts.items()}
    found = []
    if sizes["train"] < block_size + 1:
        found.append(
            f"the training part has {sizes['train']} characters and needs {block_size + 1}, "
            f"one more than model.block_size={block_size}"
        )
    if sizes["validation"] < 2:
        found.append(f"the validation part has {sizes['validation']} and needs 2")
    if config.test_fraction and sizes["test"] < 2:
        found.append(f"the test part has {sizes['test']} and needs 2")
    if found:
        fractions = f"data.validation_fraction={config.validation_fraction}"
        if config.test_fraction:
            fractions += f", data.test_fraction={config.test_fraction}"
        raise UserError(
            f"the text is too short: of its {characters} characters ({fractions}) {'; '.join(found)}. "
            "Give a longer text, a smaller model.block_size or other fractions"
        )


def sha256(text: str) -> str:
    """What tells a text from any other: the SHA-256 of its UTF-8."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
