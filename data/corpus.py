"""Where a text comes from: a file of yours, Tiny Shakespeare, or the built-in Playlet."""

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
from data import playlet, reading
from data.encoded import EncodedText, encode, encode_files, remembered
from data.ngrams import MOST_COUNTED, MOST_PREDICTED, baseline_losses
from data.tokenizer import Tokenizer

log = logging.getLogger(__name__)

TINY_SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
TINY_SHAKESPEARE_BYTES = 1_115_394
CACHE = Path(__file__).parent / "cache" / "tiny_shakespeare.txt"
_MANY_KINDS = 8000  # distinct characters; a Chinese library has some thousands
_LONG_EVALUATION = 5_000_000  # characters


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

    def baselines(self) -> dict[str, float]:
        """What counting achieves, as data/ngrams.py says; of a long text, these figures are counted once and kept."""
        if len(self.train) <= MOST_COUNTED and len(self.validation) <= MOST_PREDICTED:
            return baseline_losses(self.train, self.validation, self.tokenizer.vocab_size)
        log.info(
            "counted n-grams: of at most the last %s characters of the training part, and the first %s of the validation part",
            f"{MOST_COUNTED:,}", f"{MOST_PREDICTED:,}",
        )  # fmt: skip
        name = f"{self.sha256}.{len(self.train)}+{len(self.validation)}"
        return remembered(name, lambda: baseline_losses(self.train, self.validation, self.tokenizer.vocab_size))

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
    text = read(config)
    parts = parts_of(len(text.ids), config)
    train, validation = parts["train"], parts["validation"]
    _refuse_too_short(len(text.ids), parts, block_size, config)
    _warn_of_much(len(text.vocabulary), len(text.ids[validation]))
    # The first validation character is nobody's target: predicting it would need the training part.
    floor = None if text.nats is None else float(text.nats[validation][1:].mean())
    ids, tokenizer = text.ids, Tokenizer(text.vocabulary)
    return Corpus(name_of(config), text.sha256, tokenizer, ids[train], ids[validation], len(ids), floor)


def read(config: DataConfig) -> EncodedText:
    """The whole text that the configuration names. Raises UserError if it cannot be had, or is not UTF-8."""
    if config.name == "playlet":
        return encode(*playlet.write(config.characters))
    if config.name == "text":
        return encode_files(reading.files_of(config.path or ""))
    return encode(tiny_shakespeare(config))


@contextmanager
def that_may_have_moved(path: str | None) -> Iterator[None]:
    """Add to what is wrong with a text that the user has not named this time, but when the model was trained, what to do."""
    try:
        yield
    except UserError as error:
        raise UserError(
            f"{error}. If it has moved, say where it is with data.path=FILE" if path else str(error)
        ) from None


def parts_of(characters: int, config: DataConfig) -> dict[str, slice]:
    """Where the parts of a text of so many are: train, validation and test, in this order, and all of it."""
    validation = int(characters * (1 - config.validation_fraction - config.test_fraction))
    test = int(characters * (1 - config.test_fraction))
    return {
        "train": slice(0, validation),
        "validation": slice(validation, test),
        "test": slice(test, characters),
        "all": slice(0, characters),
    }


def name_of(config: DataConfig) -> str:
    """What tables call the text."""
    return reading.name_of(config.path) if config.name == "text" and config.path else config.name


def tiny_shakespeare(config: DataConfig) -> str:
    """Tiny Shakespeare from data.path, $TINY_SHAKESPEARE, the cache or a download, always checked against its SHA-256.

    Raises UserError if a file that was named is not it, and CannotBeHad if there is none and no download succeeds.
    """
    named = config.path or os.environ.get("TINY_SHAKESPEARE")
    if named:
        try:
            text = reading.read_text(Path(named))
        except UserError as error:
            raise UserError(f"{error} (named by data.path or the environment variable TINY_SHAKESPEARE)") from error
        if sha256(text) != TINY_SHAKESPEARE_SHA256:
            raise UserError(
                f"{named} is not Tiny Shakespeare (SHA-256 {sha256(text)}): to train on it, use data=text data.path={named}"
            )
        return text
    if CACHE.is_file():
        text = reading.read_text(CACHE)
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


def _warn_of_much(vocab_size: int, validation: int) -> None:
    if vocab_size > _MANY_KINDS:
        log.warning(
            "the text has %s distinct characters: a model of characters learns each of them apart, and may not be what you want",
            f"{vocab_size:,}",
        )
    if validation > _LONG_EVALUATION:
        log.warning(
            "the validation part has %s characters, and each evaluation reads them all: a smaller "
            "data.validation_fraction makes it faster",
            f"{validation:,}",
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
