"""Which windows a training step sees: a pure function of (seed, step).

An epoch cuts the text into windows of block_size characters that do not overlap, from an offset drawn for that epoch, and
visits them in a drawn order. So each character is a target once in an epoch, but for fewer than two windows' worth at
the two ends, and nothing depends on what ran before: a resumed run sees the batches the unbroken one would have seen.
"""

from functools import lru_cache

import numpy as np
import torch
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
        return self.ids[self.starts(step)[:, None] + self._window].long()

    def starts(self, step: int) -> Tensor:
        """Where the windows of a step begin in the text (batch_size,), int64."""
        epoch, place = divmod(step * self.batch_size, self.windows_per_epoch)
        parts, wanted = [], self.batch_size
        while wanted:
            parts.append(self._epoch(epoch)[place : place + wanted])
            wanted -= len(parts[-1])
            epoch, place = epoch + 1, 0
        return torch.cat(parts)

    def _draw_epoch(self, epoch: int) -> Tensor:
        random = np.random.default_rng((self.seed, epoch))
        slack = len(self.ids) - 1 - self.windows_per_epoch * self.block_size
        offset = random.integers(slack + 1)
        starts = offset + random.permutation(self.windows_per_epoch) * self.block_size
        return torch.from_numpy(starts).to(self.ids.device)  # once an epoch: a GPU would have to wait for it
