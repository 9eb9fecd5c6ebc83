"""Texts as they are written: ids become characters, and what follows a wanted end is left out."""

import contextlib
import sys
from collections.abc import Iterator, Sequence

import torch

from configs.schema import SampleConfig, UserError
from data.reading import unescaped
from data.tokenizer import Tokenizer
from model.generation import Choice, generate
from model.language_model import LanguageModel


class Writer:
    """A model that goes on with texts in the way that the options of sample.py say. `config` may change between texts."""

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer, config: SampleConfig) -> None:
        """Raises UserError for a `stop` that the model cannot write."""
        self.model, self.tokenizer, self.config = model, tokenizer, config
        self.stop = unescaped(config.stop or "")
        try:
            tokenizer.encode(self.stop)
        except UserError as error:
            raise UserError(f"stop={config.stop} would never come: {error}") from None

    def continuations(self, text: str, generators: Sequence[torch.Generator]) -> Iterator[list[str]]:
        """Yield what comes after a text, piece by piece, for as many continuations of it as there are generators.

        A piece is mostly one character; it is empty while it may be the beginning of `stop`, and after that. Raises
        UserError for a text with characters that the model does not know.
        """
        config = self.config
        ids = torch.from_numpy(self.tokenizer.encode(text)) if text else torch.tensor([self.tokenizer.start_id])
        choice = Choice(config.temperature, config.top_k, config.top_p, config.min_p)
        stops = [Stop(self.stop) for _ in generators]
        for drawn in generate(self.model, ids, config.length, generators, choice, exact_window=config.exact_window):
            characters = self.tokenizer.decode(drawn)
            yield [stop.passed(character) for stop, character in zip(stops, characters, strict=True)]
            if all(stop.reached for stop in stops):
                return
        yield [stop.held for stop in stops]


def known(text: str, tokenizer: Tokenizer, on_unknown: str) -> str:
    """The text in characters that the model knows: others are dropped, or raise UserError that names them."""
    if on_unknown == "drop":
        return "".join(character for character in text if character in tokenizer.vocabulary)
    try:
        tokenizer.encode(text)
    except UserError as error:
        raise UserError(f"{error}. Leave them out, or add on_unknown=drop") from None
    return text


class Stop:
    """Lets a text pass, character by character, up to the first place where it holds `end`; the empty end never comes."""

    def __init__(self, end: str) -> None:
        self.end = end
        self.held = ""  # what may be the beginning of `end`
        self.reached = False

    def passed(self, character: str) -> str:
        """What can be shown now that this character has come."""
        if self.reached:
            return ""
        self.held += character
        if self.end and self.held == self.end:
            self.held, self.reached = "", True
            return ""
        text, shown = self.held, 0
        while not self.end.startswith(text[shown:]):
            shown += 1
        self.held = text[shown:]
        return text[:shown]


def show(text: str) -> None:
    """Put text on standard output at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def tell(remark: str) -> None:
    """Say something that does not belong to the text, on standard error; whether anybody reads it changes nothing."""
    with contextlib.suppress(OSError):
        print(remark, file=sys.stderr, flush=True)
