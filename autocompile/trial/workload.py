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
        device: what is timed. Beside a GPU the CPU only launches, so there are no products.
    """

    def __init__(self, device: torch.device) -> None:
        # Whatever dtype and device the target has made the default.
        square = torch.ones(_SIZE, _SIZE, dtype=torch.float32, device="cpu")
        self._left, self._right, self._out = square, square.clone(), square.clone()
        self._small = torch.zeros(4, dtype=torch.float32, device="cpu")
        self._products = 0 if device.type == "cuda" else _PRODUCTS
        self._seconds: list[float] = []
        self._once()

    def sample(self) -> None:
        """Do the work once; a short interruption does not change the median."""
        self._seconds.append(self._once())

    @property
    def median_s(self) -> float:
        """Seconds of a sample."""
        return median(self._seconds) if self._seconds else 0.0

    def _once(self) -> float:
        with torch.no_grad():
            begin = time.perf_counter()
            for _ in range(self._products):
                torch.mm(self._left, self._right, out=self._out)
            for _ in range(_SUMS):
                self._small.add_(1.0)
            return time.perf_counter() - begin
