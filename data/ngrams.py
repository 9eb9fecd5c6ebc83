"""Counting baselines: what is to be had without any learning.

Interpolated n-gram models with Witten-Bell weights (Witten and Bell, 1991; Chen and Goodman, 1999, section 2.5). With h
the last n - 1 characters, h' the last n - 2, c(.) counts in the training part and t(h) the number of distinct
characters seen after h:

    P_n(x | h) = (c(hx) + t(h) P_{n-1}(x | h')) / (c(h) + t(h)),    P_0 = 1 / vocab_size

so that a history never seen falls back on the shorter one. Of a long text only the characters around the place where
its training part ends are counted, so that neither time nor memory grows with it.
"""

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.integer]
HIGHEST_ORDER = 5
MOST_COUNTED = 4_000_000  # characters, the last ones of the training part
MOST_PREDICTED = 1_000_000  # characters, the first ones of the validation part
_MOST_CELLS = 1 << 22  # of the bigram table that are computed at once


def baseline_losses(train: Ids, validation: Ids, vocab_size: int, highest: int = HIGHEST_ORDER) -> dict[str, float]:
    """Nats per character on the validation part of the orders 1 ("1") to `highest`, fitted on the training part.

    Counted are the characters that evaluation counts, all but the first; of long parts only the last MOST_COUNTED of the
    training and the first MOST_PREDICTED of the validation part. Memory is about 35 bytes a training character and 80 a
    validation character. Orders whose sequences do not fit in 63 bits (vocabularies above 6,208 characters at order 5)
    are left out.
    """
    train, validation = train[-MOST_COUNTED:], validation[:MOST_PREDICTED]
    losses = {}
    codes = {"train": np.zeros(len(train), dtype=np.int64), "validation": np.zeros(len(validation), dtype=np.int64)}
    probabilities = np.full(len(validation), 1 / vocab_size)
    for order in range(1, highest + 1):
        if vocab_size**order >= 2**63:
            break
        # The code of a sequence is its ids read as digits in base vocab_size: last character last.
        codes["train"] = _longer(codes["train"], train, order, vocab_size)
        codes["validation"] = _longer(codes["validation"], validation, order, vocab_size)
        seen = np.sort(codes["train"])
        differs = np.ones(len(seen), dtype=bool)
        differs[1:] = seen[1:] != seen[:-1]
        first_of_kind = seen[differs]
        sequences = codes["validation"]
        histories = sequences - sequences % vocab_size
        history_count = np.searchsorted(seen, histories + vocab_size) - np.searchsorted(seen, histories)
        kinds = np.searchsorted(first_of_kind, histories + vocab_size) - np.searchsorted(first_of_kind, histories)
        count = np.searchsorted(seen, sequences, side="right") - np.searchsorted(seen, sequences)
        shorter = probabilities[len(probabilities) - len(sequences) :]
        with np.errstate(invalid="ignore"):
            blended = (count + kinds * shorter) / (history_count + kinds)
        # The first characters have too short a past for this order: they keep what the lower orders say.
        probabilities[len(probabilities) - len(sequences) :] = np.where(history_count > 0, blended, shorter)
        losses[str(order)] = float(-np.log(probabilities[1:]).mean())
    return losses


def bigram_log_probabilities(train: Ids, vocab_size: int) -> NDArray[np.float64]:
    """log P_2(next | last) as a table (vocab_size, vocab_size), row: last character, column: next.

    Of a long training part the last MOST_COUNTED characters are counted.
    """
    train = train[-MOST_COUNTED:]
    unigram_counts = np.bincount(train, minlength=vocab_size).astype(np.float64)
    unigram_kinds = np.count_nonzero(unigram_counts)
    unigram = (unigram_counts + unigram_kinds / vocab_size) / (unigram_counts.sum() + unigram_kinds)
    pairs = np.sort(train[:-1].astype(np.int64) * vocab_size + train[1:])
    table = np.empty((vocab_size, vocab_size))
    rows = max(1, _MOST_CELLS // vocab_size)
    for first in range(0, vocab_size, rows):
        part = table[first : first + rows]
        start, stop = np.searchsorted(pairs, (first * vocab_size, first * vocab_size + part.size))
        counts = np.bincount(pairs[start:stop] - first * vocab_size, minlength=part.size).reshape(part.shape)
        kinds = np.count_nonzero(counts, axis=1)[:, None]
        totals = counts.sum(1, keepdims=True) + kinds
        seen = (counts + kinds * unigram) / np.where(totals > 0, totals, 1)
        part[:] = np.log(np.where(totals > 0, seen, unigram))
    return table


def _longer(codes: NDArray[np.int64], ids: Ids, order: int, vocab_size: int) -> NDArray[np.int64]:
    """From the codes of all sequences of order - 1 characters in a text, those of all sequences of `order`."""
    if order == 1:
        return ids.astype(np.int64)
    longer = codes[:-1] * vocab_size
    longer += ids[order - 1 :]
    return longer
