"""Which windows a training step sees: a pure function of (seed, step).

An epoch cuts the text into windows of block_size characters that do not overlap, from an offset drawn for that epoch, and
visits them in a drawn order. So each character is a target once in an epoch, but for fewer than two windows' worth at
the two ends, and nothing depends on what ran before: a resumed run sees the batches the unbroken one would have seen.

The order of an epoch is drawn as a list, or, of so many windows that their list would take long and need room, computed
place by place.
"""

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MOST_LISTED = 1 << 22  # windows
MOST_ON_DEVICE = 1 << 30  # bytes of text that are moved to a GPU whole; of longer ones, the windows are
_ROUNDS = 6


class Batches:
    """`windows(step)` gives the ids (batch_size, block_size + 1) of that step: inputs and, one further on, targets."""

    def __init__(
        self, ids: Tensor, block_size: int, batch_size: int, seed: int, device: torch.device | str | None = None
    ) -> None:
        """`ids` (N,) is the training part in any integer type, N at least block_size + 1.

        Windows are put on `device`, or stay where the ids are.
        """
        if len(ids) < block_size + 1:
            raise ValueError(f"{len(ids)} characters hold no window of block_size {block_size} and its target")
        self.device = ids.device if device is None else torch.device(device)
        self.ids = ids.to(self.device) if ids.nbytes <= MOST_ON_DEVICE else ids
        self.block_size, self.batch_size, self.seed = block_size, batch_size, seed
        self._window = torch.arange(block_size + 1, device=self.ids.device)
        # One window fewer than might fit, where there is one to spare, leaves room for every offset within a window.
        self.windows_per_epoch = max(1, (len(ids) - block_size) // block_size)
        self._epoch = lru_cache(maxsize=2)(self._draw_epoch)

    def windows(self, step: int) -> Tensor:
        """The ids (batch_size, block_size + 1), int64, of step 0, 1, 2, ..."""
        return self.ids[self.starts(step)[:, None] + self._window].to(self.device).long()

    def starts(self, step: int) -> Tensor:
        """Where the windows of a step begin in the text (batch_size,), int64."""
        epoch, place = divmod(step * self.batch_size, self.windows_per_epoch)
        parts, wanted = [], self.batch_size
        while wanted:
            parts.append(self._starts_in(epoch, place, min(place + wanted, self.windows_per_epoch)))
            wanted -= len(parts[-1])
            epoch, place = epoch + 1, 0
        return torch.cat(parts)

    def _starts_in(self, epoch: int, first: int, stop: int) -> Tensor:
        """Where the windows at places first ... stop - 1 of an epoch begin."""
        if self.windows_per_epoch <= MOST_LISTED:
            return self._epoch(epoch)[first:stop]
        offset, random = self._offset(epoch)
        keys = random.integers(2**64, size=_ROUNDS, dtype=np.uint64)
        order = shuffled(np.arange(first, stop, dtype=np.uint64), self.windows_per_epoch, keys)
        return torch.from_numpy(offset + order.astype(np.int64) * self.block_size).to(self.ids.device)

    def _draw_epoch(self, epoch: int) -> Tensor:
        offset, random = self._offset(epoch)
        starts = offset + random.permutation(self.windows_per_epoch) * self.block_size
        return torch.from_numpy(starts).to(self.ids.device)  # once an epoch: a GPU would have to wait for it

    def _offset(self, epoch: int) -> tuple[int, np.random.Generator]:
        """Where the first window of an epoch begins, and the random numbers that come after those that it took."""
        random = np.random.default_rng((self.seed, epoch))
        slack = len(self.ids) - 1 - self.windows_per_epoch * self.block_size
        return int(random.integers(slack + 1)), random


def shuffled(places: NDArray[np.uint64], count: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """What stands at some places (N,) of the numbers 0 ... count - 1 in the random order of the keys, without a list of all.

    A Feistel network orders a power of four; what comes out too large is put in again until it is not (Black and Rogaway,
    "Ciphers with Arbitrary Finite Domains", 2002).
    """
    half = np.uint64(((count - 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << int(half)) - 1)

    def network(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = numbers >> half, numbers & mask
        for key in keys:
            mixed = (right ^ key) * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ mixed >> np.uint64(32)) * np.uint64(0xD6E8FEB86659FD93)
            left, right = right, left ^ mixed >> np.uint64(32) & mask
        return left << half | right

    numbers = network(places)
    while (too_large := numbers >= count).any():
        numbers[too_large] = network(numbers[too_large])
    return numbers
