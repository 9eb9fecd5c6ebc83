"""Ctrl-C, kill and a closed terminal, taken as a wish to stop soon and lose nothing."""

import contextlib
import os
import signal
from types import FrameType
from typing import Any

from configs.launch import launch

_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Stopped(Exception):
    """A signal came while something was under way that need not be ended."""


class StopSignal:
    """While entered, a first signal is kept in `received` for the loop to see; a second one quits at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignal":
        # What the parent told us to ignore, as nohup does, stays ignored.
        heeded = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._receive) for number in heeded}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self.received is not None:
            os._exit(128 + number)
        self.received = number
        if launch().rank > 0:
            return
        with contextlib.suppress(OSError):  # not print: the signal may come in the middle of one
            os.write(2, b"\nstopping after this step; again to quit at once\n")

    @property
    def exit_status(self) -> int:
        """128 plus the signal: 130 after Ctrl-C, 143 after a plain kill, or where another process of the run was stopped."""
        return 128 + (self.received or signal.SIGTERM)
