"""The reference workload: a small fixed computation, timed next to each measurement.

It detects a slow host (:mod:`autocompile.estimate.host`). Eager mode cannot serve for that, since
it is part of the measured ratio.
"""

from __future__ import annotations

import time

import torch

from autocompile.estimate.intervals import median

__all__ = ["ReferenceWork"]

_SIZE, _PRODUCTS, _SUMS = 128, 12, 150


class ReferenceWork:
    """Products of small matrices and small elementwise operators.

    Args:
        device: of the measurement. Does nothing for a GPU: there eager mode depends on the CPU's
            speed and a replayed graph does not, so no state of the CPU is the right one.
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
        """Time the workload once."""
        if not self._is_idle:
            self._seconds.append(self._once())

    @property
    def median_s(self) -> float:
        """Median seconds of a sample; 0 for a GPU."""
        return median(self._seconds) if self._seconds else 0.0

    def _once(self) -> float:
        with torch.no_grad():
            begin = time.perf_counter()
            for _ in range(_PRODUCTS):
                torch.mm(self._left, self._right, out=self._out)
            for _ in range(_SUMS):
                self._small.add_(1.0)
            return time.perf_counter() - begin
