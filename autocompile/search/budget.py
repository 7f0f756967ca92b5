"""The time budget of a whole run, from the command to the report."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

__all__ = ["Budget"]

_FOR_RACES = 0.4  # largest share reserved for races
_FOR_EXPORTS = 0.05  # share reserved for running exported code after the races
_REPORT_S = 1.0
_MOST = 1.1
_GRACE = 0.03  # share by which the last search trial may delay the races


class Budget:
    """Remaining time of a run.

    Args:
        total_s: seconds of the whole run; None: unlimited.
        trials: maximum number of search trials that start a process; None: unlimited.
        began: time at which the run began, by ``clock``.
        clock: returns seconds.
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
        self._most_s = math.inf if total_s is None else total_s
        self._usable = 1 - _FOR_EXPORTS

    @property
    def spent_s(self) -> float:
        return self._clock() - self._began

    @property
    def left_s(self) -> float:
        """Seconds until the report or, before :meth:`release`, until exported code must run."""
        return self._usable * self._most_s - _REPORT_S - self.spent_s

    def release(self) -> None:
        self._usable = 1.0

    def for_search_s(self, races_s: float) -> float:
        """Seconds left for the search if the races take ``races_s``."""
        return self.left_s - min(_FOR_RACES * self._most_s, races_s)

    def is_over(self, races_s: float = 0.0) -> bool:
        """Whether running jobs must be ended, at 110 % or to leave ``races_s`` for the races."""
        is_late = races_s > 0 and self.for_search_s(races_s) < -_GRACE * self._most_s
        return is_late or self.spent_s > _MOST * self._most_s
