"""The budget: seconds of a whole run, from the command to the report."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

__all__ = ["Budget"]

_FOR_RACES = 0.4  # kept back for confirming, unless less is enough
_FOR_EXPORTS = 0.05  # kept back for running what is exported, after the races
_REPORT_S = 1.0
_MOST = 1.1
_GRACE = 0.03  # of the budget: for a trial that has nearly ended when the races should begin


class Budget:
    """Counts down.

    Args:
        total_s: seconds of the whole run; None: no end.
        trials: how many trials of the search may have a process of their own; None: no end.
        began: when the run began, by ``clock``.
        clock: seconds.
    """

    def __init__(
        self,
        total_s: float | None,
        trials: int | None = None,
        began: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total_s, self.trials, self._clock = total_s, trials, clock
        self._began = clock() if began is None else began
        self._kept_s = _FOR_EXPORTS * (total_s or 0.0)

    @property
    def spent_s(self) -> float:
        """Since the run began."""
        return self._clock() - self._began

    @property
    def left_s(self) -> float:
        """Until the report has to be written, or what is exported has to be run."""
        if self.total_s is None:
            return math.inf
        return self.total_s - _REPORT_S - self._kept_s - self.spent_s

    def release(self) -> None:
        """From now on the time counts that was kept back for what comes after the races."""
        self._kept_s = 0.0

    def is_over(self) -> bool:
        """Whether what still runs is to be ended: a tenth more than the budget has passed."""
        return self.total_s is not None and self.spent_s > _MOST * self.total_s

    def is_over_for_search(self, races_s: float) -> bool:
        """Whether a trial that still runs is to be ended, since its time is that of the races."""
        return races_s > 0 and self.for_search_s(races_s) < -_GRACE * (self.total_s or 0.0)

    def for_search_s(self, races_s: float) -> float:
        """Seconds that the search may still take, if the races are expected to take ``races_s``."""
        if self.total_s is None:
            return math.inf
        return self.left_s - min(_FOR_RACES * self.total_s, races_s)
