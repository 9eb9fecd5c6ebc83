"""Where and in which number format to compute: what was asked for, or what the machine is best at, with the reason."""

import ctypes
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from configs.launch import launch
from configs.schema import TrainerConfig, UserError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Setup:
    """The choice: `precision` is that of the blocks, as training/precision.py says; `attention_path` is plain or fused."""

    device: torch.device
    precision: torch.dtype
    attention_path: str
    threads: int
    reasons: str

    def facts(self) -> dict[str, str]:
        """What the last digits of a result depend on, for the next who computes it."""
        gpu = self.device.type == "cuda"
        return {
            "device": self.device.type,
            "instructions": torch.cuda.get_device_name(self.device) if gpu else torch.backends.cpu.get_cpu_capability(),
            "precision": _name(self.precision),
            "attention": self.attention_path,
            "threads": f"{self.threads} in each of {launch().size}" if launch().size > 1 else str(self.threads),
        }


def choose_setup(config: TrainerConfig, device_key: str = "trainer.device", dropout: float = 0.0) -> Setup:
    """Choose device, precision, attention path and threads for a model with this dropout and tell torch.

    Raises UserError, which speaks of the option `device_key`, for a device that is not here.
    """
    device, device_reason = choose_device(config.device, device_key)
    precision, precision_reason = _choose_precision(config.precision, device)
    path, path_reason = _choose_attention_path(config.attention_path, device, precision, dropout)
    threads, threads_reason = _choose_threads(config.threads)
    torch.set_num_threads(threads)
    _keep_freed_memory()
    if config.deterministic != torch.are_deterministic_algorithms_enabled():  # to ask takes torch two seconds
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it is first used
        torch.use_deterministic_algorithms(config.deterministic)
    reasons = (
        f"device {device} ({device_reason}), precision {_name(precision)} ({precision_reason}), "
        f"attention {path} ({path_reason}), threads {threads} ({threads_reason})"
    )
    if device.type != "cpu":
        repeatable = "deterministic kernels only, as asked" if config.deterministic else "not the same bits every time"
        reasons += f", {repeatable} (trainer.deterministic)"
    return Setup(device, precision, path, threads, reasons)


def choose_device(name: str, key: str) -> tuple[torch.device, str]:
    """The torch device of a name, `auto` being the best one here, and why. Only the device that is asked for is touched.

    Raises UserError, which speaks of the option `key`, for an unknown name or a device that is not here.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return _own_gpu(key), "a GPU is here"
        if torch.backends.mps.is_available() and launch().size == 1:
            return torch.device("mps"), "an Apple GPU is here"
        return torch.device("cpu"), "no GPU is here"
    if not re.fullmatch(r"cpu|mps|cuda(:\d{1,3})?", name, re.ASCII):
        raise UserError(f"{key}={name} is no device: write auto, cpu, cuda, cuda:1 or mps")
    kind, _, number = name.partition(":")
    if kind == "cuda" and not torch.cuda.is_available():
        raise UserError(f"{key}={name}: torch finds no CUDA GPU here. Use {key}=auto or {key}=cpu")
    if kind == "cuda" and number and int(number) >= torch.cuda.device_count():
        raise UserError(f"{key}={name}: the GPUs here are cuda:0 to cuda:{torch.cuda.device_count() - 1}")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise UserError(f"{key}={name}: torch finds no Apple GPU here. Use {key}=auto or {key}=cpu")
    if launch().size > 1 and (number or kind == "mps"):
        raise UserError(f"{key}={name} is one device for {launch().size} processes: use {key}=auto, cuda or cpu")
    return _own_gpu(key) if name == "cuda" else torch.device(name), "as asked"


def _own_gpu(key: str) -> torch.device:
    """The GPU of this process: where several share a machine, each has one of its own."""
    here = launch()
    if here.size == 1:
        return torch.device("cuda")
    if here.local_size > torch.cuda.device_count():
        raise UserError(
            f"{here.local_size} processes were started here, and there are {torch.cuda.device_count()} GPUs: start one "
            f"for each, or set {key}=cpu"
        )
    torch.cuda.set_device(here.local_rank)
    return torch.device("cuda", here.local_rank)


def _name(precision: torch.dtype) -> str:
    return str(precision).removeprefix("torch.")


def _choose_precision(name: str, device: torch.device) -> tuple[torch.dtype, str]:
    if name != "auto":
        emulated = device.type == "cpu" and name != "float32" and not _processor_multiplies(name)
        doubt = ", though this processor seems to have no instructions for it and may be slow" if emulated else ""
        return getattr(torch, name), f"as asked{doubt}"
    if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.bfloat16, "this GPU has it in hardware"
    return torch.float32, f"the exact one, on {device.type}"


def _processor_multiplies(precision: str) -> bool:
    """Whether the processor has instructions for bfloat16 or float16; where it has not, torch emulates them slowly."""
    return bool(torch.cpu.get_capabilities().get({"bfloat16": "avx512_bf16", "float16": "avx512_fp16"}[precision]))


def _choose_attention_path(name: str, device: torch.device, precision: torch.dtype, dropout: float) -> tuple[str, str]:
    """On CPUs what benchmarks/attention.py showed to be faster on those that were measured; elsewhere torch's own kernel."""
    if name != "auto":
        return name, "as asked"
    if device.type != "cpu":
        return "fused", f"torch's kernel for {device.type}"
    if dropout:
        return "plain", "faster than fused with dropout on the processors measured"
    if precision == torch.bfloat16 and _processor_multiplies("bfloat16"):
        return "plain", "faster than fused on the processors measured that have bfloat16 instructions"
    return "fused", "faster than plain on the processors measured"


