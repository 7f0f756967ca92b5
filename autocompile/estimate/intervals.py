"""Statistics of paired timings.

The estimate is always the log ratio log(t_eager / t_compiled) of two blocks of the same round, in
which drift of the machine cancels. Inside a process the median counts, since a neighbour may
stretch nearly half of the rounds many times over (studies/truth); over processes see
:func:`over_sets`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

# Two-sided 95 % quantiles of Student's t for 4, 5, 6, ... degrees of freedom.
_T95 = (
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
)
# Prior for the spread between fresh processes: standard deviation of the log ratio, and its degrees
# of freedom (studies/truth).
_PRIOR_SPREAD, _PRIOR_FREEDOM = 0.015, 4
# Standard deviation of a log speed-up between runs, beyond what their sets explain: with it the
# interval of a figure holds the truth in 93 % of recorded runs or more, of quiet and busy CPUs and of
# GPUs, each series being left out when it is asked about (studies/truth, calibrate.py).
_RUNS_APART = 0.035
# The same where only the order of two settings counts: of 161 that it calls faster than eager mode
# none is slower in truth.
_ORDER_APART = 0.015


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95 % interval, all in the unit of ``value``."""

    value: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the relative width: 0.02 means about plus or minus 2 %."""
        return (self.high - self.low) / 2 / self.value if self.value else math.inf

    def scaled(self, factor: float) -> Interval:
        """The interval times a positive constant."""
        return Interval(self.value * factor, self.low * factor, self.high * factor)

    def to_dict(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high}

    def demand_positive(self, name: str) -> None:
        """Raise a ValueError unless the ends are in order and above 0, as of a ratio."""
        if not 0 < self.low <= self.value <= self.high:
            ends = f"{self.value} in [{self.low}, {self.high}]"
            raise ValueError(f"{name} is {ends}, and has to be above 0")


def median(values: Sequence[float]) -> float:
    """The median of one or more numbers."""
    return float(np.median(np.asarray(values, dtype=float)))


def percentile(times: Iterable[tuple[float, int]], percent: float) -> float:
    """The shortest of the times that ``percent`` % of all calls do not exceed.

    ``times``: seconds of a kind of calls, and how many there are of it.
    """
    ordered = sorted(times)
    all_calls = sum(calls for _, calls in ordered)
    least = percent / 100 * all_calls
    count = 0
    for seconds, calls in ordered:
        count += calls
        if count >= least:
            return seconds
    raise ValueError("no call was timed")


def median_interval(values: Sequence[float]) -> Interval:
    """The median of ``values`` with its 95 % interval from the sign test.

    Half of the values may be wild. Where neighbours lie on the same side of the median more often
    than by chance they are not independent, and count as fewer. For fewer than six values no 95 %
    interval exists, and their range is returned.
    """
    x = np.asarray(values, dtype=float)
    if x.size == 0 or not np.isfinite(x).all():
        raise ValueError(f"need at least one finite value, got {list(values)[:3]}")
    centre, n = float(np.median(x)), x.size
    sides = np.sign(x - centre)
    # Two standard deviations of what independent values give.
    by_chance = 2 / math.sqrt(n)
    correlation = float(sides[:-1] @ sides[1:]) / n
    alike = min(0.9, max(0.0, correlation - by_chance))
    # Binomial(n, 1/2) by a normal approximation with continuity, of as many independent values.
    reach = 0.98 * math.sqrt(n * (1 + alike) / (1 - alike)) + 0.5
    below = max(0, math.floor(n / 2 - reach))
    ordered = np.sort(x)
    return Interval(centre, float(ordered[below]), float(ordered[n - 1 - below]))


def _exp(interval: Interval) -> Interval:
    return Interval(
        *(math.exp(v) for v in (interval.value, interval.low, interval.high))
    )


def speedup(eager_s: Sequence[float], compiled_s: Sequence[float]) -> Interval:
    """How many times faster the compiled side is, by seconds per call of each round's blocks."""
    if len(eager_s) != len(compiled_s) or not eager_s:
        raise ValueError(
            f"{len(eager_s)} eager blocks, {len(compiled_s)} compiled blocks"
        )
    if min(*eager_s, *compiled_s) <= 0:
        raise ValueError("a block time is not positive")
    logs = [math.log(e / c) for e, c in zip(eager_s, compiled_s, strict=True)]
    return _exp(median_interval(logs))


def ratio(numerator: Interval, denominator: Interval) -> Interval:
    """The quotient of two independent estimates; errors of the logs add in quadrature."""
    value = numerator.value / denominator.value
    over, under = numerator, denominator
    up = math.hypot(math.log(over.high / over.value), math.log(under.value / under.low))
    down = math.hypot(
        math.log(over.value / over.low), math.log(under.high / under.value)
    )
    return Interval(value, value * math.exp(-down), value * math.exp(up))


def over_sets(logs: Sequence[float]) -> Interval:
    """The mean over fresh processes with its t interval; each process gave one log ratio.

    The variance of so few processes is uncertain, so it is combined with a prior, as in Smyth's
    moderated t (Statistical Applications in Genetics and Molecular Biology 3, 2004). The interval
    of a single process comes from the prior alone.
    """
    if not logs:
        raise ValueError("no process measured it")
    x = np.asarray(logs, dtype=float)
    freedom = _PRIOR_FREEDOM + x.size - 1
    own_squares = float(((x - x.mean()) ** 2).sum())
    prior_squares = _PRIOR_FREEDOM * _PRIOR_SPREAD**2
    spread = own_squares + prior_squares
    quantile = _T95[min(freedom - _PRIOR_FREEDOM, len(_T95) - 1)]
    error = quantile * math.sqrt(spread / freedom / x.size)
    centre = float(x.mean())
    return _exp(Interval(centre, centre - error, centre + error))


def between_runs(
    found: Interval, eager_apart: float = 0.0, only_order: bool = False
) -> Interval:
    """The interval of other runs too: processes of one minute agree better than runs do.

    ``eager_apart``: a standard error of the log of eager mode's time that comes to it;
    ``only_order``: what of it may turn the order of two settings.
    """
    apart = _ORDER_APART if only_order else math.hypot(_RUNS_APART, eager_apart)
    same = 1.96 * apart
    one_run = Interval(1.0, math.exp(-same), math.exp(same))
    return ratio(found, one_run)
