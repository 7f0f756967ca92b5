"""A small piece of work that is always the same, done again and again beside what is timed.

It tells spells of a slow host (:mod:`autocompile.estimate.host`). It is not eager mode, since eager
is in the ratio that is measured.
"""

from __future__ import annotations

import time

import torch

from autocompile.estimate.intervals import median

__all__ = ["ReferenceWork"]

_SIZE, _PRODUCTS, _SUMS = 128, 12, 150


class ReferenceWork:
    """Products of small matrices and small operators: what calls are made of.

    Args:
        device: what is timed. Beside a GPU nothing is done: eager mode follows the speed of the
            CPU and a replayed graph does not, so that no state of the CPU is the right one.
    """

    def __init__(self, device: torch.device) -> None:
        # Whatever dtype and device the target has made the default.
        square = torch.ones(_SIZE, _SIZE, dtype=torch.float32, device="cpu")
        self._left, self._right, self._out = square, square.clone(), square.clone()
        self._small = torch.zeros(4, dtype=torch.float32, device="cpu")
        self._is_idle = device.type != "cpu"
        self._seconds: list[float] = []
        self._once()

    def sample(self) -> None:
        """Do the work once; a short interruption does not change the median."""
        if not self._is_idle:
            self._seconds.append(self._once())

    @property
    def median_s(self) -> float:
        """Seconds of a sample; 0 where nothing is done."""
        return median(self._seconds) if self._seconds else 0.0

    def _once(self) -> float:
        with torch.no_grad():
            begin = time.perf_counter()
            for _ in range(_PRODUCTS):
                torch.mm(self._left, self._right, out=self._out)
            for _ in range(_SUMS):
                self._small.add_(1.0)
            return time.perf_counter() - begin
