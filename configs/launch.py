"""Which of the processes of a job this one is: torchrun, or whatever started them, says so in the environment.

It imports no torch.
"""

import os
from dataclasses import dataclass

from configs.schema import UserError


@dataclass(frozen=True)
class Launch:
    """One of `size` processes: number `rank` of all, `local_rank` of the `local_size` on this machine, from 0."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1


def launch() -> Launch:
    """What the environment says, a process alone where it says nothing. Raises UserError for what cannot be."""
    size = _number("WORLD_SIZE", 1)
    if size <= 1:
        return Launch()
    found = Launch(_number("RANK", -1), size, _number("LOCAL_RANK", -1), _number("LOCAL_WORLD_SIZE", 0))
    if not (0 <= found.rank < size and 0 <= found.local_rank < found.local_size <= size):
        raise UserError(
            f"the environment speaks of {size} processes (WORLD_SIZE), but RANK, LOCAL_RANK and LOCAL_WORLD_SIZE do not say "
            f"which this is: start them with torchrun --standalone --nproc_per_node={size} train.py"
        )
    return found


def _number(name: str, otherwise: int) -> int:
    text = os.environ.get(name) or str(otherwise)
    try:
        return int(text)
    except ValueError:
        raise UserError(
            f"the environment variable {name}={text} is no whole number: unset it, or use torchrun"
        ) from None
