"""The raw times of one process, of which all statistics are computed on reading."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from autocompile.estimate.intervals import Interval, median, speedup

__all__ = ["KNOWN_KEYS", "Measurement", "measurement_of"]


@dataclass(frozen=True)
class Measurement:
    """Raw block times of one process, one entry per round.

    Attributes:
        eager_s: seconds per call of the eager block.
        compiled_s: seconds per call of the compiled block in the same round.
        calls: calls of an eager and of a compiled block.
        flags: ``eager_slowed`` if eager is slower next to the other side than alone.
        leads: untimed calls before an eager and a compiled block, slowed by the other side.
    """

    eager_s: tuple[float, ...]
    compiled_s: tuple[float, ...]
    calls: tuple[int, int] = (1, 1)
    flags: tuple[str, ...] = ()
    leads: tuple[int, int] = (0, 0)

    @functools.cached_property
    def speedup(self) -> Interval:
        """Eager time over compiled time, with a 95 % interval from the rounds."""
        return speedup(self.eager_s, self.compiled_s)

    @functools.cached_property
    def eager_call_s(self) -> float:
        """Median seconds of one eager call."""
        return median(self.eager_s)

    @functools.cached_property
    def compiled_call_s(self) -> float:
        """Median seconds of one compiled call."""
        return median(self.compiled_s)


_OWN_KEYS = {f.name for f in fields(Measurement)}
KNOWN_KEYS = _OWN_KEYS | {"disturbed", "shortened"}
"""Of a measurement on disk; older versions marked disturbed rounds."""


def measurement_of(raw: Mapping[str, Any]) -> Measurement:
    """Read a measurement, ignoring an older version's keys.

    Raises:
        TypeError, ValueError: not a measurement.
    """
    found = Measurement(**{k: tuple(v) for k, v in raw.items() if k in _OWN_KEYS})
    _ = found.speedup  # raises if the times are invalid
    return found