def _choose_threads(asked: int | None) -> tuple[int, str]:
    """Where several jobs run beside each other, what started them says in OMP_NUM_THREADS what share each has."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = os.environ.get("OMP_NUM_THREADS", "")
    here = launch()
    beside = f", in each of {here.size} processes" if here.size > 1 else ""
    if asked:
        return asked, f"as asked{beside}"
    if beside:  # torchrun sets OMP_NUM_THREADS=1, however many cores there are
        return max(1, cores // here.local_size), f"a share of the {cores} cores{beside}"
    if share.isdecimal() and 0 < int(share) < cores:
        return int(share), f"OMP_NUM_THREADS; there are {cores} cores"
    return cores, "one for each core of this process"


def _keep_freed_memory() -> None:
    """Have glibc keep what a step frees for the next step.

    By default it gives large arrays back to the system, which hands out the same pages again, zeroed, thousands of times a
    step. Does nothing where the C library is another one, or a glibc before 2.35, which takes no threshold so high.
    """
    with suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        trim_threshold, mmap_threshold = -1, -3  # as <malloc.h> numbers them
        if mallopt(mmap_threshold, 2**30):
            mallopt(trim_threshold, 2**31 - 1)


_SHORTAGES = ("allocate memory", "Storage size calculation overflowed", "invalid dimension size")


def is_memory_shortage(error: Exception) -> bool:
    """Whether this is one of the several ways in which torch says that memory does not suffice."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(words in str(error) for words in _SHORTAGES)


@contextmanager
def torch_errors_in_words() -> Iterator[None]:
    """Turn torch's words for too little memory, or for what it cannot repeat, into a UserError."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if is_memory_shortage(error):
            raise UserError(
                "memory does not suffice: choose smaller sizes, or for training a larger trainer.grad_accumulation"
            ) from error
        if "deterministic" in str(error):
            reason = str(error).split(". ")[0]
            raise UserError(f"trainer.deterministic=true cannot be honoured here: {reason}") from error
        raise


def compiled(model: nn.Module, loss_of: Callable[[nn.Module], Tensor]) -> nn.Module:
    """torch.compile the model and prove it on one loss, forward and backward; if that fails, say so and go on without.

    The compiled module shares its weights with `model`, which stays the one to save, evaluate and sample.
    """
    log.info("compiling the model (trainer.compile=true): the first step waits for it")
    fast = cast(nn.Module, torch.compile(model))
    try:
        with torch.random.fork_rng():
            loss_of(fast).backward()
    except Exception as error:  # any failure of a compiler we do not know: the plain model does the same
        torch._dynamo.reset()
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        log.warning("torch.compile failed here (%s): going on without it", reason.strip())
        return model
    finally:
        model.zero_grad(set_to_none=True)
    return fast
