"""The losses of steps, left where they were computed until somebody asks, so that no step waits for a GPU."""

import math

import torch
from torch import Tensor

from configs.schema import UserError
from training import distributed

MOST_UNREAD = 100  # steps; then they are to be read


class Diverged(UserError):
    """A loss, gradient or weight is not a finite number any more; nothing that led to it is saved."""

    def __init__(self, what: str, step: int, lr: float, last_loss: float) -> None:
        last = f", last finite training loss {last_loss:.4f}" if math.isfinite(last_loss) else ""
        super().__init__(
            f"{what} is not a finite number at step {step} (learning rate {lr:.3g}{last}): stopped before it reached a saved "
            "file. Try lower optimizer.lr, table_lr and n_gram_lr, a longer optimizer.warmup_steps, or bfloat16 for float16"
        )


class Losses:
    """Losses and gradients' norms since the last reading."""

    def __init__(self) -> None:
        self.unread: list[tuple[int, float, Tensor]] = []  # step, learning rate, and loss with norm
        self.loss = self.grad_norm = math.nan  # of the latest step that was read

    def add(self, step: int, lr: float, loss: Tensor, grad_norm: Tensor) -> None:
        """Take a step's loss () and norm (), as they are on their device."""
        self.unread.append((step, lr, torch.stack((loss, grad_norm))))

    def read(self) -> None:
        """Have the latest loss and norm here. Raises Diverged for the first step of which one is not finite."""
        if not self.unread:
            return
        rows = distributed.mean(torch.stack([row for _, _, row in self.unread]).cpu()).tolist()
        for (step, lr, _), (loss, grad_norm) in zip(self.unread, rows, strict=True):
            if not math.isfinite(loss + grad_norm):
                what = "the gradient" if math.isfinite(loss) else "the training loss"
                raise Diverged(what, step, lr, self.loss)
            self.loss, self.grad_norm = loss, grad_norm
        self.unread.clear()
