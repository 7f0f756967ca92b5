"""When the parts of a run must end, so that the whole ends with its budget.

A run is a probe, a search, races, exported code and a report, in this order. Each has its own end;
what one part does not use belongs to the next. All shares of a run's time stand in this file.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

# Seconds that are kept to end what still runs (about half a second) and to write the report
# (about one), but no more than a share of a short budget.
_REPORT_S, _REPORT = 2.0, 0.05
# Share that is kept after the races to run exported code once: about one process.
_EXPORTS = 0.05
# Largest share that is kept for the races. With more, a short budget would try too little to have
# anything to race (studies/search, replay.py).
_RACES = 0.4
# Share between the end of what a trial is expected to take and the races: one that is late is
# ended only when they need the time, since nothing of it is kept.
_GRACE = 0.03
# Share of the time left that a trial may be expected to take: predictions are off by so much.
_SURE = 0.85
# Times the seconds of an effort that a run may take at most where compiling takes long.
_LONGEST = 6.0


@dataclass
class Deadlines:
    """The ends of a run's parts; all results are in seconds.

    Attributes:
        total_s: of the whole run, report included; None: no part has an end.
        began: the beginning, by ``clock``.
        usual_s: ``total_s`` as it was at the beginning.
    """

    total_s: float | None = None
    began: float = 0.0
    clock: Callable[[], float] = time.monotonic
    usual_s: float | None = field(init=False)

    def __post_init__(self) -> None:
        self.usual_s = self.total_s

    def make_room(self, search_s: float, races_s: float) -> bool:
        """Set the end to where trials and the first races after them fit, or to the usual one.

        Whether it is later than before. It comes nearer where they take less than was expected.

        Args:
            search_s: that trials still take, from now on; 0: the end stays where it is.
            races_s: of the races without which trials are no answer, up to their share.
        """
        if self.total_s is None or self.usual_s is None or not search_s:
            return False
        trials_s = self.spent_s + search_s / _SURE + _REPORT_S
        with_races_s = min(trials_s + races_s, trials_s / (1 - _RACES))
        needed_s = with_races_s / (1 - _EXPORTS - _GRACE)
        before_s = self.total_s
        self.total_s = max(self.usual_s, min(needed_s, _LONGEST * self.usual_s))
        return self.total_s > before_s

    @property
    def spent_s(self) -> float:
        return self.clock() - self.began

    @property
    def left_s(self) -> float:
        """Until the report must begin; the probe and all that runs must have ended by then."""
        total_s = self._total_s
        return total_s - min(_REPORT_S, _REPORT * total_s) - self.spent_s

    @property
    def races_left_s(self) -> float:
        """Until the races must have ended. A set that was begun in time may last until the report."""
        return self.left_s - self._share_s(_EXPORTS)

    @property
    def longest_left_s(self) -> float:
        """Until the latest end that a run may be given."""
        usual_s = math.inf if self.usual_s is None else self.usual_s
        return _LONGEST * usual_s - self.spent_s

    def search_left_s(self, races_s: float) -> float:
        """Until the search must have ended, if the races after it take ``races_s``."""
        return self.races_left_s - min(self._share_s(_RACES), races_s)

    def trial_s(self, races_s: float, waits_s: float) -> float:
        """What a trial may be expected to take that begins now.

        Args:
            races_s: of the races after the search.
            waits_s: for which it will be stopped while others are timed.
        """
        left_s = self.search_left_s(races_s) - self._share_s(_GRACE)
        return _SURE * left_s - waits_s

    @property
    def longest_trial_s(self) -> float:
        """The same of a trial that may move the end, which the races then follow."""
        return _SURE * (1 - _RACES) * self.longest_left_s

    def is_over(self) -> bool:
        """Whether all that runs must be ended, for the report."""
        return self.left_s <= 0

    def is_search_over(self, races_s: float) -> bool:
        """Whether the trials that run must be ended, for the races."""
        return self.search_left_s(races_s) <= 0

    @property
    def _total_s(self) -> float:
        return math.inf if self.total_s is None else self.total_s

    def _share_s(self, share: float) -> float:
        """A share of the whole; of an endless run none, as it never matters."""
        return 0.0 if self.total_s is None else share * self.total_s


NO_DEADLINES = Deadlines()
"""Of a run that may take as long as it likes."""
