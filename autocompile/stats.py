"""Statistics of paired timings: what the numbers are, and how sure they are.

The estimate everywhere is the paired log ratio log(t_eager / t_compiled) of two blocks that ran
next to each other, so that drift of the machine cancels. Locations are Hodges-Lehmann estimates,
intervals come from the Wilcoxon signed-rank distribution (Hollander, Wolfe & Chicken,
"Nonparametric Statistical Methods", 3rd ed., ch. 3), which asks nothing of the noise but symmetry.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = [
    "Interval",
    "across_processes",
    "lag1_autocorrelation",
    "median",
    "ratio",
    "signed_rank_interval",
    "speedup",
]

# Two-sided 95 % quantiles of Student's t for 1, 2, 3, ... degrees of freedom.
_T95 = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160)
_Z95 = 1.96
_CORRELATED = 0.3
_LEAST_SHARE = 0.5  # of the usual uncertainty of a process


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
        """The interval times a positive constant (a unit, a baseline)."""
        return Interval(self.value * factor, self.low * factor, self.high * factor)

    def to_dict(self) -> dict[str, float]:
        """As it stands in ``report.json``."""
        return {"value": self.value, "low": self.low, "high": self.high}


def median(values: Sequence[float]) -> float:
    """The median of at least one number."""
    return float(np.median(np.asarray(values, dtype=float)))


def lag1_autocorrelation(values: Sequence[float]) -> float:
    """Correlation of each value with the one after it; 0 for fewer than four values."""
    x = np.asarray(values, dtype=float)
    if x.size < 4:
        return 0.0
    x = x - x.mean()
    power = float(x @ x)
    return float(x[:-1] @ x[1:]) / power if power else 0.0


def _merge_neighbours(values: np.ndarray) -> np.ndarray:
    even = values[: values.size // 2 * 2]
    return np.asarray(even.reshape(-1, 2).mean(axis=1))


@functools.lru_cache(maxsize=512)
def _signed_rank_cut(n: int, alpha: float = 0.05) -> int:
    """The largest c with P(W <= c - 1) <= alpha / 2, W being the signed-rank statistic of n.

    The distribution is counted exactly: rank k is in the sum or not, each with probability 1/2.
    """
    chance = np.zeros(n * (n + 1) // 2 + 1)
    chance[0] = 1.0
    for rank in range(1, n + 1):
        shifted = np.zeros_like(chance)
        shifted[rank:] = chance[:-rank]
        chance = (chance + shifted) / 2
    return int(np.searchsorted(np.cumsum(chance), alpha / 2, side="right"))


def signed_rank_interval(values: Sequence[float]) -> Interval:
    """Hodges-Lehmann location of ``values`` with its 95 % signed-rank interval.

    Neighbours are averaged in pairs while they are correlated (lag 1 above 0.3) and at least
    twelve remain: a slow drift would otherwise count as many independent witnesses. With fewer
    than six values no 95 % interval exists and the range of the values stands in for it.

    Raises:
        ValueError: no values, or one that is not finite.
    """
    x = np.asarray(values, dtype=float)
    if x.size == 0 or not np.isfinite(x).all():
        raise ValueError(f"need at least one finite value, got {list(values)[:3]}")
    while x.size >= 12 and lag1_autocorrelation(x.tolist()) > _CORRELATED:
        x = _merge_neighbours(x)
    rows, columns = np.triu_indices(x.size)
    walsh = np.sort((x[rows] + x[columns]) / 2)
    cut = _signed_rank_cut(x.size)
    if cut == 0:
        return Interval(float(np.median(walsh)), float(x.min()), float(x.max()))
    return Interval(float(np.median(walsh)), float(walsh[cut - 1]), float(walsh[-cut]))


def _exp(interval: Interval) -> Interval:
    return Interval(*(math.exp(v) for v in (interval.value, interval.low, interval.high)))


def speedup(eager_s: Sequence[float], compiled_s: Sequence[float]) -> Interval:
    """How many times faster compiled is, from block times in seconds per call, in pairs.

    Args:
        eager_s: seconds per call of each round's eager block.
        compiled_s: the same for the compiled block of the same round.

    Raises:
        ValueError: unequal or empty lists, or a time that is not positive.
    """
    if len(eager_s) != len(compiled_s) or not eager_s:
        raise ValueError(f"{len(eager_s)} eager blocks against {len(compiled_s)} compiled ones")
    if min(*eager_s, *compiled_s) <= 0:
        raise ValueError("a block time is not positive")
    logs = [math.log(e / c) for e, c in zip(eager_s, compiled_s, strict=True)]
    return _exp(signed_rank_interval(logs))


def ratio(numerator: Interval, denominator: Interval) -> Interval:
    """The quotient of two independent estimates; relative errors add in quadrature."""
    value = numerator.value / denominator.value

    def log_error(a: float, b: float) -> float:
        return abs(math.log(a / b))

    up = math.hypot(
        log_error(numerator.high, numerator.value),
        log_error(denominator.value, denominator.low),
    )
    down = math.hypot(
        log_error(numerator.value, numerator.low),
        log_error(denominator.high, denominator.value),
    )
    return Interval(value, value * math.exp(-down), value * math.exp(up))


def across_processes(speedups: Sequence[Interval]) -> Interval:
    """One estimate from several fresh processes that measured the same thing.

    Processes differ by more than the noise inside one (memory layout, thread placement), so this is
    the random-effects model of meta-analysis: a process weighs by its own uncertainty together with
    how far processes are apart (DerSimonian & Laird, Controlled Clinical Trials 7, 1986), and the
    interval is Student's t over the weighted estimates (Hartung & Knapp, Statistics in Medicine 20,
    2001). Equally certain processes weigh the same; one that a neighbour left with next to no
    knowledge hardly counts. The interval is never narrower than what the rounds inside the
    processes allow. One process keeps its own.
    """
    if len(speedups) == 1:
        return speedups[0]
    logs = np.log([s.value for s in speedups])
    within = np.log([s.high / s.low for s in speedups]) / (2 * _Z95)
    # None is much better known than the others: eight rounds may agree by chance.
    within = np.maximum(within, _LEAST_SHARE * np.median(within))
    weights = 1 / (within**2 + _between(logs, within)) if within.all() else np.ones_like(logs)
    weights /= weights.sum()
    centre = float(weights @ logs)
    freedom = len(speedups) - 1
    variance = float(weights @ (logs - centre) ** 2) / freedom
    quantile = _T95[min(freedom - 1, len(_T95) - 1)]
    least = _Z95 * math.sqrt(float(weights**2 @ within**2))
    error = max(quantile * math.sqrt(variance), least)
    return _exp(Interval(centre, centre - error, centre + error))


def _between(logs: np.ndarray, within: np.ndarray) -> float:
    """The variance between processes: what their own uncertainty does not explain."""
    weights = within**-2
    centre = weights @ logs / weights.sum()
    excess = weights @ (logs - centre) ** 2 - (logs.size - 1)
    return max(0.0, float(excess / (weights.sum() - weights @ weights / weights.sum())))
