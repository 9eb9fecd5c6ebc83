"""Where the time of a step goes, by torch's own profiler."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import profile, schedule

log = logging.getLogger(__name__)

_BEFORE, _WARMUP, _STEPS = 5, 2, 10  # the first steps are slower than those that follow
_ROWS = 15


@contextmanager
def profiling(path: Path, wanted: bool) -> Iterator[Callable[[], object]]:
    """If `wanted`, look at ten steps, log where their time went, and write a trace to `path` that browsers can show.

    Yields what is to be called after each step. A run that ends before the ten are over shows those that it took.
    """
    if not wanted:
        yield lambda: None
        return

    shown = False

    def report(seen: profile) -> None:
        nonlocal shown
        steps = min(seen.step_num - _BEFORE - _WARMUP, _STEPS)
        if steps == 0:  # what followed the last step was seen alone
            return
        shown = True
        seen.export_chrome_trace(str(path))
        busiest = "self_device_time_total" if torch.cuda.is_initialized() else "self_cpu_time_total"
        table = seen.key_averages().table(busiest, row_limit=_ROWS, max_name_column_width=40)
        log.info("%d steps, the slowest operations first:\n%s", steps, table)
        log.info("open %s in https://ui.perfetto.dev to see every operation", path)

    plan = schedule(wait=_BEFORE, warmup=_WARMUP, active=_STEPS, repeat=1)
    with profile(schedule=plan, on_trace_ready=report) as seen:
        yield seen.step
    if not shown:
        log.warning("no step was profiled: the run ended within its first %d, which are not typical", _BEFORE + _WARMUP)
