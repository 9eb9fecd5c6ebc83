"""Characters to ids and back. The vocabulary is the sorted distinct code points of the text."""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from configs.schema import UserError

_CODE_POINTS = 0x110000
_PIECE = 1 << 18  # characters handled at once: they stay in a processor's cache, and memory near the size of the result


def cut(text: str) -> Iterator[str]:
    """A text in pieces."""
    return (text[start : start + _PIECE] for start in range(0, len(text), _PIECE))


def vocabulary_of(pieces: Iterable[str]) -> str:
    """The distinct characters of a text that comes in pieces, in code-point order."""
    present = np.zeros(_CODE_POINTS, dtype=bool)
    for piece in pieces:
        codes = _code_points(piece)
        if not present.take(codes, mode="clip").all():  # several times as fast as to set all again
            present[codes] = True
    return "".join(map(chr, np.flatnonzero(present)))


def dtype_of(vocab_size: int) -> type[np.uint8 | np.int16 | np.int32]:
    """The smallest type of ids. Those above a byte are signed: torch does little with its larger unsigned types."""
    return np.uint8 if vocab_size <= 1 << 8 else np.int16 if vocab_size <= 1 << 15 else np.int32


class Tokenizer:
    """A character is the id of its place in `vocabulary`, a string of distinct characters in code-point order."""

    def __init__(self, vocabulary: str) -> None:
        self.vocabulary = vocabulary
        self.codes = _code_points(vocabulary).astype("<u4")
        if len(self.codes) == 0 or np.any(np.diff(self.codes.astype(np.int64)) <= 0):
            raise ValueError("a vocabulary is a non-empty string of distinct characters in code-point order")
        self.dtype = dtype_of(len(vocabulary))
        # The id of every code point, or -1; the last place stands for all code points above the vocabulary's.
        self._ids = np.full(int(self.codes[-1]) + 2, -1, dtype=np.int32)
        self._ids[self.codes] = np.arange(len(vocabulary))

    @classmethod
    def of(cls, text: str) -> "Tokenizer":
        """The tokenizer of a non-empty text."""
        return cls(vocabulary_of(cut(text)))

    @property
    def vocab_size(self) -> int:
        return len(self.vocabulary)

    @property
    def start_id(self) -> int:
        """What a text begins after when nothing is given: a line end, or without one the first of the vocabulary."""
        return max(0, self.vocabulary.find("\n"))

    def encode(self, text: str) -> NDArray[np.integer]:
        """Ids (len(text),) in the smallest type that holds them all: of one byte, two or four.

        Raises UserError that lists every unknown character.
        """
        ids = np.empty(len(text), dtype=self.dtype)
        for start, piece in enumerate(cut(text)):
            found = self.find(piece)
            if found.min() < 0:
                raise UserError(self.unknown_sentence(text))
            ids[start * _PIECE : (start + 1) * _PIECE] = found
        return ids

    def find(self, text: str) -> NDArray[np.int32]:
        """The ids (len(text),), with -1 for unknown characters."""
        return self._ids.take(_code_points(text), mode="clip")

    def decode(self, ids: NDArray[np.integer] | list[int]) -> str:
        """The text of ids (N,)."""
        if len(ids) == 0:
            return ""
        return self.codes[ids].tobytes().decode("utf-32-le", "surrogatepass")

    def unknown_sentence(self, text: str) -> str:
        """Names the characters of a text that are not in the vocabulary."""
        unknown = sorted(set(text) - set(self.vocabulary))
        named = ", ".join(f"{character!r} (U+{ord(character):04X})" for character in unknown[:20])
        more = f" and {len(unknown) - 20} more" if len(unknown) > 20 else ""
        return f"the model has never seen {named}{more}: its vocabulary holds {self.vocab_size} other characters"


def _code_points(text: str) -> NDArray[np.unsignedinteger]:
    if text.isascii():
        return np.frombuffer(text.encode("ascii"), dtype=np.uint8)
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
