"""Whether stations may share a run: the same versions, and machines that are alike and as fast."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Mapping
from typing import Any

from autocompile import __version__
from autocompile.errors import UsageError
from autocompile.execute.executor import Ending
from autocompile.protocol.results import TrialResult
from autocompile.store.measurement import Measurement, measurement_of
from autocompile.store.record import Outcome

__all__ = ["demand_same_versions", "slower", "unlike"]

_VERSIONS = ("python", "torch", "autocompile")
_SLOWER = 2.0  # times as long; of two equal GPUs one process took 1.34 times as long
# Of what a probe describes; the number of cores is a matter of the node, and shown.
_ALIKE = ("device_name", "driver", "power_limit_w", "cuda", "torch", "cpu", "cpu_capability")


def demand_same_versions(stations: Mapping[str, Mapping[str, Any]]) -> None:
    """Compare what stations have said of themselves, by their names, and this autocompile.

    Raises:
        UsageError: they differ, or lack torch.
    """
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


def slower(endings: Mapping[str, Ending]) -> dict[str, str]:
    """Stations on which eager mode or plain ``torch.compile()`` takes longer than on the others.

    Args:
        endings: of the same trial of plain ``torch.compile()``, by station.

    Returns why, by station. Compared with the median, of two with the faster: what is wrong with a
    machine makes it slower.
    """
    timed, found = dict[str, Measurement](), dict[str, str]()
    for name, ending in endings.items():
        with contextlib.suppress(TypeError, ValueError):  # no measurement, or a forged one
            timed[name] = measurement_of(TrialResult.read(ending.payload).measurement or {})
    for what, of in (("eager mode", "eager_call_s"), ("plain torch.compile()", "compiled_call_s")):
        times = {name: getattr(each, of) for name, each in timed.items()}
        usual = statistics.median_low(times.values()) if times else 0.0
        for name, time_s in times.items():
            if time_s > _SLOWER * usual:
                found.setdefault(name, f"{what} takes {time_s / usual:.2f} times as long there")
    return found


def _environment(ending: Ending) -> Mapping[str, Any]:
    found = ending.payload.get("environment", {})
    return found if isinstance(found, Mapping) else {}
