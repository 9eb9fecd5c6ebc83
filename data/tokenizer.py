"""Characters to ids and back. The vocabulary is the sorted distinct code points of the text."""

import numpy as np
from numpy.typing import NDArray

from configs.schema import UserError

_CODE_POINTS = 0x110000
_PIECE = 1 << 20  # characters handled at once, so that memory stays near the size of the result


class Tokenizer:
    """A character is the id of its place in `vocabulary`, a string of distinct characters in code-point order."""

    def __init__(self, vocabulary: str) -> None:
        self.vocabulary = vocabulary
        self.codes = _code_points(vocabulary)
        if len(self.codes) == 0 or np.any(np.diff(self.codes.astype(np.int64)) <= 0):
            raise ValueError("a vocabulary is a non-empty string of distinct characters in code-point order")
        # One byte an id where that holds them all. torch cannot index its two-byte unsigned type, so else four.
        self.dtype: type[np.uint8 | np.int32] = np.uint8 if len(vocabulary) <= 256 else np.int32

    @classmethod
    def of(cls, text: str) -> "Tokenizer":
        """The tokenizer of a non-empty text."""
        present = np.zeros(_CODE_POINTS, dtype=bool)
        for start in range(0, len(text), _PIECE):
            present[_code_points(text[start : start + _PIECE])] = True
        return cls("".join(map(chr, np.flatnonzero(present))))

    @property
    def vocab_size(self) -> int:
        return len(self.vocabulary)

    @property
    def start_id(self) -> int:
        """What a text begins after when nothing is given: a line end, or without one the first of the vocabulary."""
        return max(0, self.vocabulary.find("\n"))

    def encode(self, text: str) -> NDArray[np.integer]:
        """Ids (len(text),) of one byte each, or four where the vocabulary needs it.

        Raises UserError that lists every unknown character.
        """
        ids = np.empty(len(text), dtype=self.dtype)
        for start in range(0, len(text), _PIECE):
            codes = _code_points(text[start : start + _PIECE])
            places = np.minimum(np.searchsorted(self.codes, codes), self.vocab_size - 1)
            if not np.array_equal(self.codes[places], codes):
                raise UserError(self._unknown_sentence(text))
            ids[start : start + _PIECE] = places
        return ids

    def decode(self, ids: NDArray[np.integer] | list[int]) -> str:
        """The text of ids (N,)."""
        if len(ids) == 0:
            return ""
        return self.codes[ids].astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")

    def _unknown_sentence(self, text: str) -> str:
        unknown = sorted(set(text) - set(self.vocabulary))
        named = ", ".join(f"{character!r} (U+{ord(character):04X})" for character in unknown[:20])
        more = f" and {len(unknown) - 20} more" if len(unknown) > 20 else ""
        return f"the model has never seen {named}{more}: its vocabulary holds {self.vocab_size} other characters"


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
