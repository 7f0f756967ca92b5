"""The raw times of one process, of which all statistics are computed on reading."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autocompile.estimate.intervals import Interval, median, speedup
from autocompile.store.reading import known, of_fields

__all__ = ["Measurement"]


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

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Measurement:
        """Read a measurement, passing over the keys of other versions.

        Raises:
            TypeError, ValueError: not a measurement.
        """
        found: Measurement = of_fields(cls, known(cls, data))
        _ = found.speedup  # raises if the times are invalid
        return found
