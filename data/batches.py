"""Which windows a training step sees: a pure function of (seed, step).

An epoch cuts the text into windows of block_size characters that do not overlap, from an offset drawn for that epoch, and
visits them in a drawn order. So each character is a target once in an epoch, but for fewer than two windows' worth at
the two ends, and nothing depends on what ran before: a resumed run sees the batches the unbroken one would have seen.
"""

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Batches:
    """`windows(step)` gives the ids (batch_size, block_size + 1) of that step: inputs and, one further on, targets."""

    def __init__(self, ids: Tensor, block_size: int, batch_size: int, seed: int) -> None:
        """`ids` (N,) is the training part in any integer type, N at least block_size + 1; windows stay on its device."""
        if len(ids) < block_size + 1:
            raise ValueError(f"{len(ids)} characters hold no window of block_size {block_size} and its target")
        self.ids, self.block_size, self.batch_size, self.seed = ids, block_size, batch_size, seed
        self._window = torch.arange(block_size + 1, device=ids.device)
        # One window fewer than might fit, where there is one to spare, leaves room for every offset within a window.
        self.windows_per_epoch = max(1, (len(ids) - block_size) // block_size)
        self._epoch = lru_cache(maxsize=2)(self._draw_epoch)

    def windows(self, step: int) -> Tensor:
        """The ids (batch_size, block_size + 1), int64, of step 0, 1, 2, ..."""
        starts = torch.from_numpy(self.starts(step)).to(self.ids.device)
        return self.ids[starts[:, None] + self._window].long()

    def starts(self, step: int) -> NDArray[np.int64]:
        """Where the windows of a step begin in the text (batch_size,)."""
        places = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        epochs, places_in_epoch = np.divmod(places, self.windows_per_epoch)
        return np.concatenate(
            [self._epoch(int(epoch))[places_in_epoch[epochs == epoch]] for epoch in np.unique(epochs)]
        )

    def _draw_epoch(self, epoch: int) -> NDArray[np.int64]:
        random = np.random.default_rng((self.seed, epoch))
        slack = len(self.ids) - 1 - self.windows_per_epoch * self.block_size
        offset = random.integers(slack + 1)
        return offset + random.permutation(self.windows_per_epoch) * self.block_size
