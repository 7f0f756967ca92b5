"""The rounds of a measurement, and which of them something disturbed."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator

from autocompile.trial.strain import Mark, Strain

__all__ = ["Rounds"]


class Rounds:
    """Block times of both sides, and which rounds count.

    Attributes:
        times: of eager and of the other side, in seconds per call, one entry for each round.
    """

    def __init__(self, strain: Strain | None) -> None:
        self.times: tuple[list[float], list[float]] = ([], [])
        self._strain, self._took_s = strain, list[float]()
        self._marks: list[Mark] = []
        self._is_disturbed: list[bool] = []
        self._others: list[bool] = []

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """One more: both of its times are to be added meanwhile."""
        began, mark = time.monotonic(), self._strain.mark() if self._strain else None
        yield
        names: frozenset[str] = frozenset()
        if self._strain and mark:
            names = self._strain.disturbed_since(mark)
            self._marks.append(mark)
        self._took_s.append(time.monotonic() - began)
        self._others.append(bool(names - {"slow"}))
        # All of them: the first ones did not know how fast this machine can be.
        slow = self._strain.slow(self._marks) if self._strain else [False] * len(self._others)
        self._is_disturbed = [a or b for a, b in zip(self._others, slow, strict=True)]

    @property
    def last_is_clean(self) -> bool:
        """Whether nothing disturbed the last round."""
        return not self._is_disturbed[-1]

    def disturbed_lately(self, count: int) -> int:
        """How many of the last ones do not count."""
        return sum(self._is_disturbed[-count:])

    @property
    def disturbed(self) -> tuple[int, ...]:
        """The numbers of those that do not count."""
        return tuple(number for number, is_so in enumerate(self._is_disturbed) if is_so)

    @property
    def logs(self) -> list[float]:
        """The logarithms of the speed-ups of the others."""
        rows = zip(*self.times, self._is_disturbed, strict=True)
        return [math.log(eager_s / compiled_s) for eager_s, compiled_s, is_so in rows if not is_so]

    @property
    def clean_s(self) -> float:
        """How many seconds the others took."""
        pairs = zip(self._took_s, self._is_disturbed, strict=True)
        return sum(took_s for took_s, is_so in pairs if not is_so)
