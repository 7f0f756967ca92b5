"""Times what blocks do not: calls that compile, and a reference workload."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from autocompile.estimate.intervals import median
from autocompile.trial.target.sides import Side

__all__ = ["FirstCalls", "ReferenceWork"]

_SIZE, _PRODUCTS, _SUMS = 128, 12, 150


class FirstCalls:
    """Times each call of a side until :meth:`stop`, less the seconds ``waited`` meanwhile.

    Later calls may compile too: when an optimizer has momentum or gradients exist, the program
    differs, and CUDA graphs are recorded at the second call.

    Attributes:
        window: when the first call began and ended; None before.
    """

    def __init__(
        self, side: Side, synchronize: Callable[[], None], waited: Callable[[], float]
    ) -> None:
        self._side, self._call = side, side.call
        self._synchronize, self._waited = synchronize, waited
        self._seconds: list[float] = []
        self.window: tuple[float, float] | None = None
        side.call = self._timed

    def stop(self) -> None:
        self._side.call = self._call

    def compile_s(self, steady_s: float) -> float:
        """Total seconds of the calls beyond ``steady_s`` each."""
        return sum(max(0.0, seconds - steady_s) for seconds in self._seconds)

    def _timed(self) -> Any:
        self._synchronize()
        waited_s, began = self._waited(), time.monotonic()
        output = self._call()
        self._synchronize()
        ended = time.monotonic()
        self.window = self.window or (began, ended)
        self._seconds.append(ended - began - (self._waited() - waited_s))
        return output


class ReferenceWork:
    """A small fixed computation, timed next to each measurement.

    It detects a slow host (:mod:`autocompile.estimate`). Eager mode cannot serve for that,
    since it is part of the measured ratio. Nothing is done next to a GPU: there eager mode depends
    on the CPU's speed and a replayed graph does not, so no state of the CPU is the right one.
    """

    def __init__(self, device: torch.device) -> None:
        # Explicit, since the target may change the default dtype and device.
        square = torch.ones(_SIZE, _SIZE, dtype=torch.float32, device="cpu")
        self._left, self._right, self._out = square, square.clone(), square.clone()
        self._small = torch.zeros(4, dtype=torch.float32, device="cpu")
        self._is_idle = device.type != "cpu"
        self._seconds: list[float] = []
        self._once()

    def sample(self) -> None:
        if not self._is_idle:
            self._seconds.append(self._once())

    @property
    def median_s(self) -> float:
        """Median seconds of a sample; 0 for a GPU."""
        return median(self._seconds) if self._seconds else 0.0

    def _once(self) -> float:
        with torch.no_grad():
            begin = time.perf_counter_ns()
            for _ in range(_PRODUCTS):
                torch.mm(self._left, self._right, out=self._out)
            for _ in range(_SUMS):
                self._small.add_(1.0)
            return (time.perf_counter_ns() - begin) / 1e9
