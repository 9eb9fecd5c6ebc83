"""Several processes that train one model, as torchrun starts them: what they tell each other. One alone tells nothing.

Each takes an equal part of the windows of a step and of an evaluation. torch's DistributedDataParallel averages their
gradients, so all have the same weights at all times. The first of them alone writes and speaks.
"""

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from configs.launch import launch
from configs.schema import UserError
from model.language_model import NGramEmbedding

T = TypeVar("T")

JOINING = timedelta(minutes=5)  # until all processes must have come
ANSWERING = timedelta(minutes=30)  # for what one does alone: a large text is read, pictures are drawn
_FOLDER = "quillet/folder"


class Parted(UserError):
    """Another process of the run has ended, or does not answer."""

    def __init__(self, error: BaseException) -> None:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        # Less the place in torch's source, and its advice.
        reason = re.sub(r"^\[\S*\] ", "", lines[0]).partition(". ")[0]
        super().__init__(
            f"another process of this run has ended or does not answer ({reason[:200]}): see what it said, "
            "and unless torchrun starts all again by itself, go on with resume=latest"
        )


@contextlib.contextmanager
def joined(joining: timedelta = JOINING) -> Iterator[None]:
    """Be one of the processes of a job as long as this is entered. Raises UserError if they do not all come."""
    here = launch()
    if here.size == 1:
        yield
        return
    try:
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        store, _, _ = next(rendezvous("env://", here.rank, here.size, timeout=joining))
        store.set_timeout(joining)
        # torchrun's store outlives a restart, and holds the addresses of those that have died.
        store = PrefixStore(f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        dist.init_process_group(backend, store=store, rank=here.rank, world_size=here.size, timeout=ANSWERING)
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"the {here.size} processes of this run did not find each other: {reason}") from error
    try:
        yield
    except RuntimeError as error:
        if _is_of_a_connection(error):
            raise Parted(error) from error
        raise
    finally:
        dist.destroy_process_group()


def _is_of_a_connection(error: RuntimeError) -> bool:
    return isinstance(error, dist.DistError) or "gloo" in str(error)


