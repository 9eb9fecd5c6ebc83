"""Jobs timed side by side: in turn, several rounds in one run, so that what disturbs the machine disturbs them alike."""

import statistics
import time
from collections.abc import Callable, Mapping


def median_seconds(jobs: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The median over so many rounds of the seconds that each job takes; a first round, to warm up, does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds + 1):
        for name, job in jobs.items():
            started = time.perf_counter()
            job()
            seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(of_job[1:]) for name, of_job in seconds.items()}
