"""Where the time of a step goes, by torch's own profiler."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.profiler import profile, schedule

log = logging.getLogger(__name__)

_WAIT, _WARMUP, _STEPS = 5, 2, 10  # the first steps are slower than those that follow
_ROWS = 15


@contextmanager
def profiling(path: Path, wanted: bool) -> Iterator[Callable[[], object]]:
    """If `wanted`, look at ten steps, log where their time went, and write a trace to `path` that browsers can show.

    Yields what is to be called after each step.
    """
    if not wanted:
        yield lambda: None
        return

    def report(seen: profile) -> None:
        seen.export_chrome_trace(str(path))
        table = seen.key_averages().table("self_cpu_time_total", row_limit=_ROWS, max_name_column_width=40)
        log.info("%d steps, the slowest operations first:\n%s", _STEPS, table)
        log.info("open %s in https://ui.perfetto.dev to see every operation", path)

    with profile(schedule=schedule(wait=_WAIT, warmup=_WARMUP, active=_STEPS, repeat=1), on_trace_ready=report) as seen:
        yield seen.step
