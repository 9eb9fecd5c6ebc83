"""How much of what a model wrote it has copied from the text that it was trained on."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SHORT = 8  # characters; shorter sequences stand in any text


@dataclass(frozen=True)
class Novelty:
    """`longest` is the longest piece that stands in the training text letter for letter; `new` the share of all sequences
    of 8 characters that do not stand there, None without any."""

    longest: str
    new: float | None

    def sentence(self) -> str:
        """For people."""
        share = "" if self.new is None else f"; {self.new:.1%} of the sequences of {SHORT} characters are new"
        shown = self.longest if len(self.longest) <= 100 else f"{self.longest[:100]}..."
        return f"longest copy from the training text: {len(self.longest)} characters, {shown!r}{share}"


def novelty(texts: Sequence[str], training: Iterable[str]) -> Novelty:
    """Compare texts, without their prompts, with a training text in pieces.

    It is exact if the pieces overlap by one character less than the longest text has.
    """
    sequences = [text[start : start + SHORT] for text in texts for start in range(len(text) - SHORT + 1)]
    wanted = set(sequences)
    copied: set[str] = set()
    longest = ""
    for piece in training:
        here = {part for start in range(len(piece) - SHORT + 1) if (part := piece[start : start + SHORT]) in wanted}
        copied |= here
        for text in texts:
            can_be = copyable(text, here)
            for start in range(len(text)):
                while can_be[start] > len(longest) and text[start : start + len(longest) + 1] in piece:
                    longest = text[start : start + len(longest) + 1]
    new = sum(sequence not in copied for sequence in sequences) / len(sequences) if sequences else None
    return Novelty(longest, new)


def copyable(text: str, copied: set[str]) -> list[int]:
    """How long a copy that begins at each place can be at most: as far as its sequences are all copied, one by one."""
    lengths = [min(SHORT - 1, len(text) - start) for start in range(len(text))]
    for start in reversed(range(len(text) - SHORT + 1)):
        if text[start : start + SHORT] in copied:
            lengths[start] = lengths[start + 1] + 1
    return lengths
