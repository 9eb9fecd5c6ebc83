"""A text that a person and a model write together, a turn each, on a terminal."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from configs.checks import problems
from configs.schema import UserError
from sampling.writer import Writer, known, show, tell
from training.files import write_text

HELP = """Type a line, and the model goes on after it; an empty line lets it go on at once. Ctrl-C stops what is being written.
  /temperature 0.5   write more tamely from here on, or with 1.2 more boldly
  /length 300        write so many characters at a turn
  /undo              take back the last turn, yours and the model's
  /show              print the whole text
  /save FILE         save the whole text in a new file
  /help              this
  /quit              end, as does Ctrl-D
A line that is to begin with / begins with //."""
NUMBERS: dict[str, tuple[Callable[[str], float], str]] = {
    "temperature": (float, "a number"),
    "length": (int, "a whole number"),
}


class Conversation:
    """The text as it stands, and how long it was before each turn."""

    def __init__(self, writer: Writer, text: str, generator: torch.Generator) -> None:
        self.writer, self.text, self.generator = writer, text, generator
        self.earlier: list[int] = []

    def add(self, line: str) -> str:
        """Begin a turn with a person's line, which may be empty; returns what was added to the text.

        Raises UserError for characters that the model does not know; the text then stays as it was.
        """
        line = known(line, self.writer.tokenizer, self.writer.config.on_unknown)
        added = f"{parted(self.text)}{line}\n" if line else ""
        self.earlier.append(len(self.text))
        self.text += added
        return added

    def go_on(self) -> Generator[str, None, None]:
        """Yield what the model writes, piece by piece. What has been yielded stays, however the iterator ends."""
        pieces: list[str] = []
        try:
            for (piece,) in self.writer.continuations(self.text, [self.generator]):
                pieces.append(piece)
                yield piece
        finally:
            self.text += "".join(pieces)

    def undo(self) -> None:
        """Take back the last turn. Raises UserError if there was none."""
        if not self.earlier:
            raise UserError("there is no turn to take back")
        self.text = self.text[: self.earlier.pop()]

    def set(self, name: str, value: str) -> None:
        """Change an option of sampling. Raises UserError for a value that it cannot have."""
        config = replace(self.writer.config)
        kind, wanted = NUMBERS[name]
        try:
            setattr(config, name, kind(value))
        except ValueError:
            raise UserError(f"/{name} needs {wanted}, and {value!r} is none") from None
        if found := problems(config):
            raise UserError(found[0])
        self.writer.config = config

    def save(self, name: str) -> None:
        """Save the text in a new file. Raises UserError if there is one of this name, or if it cannot be written."""
        if not name:
            raise UserError("name a file, as in /save scene.txt")
        try:
            path = Path(name).expanduser()
            if os.path.lexists(path):
                raise UserError(f"{name} exists: choose another name")
            write_text(path, self.text)
        except (RuntimeError, ValueError, OSError) as error:  # no such user; a zero byte; a name too long
            raise UserError(f"/save {name} is refused: {error}") from None


def converse(writer: Writer, text: str, generator: torch.Generator) -> None:
    """Take turns until the person has had enough: text on standard output, everything else on standard error."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # editing and history; not on Windows

    if on_terminal() and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, nothing_to_stop)
    conversation = Conversation(writer, text, generator)
    tell("/help tells what can be typed; Ctrl-D ends.")
    show(text)
    while True:
        try:
            with stoppable():
                line = asked(conversation)
            if line.split()[:1] == ["/quit"]:
                return
            answer(conversation, line)
        except EOFError:
            show("\n")
            return
        except KeyboardInterrupt:
            tell("")
        except UserError as error:
            tell(str(error))


def answer(conversation: Conversation, line: str) -> None:
    """Do what a line asks for. Raises UserError for what cannot be done."""
    command, _, value = line.partition(" ")
    value = value.strip()
    if not line.startswith("/") or line.startswith("//"):
        added = conversation.add(line[1:] if line.startswith("//") else line)
        if not on_terminal():  # which shows what is typed
            show(added)
        with stoppable(), contextlib.closing(conversation.go_on()) as pieces:
            for piece in pieces:
                show(piece)
    elif command in ("/temperature", "/length"):
        conversation.set(command[1:], value)
    elif command == "/undo":
        conversation.undo()
        tell(f"taken back; the text now ends:\n{conversation.text[-200:]}")
    elif command == "/show":
        show(conversation.text)
    elif command == "/save":
        conversation.save(value)
        tell(f"saved in {value}")
    elif command == "/help":
        tell(HELP)
    else:
        raise UserError(f"{command} is no command: /help lists them; begin with // to write a line that starts with /")


def asked(conversation: Conversation) -> str:
    """The next line that is typed. Raises EOFError at the end of standard input, OSError if it cannot be read."""
    if on_terminal():
        show(parted(conversation.text))
        return input("> ")
    if sys.stdin.isatty():
        sys.stderr.write("> ")  # standard output is for the text
        sys.stderr.flush()
    return input()


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """In here Ctrl-C raises KeyboardInterrupt, if it means anything; at other moments there is nothing to stop."""
    ours = signal.getsignal(signal.SIGINT) is nothing_to_stop
    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, nothing_to_stop)


def nothing_to_stop(*_: Any) -> None:
    """What Ctrl-C does between turns."""


def on_terminal() -> bool:
    """Whether a person types on a terminal and reads there, too."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def parted(text: str) -> str:
    """The line end that a text lacks, if any, for what is shown after it."""
    return "" if text.endswith("\n") or not text else "\n"
