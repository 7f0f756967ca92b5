"""Pace: a piece of work that is always the same, done again and again beside what is timed.

A virtual machine shares its cores with others that it cannot see: nobody in it waits, and no
counter moves, but for seconds everything takes up to twice as long, and code that uses several
threads or much memory suffers more than other code. So the ratio of two times is another one then.
What takes longer than it has taken before, with nothing of its own changed, shows it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from autocompile.calm import SLOWER

__all__ = ["Pace"]

_SIZE, _PRODUCTS, _SUMS = 128, 12, 150
_BEST_SHARE = 0.1  # of all samples: their fastest tenth says what this machine can do


class Pace:
    """Measures the two things that calls are made of, in seconds: arithmetic and dispatch.

    Args:
        device: what is timed. Beside a GPU the CPU dispatches only.
        best: what other processes here have reached, one number for each; empty if unknown.
    """

    def __init__(self, device: torch.device, best: Sequence[float] = ()) -> None:
        self._left, self._right, self._out = (torch.randn(_SIZE, _SIZE) for _ in range(3))
        self._small = torch.zeros(4)
        self._kinds = [self._sums] if device.type == "cuda" else [self._sums, self._products]
        self._known = list(best) if len(best) == len(self._kinds) else []
        self._samples: list[list[float]] = []
        self.sample()  # the first is always slow

    def sample(self) -> int:
        """Do the work once; the number of this sample."""
        # The better of two: a short interruption is not what is looked for here.
        self._samples.append([min(kind(), kind()) for kind in self._kinds])
        return len(self._samples) - 1

    def slow(self) -> list[bool]:
        """For each sample, whether a part of it took over 8 % longer than at best.

        By what is known now: after more samples the answers may be others.
        """
        reached = self.best()
        most = [SLOWER * min(pair) for pair in zip(reached, self._known or reached, strict=True)]
        return [any(s > m for s, m in zip(seen, most, strict=True)) for seen in self._samples]

    def best(self) -> list[float]:
        """What this process has reached, in seconds, one number for each kind of work."""
        share = int(_BEST_SHARE * len(self._samples))
        return [sorted(values)[share] for values in zip(*self._samples, strict=True)]

    def _products(self) -> float:
        """One product of small matrices, by as many threads as there are."""
        with torch.no_grad():
            begin = time.perf_counter()
            for _ in range(_PRODUCTS):
                torch.mm(self._left, self._right, out=self._out)
            return (time.perf_counter() - begin) / _PRODUCTS

    def _sums(self) -> float:
        """One call of an operator that has next to nothing to do."""
        with torch.no_grad():
            begin = time.perf_counter()
            for _ in range(_SUMS):
                self._small.add_(1.0)
            return (time.perf_counter() - begin) / _SUMS
