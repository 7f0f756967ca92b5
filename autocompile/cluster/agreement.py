"""Whether stations may share a run: the same versions, and machines that are alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autocompile.errors import UsageError
from autocompile.execute.executor import Ending
from autocompile.store.record import Outcome

__all__ = ["demand_same_versions", "left_out"]

_VERSIONS = ("python", "torch", "autocompile")
# Of what a probe describes; the number of cores is a matter of the node, and shown.
_ALIKE = ("device_name", "driver", "cuda", "torch", "cpu", "cpu_capability")


def demand_same_versions(stations: Mapping[str, Mapping[str, Any]]) -> None:
    """Compare what stations have said of themselves, by their names.

    Raises:
        UsageError: they differ, or lack torch.
    """
    for what in _VERSIONS:
        where: dict[str, list[str]] = {}
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


def left_out(probes: Mapping[str, Ending], reference: str) -> dict[str, str]:
    """Stations that cannot share a run with the reference, each with the reason.

    Where no probe has succeeded, the target is to blame and nobody is left out.
    """
    if probes[reference].outcome is not Outcome.OK:
        return {}
    found, first = {}, _environment(probes[reference])
    for name, ending in probes.items():
        own = _environment(ending)
        other = [k for k in _ALIKE if own.get(k) != first.get(k)]
        if ending.outcome is not Outcome.OK:
            found[name] = f"its probe ended with {ending.outcome.value} ({ending.message})"
        elif other:
            told = (f"{k} is {own.get(k)}, not {first.get(k)}" for k in other)
            found[name] = f"its machine differs from that of {reference}: {'; '.join(told)}"
    return found


def _environment(ending: Ending) -> Mapping[str, Any]:
    found = ending.payload.get("environment", {})
    return found if isinstance(found, Mapping) else {}
