"""What a setting must keep to be chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autocompile.errors import UsageError
from autocompile.settings.option import (
    CHOSEN,
    SIZE,
    TIME,
    Kind,
    demand_accepted,
    demand_known,
    option,
    seconds,
)
from autocompile.store.reading import plain
from autocompile.store.recorded_calls import PERCENTILES

_FLAG = "--max-latency"


def _read_latency(flag: str, texts: Sequence[str]) -> float | None:
    plain = [text for text in texts if "=" not in text]
    return seconds(flag, plain[-1]) if plain else None


def _read_percentiles(flag: str, texts: Sequence[str]) -> dict[str, float] | None:
    found = {}
    for name, _, text in (t.partition("=") for t in texts if "=" in t):
        demand_known(flag, name, PERCENTILES, f"{flag} {{}}=10ms")
        found[name] = seconds(flag, text)
    return found or None


def _write_percentiles(value: Mapping[str, float]) -> list[str]:
    return [f"{name}={most:.15g}" for name, most in value.items()]


# One flag for both: 10ms is the limit of a call, p95=10ms that of a percentile.
_LATENCY = Kind(
    "[P=]TIME",
    _read_latency,
    TIME.write,
    TIME.expected,
    TIME.accepts,
    repeats=True,
)
_PERCENTILES = Kind("[P=]TIME", _read_percentiles, _write_percentiles, repeats=True)


@dataclass(frozen=True)
class Limits:
    """Limits that a setting must keep to be chosen; None: no limit."""

    latency_s: float | None = option(
        None,
        _LATENCY,
        "most seconds of one call, of every shape; p95=10ms limits a percentile",
        CHOSEN,
        _FLAG,
    )
    # A setting whose memory is not known does not keep a limit of memory.
    memory_bytes: int | None = option(
        None, SIZE, "most memory at the peak, as 2GiB", CHOSEN, "--max-memory"
    )
    compile_s: float | None = option(
        None, TIME, "most seconds of compiling, cold", CHOSEN, "--max-compile-time"
    )
    percentiles: Mapping[str, float] = option(
        dict,
        _PERCENTILES,
        "seconds that a share of the calls does not exceed, as p95",
        CHOSEN,
        _FLAG,
    )

    def to_dict(self) -> dict[str, Any]:
        """The limits that there are, as JSON."""
        return {n: plain(v) for n, v in vars(self).items() if v not in (None, {})}

    def __post_init__(self) -> None:
        demand_accepted(self)
        if unknown := self.percentiles.keys() - PERCENTILES.keys():
            raise UsageError(
                f"percentile {min(unknown)!r} is none of {', '.join(PERCENTILES)}"
            )