def count() -> int:
    """How many processes train this model."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """The number of this process among them, 0 for the first, which writes and speaks."""
    return dist.get_rank() if dist.is_initialized() else 0


def leads() -> bool:
    """Whether this process is the one that writes and speaks."""
    return rank() == 0


def total(numbers: Tensor) -> Tensor:
    """The sum over all processes of equally many numbers."""
    if count() > 1:
        dist.all_reduce(numbers)
    return numbers


def mean(numbers: Tensor) -> Tensor:
    """The mean over all processes of equally many numbers."""
    return total(numbers) / count()


def anywhere(*flags: bool) -> list[bool]:
    """For each flag, whether any process has it set."""
    return (total(torch.tensor(flags, dtype=torch.int32)) > 0).tolist()


def from_first(value: T) -> T:
    """What the first process has here; any plain value."""
    if count() == 1:
        return value
    box: list[Any] = [value]
    dist.broadcast_object_list(box, device=torch.device("cpu"))
    return box[0]


def from_all(value: T) -> list[T]:
    """What each process has here, in their order."""
    if count() == 1:
        return [value]
    boxes: list[Any] = [None] * count()
    dist.all_gather_object(boxes, value)
    return boxes


def in_turn(work: Callable[[], T]) -> T:
    """Do work that may be refused: the first process before the others, so that these find what it has made.

    Raises UserError in the first process for all that was refused anywhere, and Parted in the others.
    """
    done, refusal = None, None
    for others in (False, True):
        if leads() != others:
            try:
                done = work()
            except (UserError, OSError) as error:
                refusal = error
        refusals = from_all(None if refusal is None else str(refusal))
        found = [f"process {number}: {said}" if number else said for number, said in enumerate(refusals) if said]
        if refusal is not None and leads():
            raise refusal
        if found:
            raise UserError("; ".join(found)) if leads() else Parted(UserError(found[0]))
    return done  # type: ignore[return-value]


def refuse_differences(facts: dict[str, Any]) -> None:
    """Raises UserError in the first process, and Parted in the others, if they do not all have the same facts."""
    first, *others = from_all(facts)
    found = [
        f"{key} is {other.get(key)} in process {number} and {value} in process 0"
        for number, other in enumerate(others, start=1)
        for key, value in first.items()
        if other.get(key) != value
    ]
    if found:
        error = UserError(f"the processes of a run need the same options and text: {'; '.join(found)}")
        raise error if leads() else Parted(error)


def own_part(windows: Tensor) -> Tensor:
    """Of the windows (B, T + 1) of a step those of this process, B over their number."""
    return windows.chunk(count())[rank()]


def parallel(network: nn.Module) -> nn.Module:
    """The network, whose backward passes within `averaging` average gradients over all processes."""
    if count() == 1:
        return network
    # Their gradients may be sparse, and gloo's sum of such ones now and then spoils the memory of the process.
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
        network,
        [f"{name}.table.weight" for name, module in network.named_modules() if isinstance(module, NGramEmbedding)],
    )
    return DistributedDataParallel(network, forward_sync_buffers=False)


@contextlib.contextmanager
def averaging(network: nn.Module, last: bool) -> Iterator[None]:
    """Gradients of the parts of a step add up where they are, and are averaged over all processes with the last."""
    if not isinstance(network, DistributedDataParallel):
        yield
        return
    with contextlib.nullcontext() if last else network.no_sync():
        yield
    if last:
        for module in network.modules():
            if isinstance(module, NGramEmbedding):
                _average_of_table(module.table.weight)


def _average_of_table(table: Tensor) -> None:
    """Average the gradient of a table: the whole, or where it is sparse, the rows that it has in any process."""
    assert table.grad is not None
    if not table.grad.is_sparse:
        table.grad = mean(table.grad)
        return
    gradient = table.grad.coalesce()
    rows, of_rows = gradient.indices()[0], gradient.values()
    most = torch.tensor(len(rows))
    dist.all_reduce(most, dist.ReduceOp.MAX)
    missing = int(most) - len(rows)  # all send equally many: these are zeros, for row 0
    all_rows = rows.new_empty(count() * int(most))
    all_of_rows = of_rows.new_empty(len(all_rows), table.size(1))
    dist.all_gather_single(all_rows, F.pad(rows, (0, missing)))
    dist.all_gather_single(all_of_rows, F.pad(of_rows, (0, 0, 0, missing)) / count())
    table.grad = torch.sparse_coo_tensor(all_rows[None], all_of_rows, table.shape, check_invariants=False)


def own_random_numbers(seed: int, step: int) -> None:
    """Have dropout's random numbers of a step differ between processes, and depend on nothing that was before.

    The first process keeps the ones it has, which are those of a process alone, and which checkpoints hold.
    """
    if not leads():
        torch.manual_seed(hash((seed, step, rank())) % 2**63)


def remember(folder: Path) -> None:
    """Have torchrun know the folder of this run, should it start the job anew after one of its processes has died."""
    if leads() and (store := _store_of_torchrun()) is not None:
        store.set(_FOLDER, str(folder))


def folder_before_restart() -> Path | None:
    """The folder of the run in which torchrun had to start this job anew; None for its first start."""
    store = _store_of_torchrun()
    return Path(store.get(_FOLDER).decode()) if store is not None and store.check([_FOLDER]) else None


def _store_of_torchrun() -> TCPStore | None:
    """What torchrun keeps as long as it runs."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    try:
        return TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=JOINING)
    except (RuntimeError, ValueError, LookupError) as error:
        raise UserError(f"torchrun does not answer: {str(error).strip().splitlines()[0]}") from error


def end_together() -> None:
    """End the processes of a run that has come to its end, if it has several, once all of them are there.

    At once, since gloo now and then ends a process by abort() while its threads are taken down, and torchrun then the others.
    """
    if count() == 1:
        return
    from_all(None)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # whoever read it has gone
            stream.flush()
    os._exit(0)


def step_back(error: UserError) -> NoReturn:
    """End a process that is not the first. It waits, since the end of any process is the end of all: the first, or
    torchrun, is to say why. Whoever is still there then has a reason of its own.
    """
    time.sleep(5)
    if not isinstance(error, Parted):
        print(f"{Path(sys.argv[0]).name}: process {launch().rank}: {error}", file=sys.stderr)
    sys.exit(2)
