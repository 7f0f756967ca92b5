"""Whether stations may share a run: the same versions, and machines that are alike and as fast."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from autocompile import __version__
from autocompile.errors import UsageError
from autocompile.execute.executor import Ending
from autocompile.store.measurement import Measurement
from autocompile.store.record import Outcome

__all__ = ["call_times", "demand_same_versions", "slower", "unlike"]

_VERSIONS = ("python", "torch", "autocompile")
_TIMED = ("eager mode", "plain torch.compile()")
_SLOWER = 2.0  # times as long; of two equal GPUs one process took 1.34 times as long
# Of what a probe describes; the number of cores is a matter of the node, and shown.
_ALIKE = ("device_name", "driver", "power_limit_w", "cuda", "torch", "cpu", "cpu_capability")


def demand_same_versions(stations: Mapping[str, Mapping[str, Any]]) -> None:
    """Compare what stations have said of themselves, by their names, and this autocompile."""
    for what in _VERSIONS:
        where: dict[str, list[str]] = {}
        if what == "autocompile":  # the driver's torch is not used
            where[__version__] = ["this machine"]
        for name, facts in stations.items():
            where.setdefault(str(facts[what]), []).append(name)
        if "" in where:
            raise UsageError(
                f"{what} is not installed on {', '.join(where[''])}",
                hint=f"the same image on every node, with {what} in the Python that runs Ray",
            )
        if len(where) > 1:
            raise UsageError(
                f"the stations run different versions of {what}, so their trials do not compare",
                *(f"{version} on {', '.join(names)}" for version, names in where.items()),
                hint="the same image on every node",
            )


def unlike(probe: Ending, name: str, reference: Ending) -> str:
    """Why a station cannot share a run with the one that ``name`` and ``reference`` are of.

    Empty if it can, and where no probe has succeeded: then the target is to blame.
    """
    if reference.outcome is not Outcome.OK:
        return ""
    if probe.outcome is not Outcome.OK:
        return f"its probe ended with {probe.outcome.value} ({probe.message})"
    own, first = _environment(probe), _environment(reference)
    told = [
        f"{k} is {own.get(k)}, not {first.get(k)}" for k in _ALIKE if own.get(k) != first.get(k)
    ]
    return f"its machine differs from that of {name}: {'; '.join(told)}" if told else ""


def call_times(ending: Ending) -> tuple[float, ...]:
    """Seconds of a call in eager mode and compiled; empty if the trial did not measure them."""
    with contextlib.suppress(
        TypeError, ValueError, AttributeError
    ):  # no measurement, or a forged one
        if ending.outcome is Outcome.OK:
            found = Measurement.from_dict(ending.payload.get("measurement") or {})
            return found.eager_call_s, found.compiled_call_s
    return ()


def slower(times_s: Sequence[float], others_s: Sequence[float]) -> str:
    """What takes longer on one machine than on another, by :func:`call_times`; empty: nothing."""
    for what, own_s, other_s in zip(_TIMED, times_s, others_s, strict=True):
        if own_s > _SLOWER * other_s:
            return f"{what} takes {own_s / other_s:.2f} times as long"
    return ""


def _environment(ending: Ending) -> Mapping[str, Any]:
    found = ending.payload.get("environment", {})
    return found if isinstance(found, Mapping) else {}
