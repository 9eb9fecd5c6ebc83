"""Runs without TensorBoard, for tests of the loop and of what is shown."""

from pathlib import Path
from typing import Any

from configs.schema import TrainConfig
from data.corpus import Corpus
from training.pictures import Picture
from training.run import Run


class Recorder:
    """Stands where TensorBoard's writer stands and keeps every point."""

    def __init__(self) -> None:
        self.points: dict[tuple[str, int], float] = {}
        self.pictures: dict[tuple[str, int], Picture] = {}

    def scalars(self, values: dict[str, float], step: int) -> None:
        for tag, value in values.items():
            assert (tag, step) not in self.points
            self.points[tag, step] = value

    def picture(self, tag: str, picture: Picture, step: int) -> None:
        self.pictures[tag, step] = picture

    def text(self, *_: object) -> None: ...
    def flush(self) -> None: ...

    def curve(self, tag: str) -> dict[int, float]:
        return {step: value for (name, step), value in self.points.items() if name == tag}


def run_of(
    config: TrainConfig, corpus: Corpus, folder: Path, saved: dict[str, Any] | None = None
) -> tuple[Run, Recorder]:
    folder.mkdir(exist_ok=True)
    run = Run(config, corpus, folder, saved)
    recorder = Recorder()
    run.tracker = recorder  # type: ignore[assignment]
    return run, recorder
