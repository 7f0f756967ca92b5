"""doctor on a Ray cluster: which stations there are, and what each can do."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autocompile.cluster.executor import ClusterExecutor
from autocompile.cluster.links import Cluster, connected
from autocompile.cluster.places import CPU, Place, places_of, side_by_side
from autocompile.errors import AutocompileError
from autocompile.execute.executor import Ended, Told
from autocompile.execute.job import JobFactory
from autocompile.protocol.requests import Header, ProbeRequest
from autocompile.protocol.results import ProbeResult
from autocompile.store.record import RunFolder

__all__ = ["stations_of"]

_TIMEOUT_S = 300.0
_EMPTY: Mapping[str, Any] = {
    "files": {},
    "place": "/nowhere",
    "isolation": "auto",
    "memory_limit_bytes": None,
}


def stations_of(address: str, device: str | None = None) -> dict[str, Any]:
    """The stations of each accelerator type: ``stations``, and ``notes`` about those left out."""
    found: dict[str, Any] = {}
    with connected(address) as cluster:
        places = places_of(cluster.nodes(), None)
        for kind in (kind for kinds in side_by_side(places) for kind in kinds):
            own = device or ("cpu" if kind == CPU else None)
            try:
                found[kind] = _looked_at(cluster, places[kind], own)
            except AutocompileError as error:
                found[kind] = {"stations": [], "notes": [error.text()]}
    return {"address": address, "types": found}


def _looked_at(cluster: Cluster, places: Sequence[Place], device: str | None) -> dict[str, Any]:
    links = cluster.open(places, _EMPTY)
    with (
        tempfile.TemporaryDirectory(prefix="autocompile-") as scratch,
        contextlib.closing(ClusterExecutor(links, cluster.receive)) as executor,
    ):
        factory = JobFactory(RunFolder(Path(scratch)), Header(device=device), _TIMEOUT_S, None)
        request = ProbeRequest(header=factory.header, batch_size=1)
        executor.start(factory.probe_job(request, compiles=False))
        notes, is_over = [], False
        while not is_over:
            for event in executor.wait(1.0):
                notes += [event.text] if isinstance(event, Told) else []
                is_over |= isinstance(event, Ended)
        # One in the place of a lost station has said nothing yet.
        rows = [_row(s.name, s.facts, s.slots, s.probe) for s in executor.stations if s.probe]
    return {"stations": rows, "notes": notes}


def _row(name: str, facts: Mapping[str, Any], slots: int, probe: Any) -> dict[str, Any]:
    said = ProbeResult.read(probe.payload)
    return {
        "name": name,
        "host": facts["host"],
        "python": facts["python"],
        "torch": facts["torch"],
        "jobs": slots,
        "device": said.environment.get("device_name"),
        "driver": said.environment.get("driver"),
        "power_limit_w": said.environment.get("power_limit_w"),
        "installed": [b for b, reason in said.backends.items() if not reason],
        "problem": said.message or probe.message,
    }
