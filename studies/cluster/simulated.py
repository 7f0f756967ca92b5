"""Wall time on simulated clusters against the least possible: python simulated.py simulated.json

The clock is simulated; the search, the scheduling and the race are the real ones. A trial takes 8
to 40 s, of which the last 3 s come one after another on each host, as with one token.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import autocompile
from autocompile.cluster.executor import ClusterExecutor
from autocompile.execute.executor import Ending
from autocompile.progress import Progress
from autocompile.store.record import Record
from autocompile.testing import FakeExecutor, ScriptedStations, measured

MEASURE_S = 3.0
SPACE = autocompile.SearchSpace(
    batch_sizes=(8, 16, 32, 64), fullgraph=(False, True), dynamic=(None, False, True)
)


def script(request: Mapping[str, Any]) -> Ending:
    """Time and speed-up that depend on the setting alone."""
    text = json.dumps([request["config"], request["batch_size"]], sort_keys=True)
    digest = hashlib.sha256(text.encode()).digest()
    is_eager = request["config"]["backend"] == "eager"
    wall_s = 8.0 if is_eager else 8.0 + 32.0 * digest[1] / 255
    ending = measured(1.0 if is_eager else 1.0 + digest[0] / 256, compile_s=wall_s - MEASURE_S)
    return dataclasses.replace(ending, wall_s=wall_s)


class Watch(Progress):
    """When the search ended and what its trials took."""

    def __init__(self, stations: ScriptedStations) -> None:
        self.stations, self.walls, self.searched_s = stations, list[float](), 0.0

    def ended(self, record: Record, left: int) -> None:
        if record.role == "search" and record.wall_s:
            self.walls.append(record.wall_s)
            self.searched_s = self.stations.now


def simulated(count: int, per_host: int) -> dict[str, Any]:
    names = [f"host{n // per_host}/{n % per_host}" for n in range(count)]
    stations = ScriptedStations(names, lambda name: FakeExecutor(script), measure_s=MEASURE_S)
    executor = ClusterExecutor(stations.links, stations.receive, stations.clock)
    watch = Watch(stations)
    autocompile.tune(
        "net.py",
        executor=executor,
        space=SPACE,
        effort="full",
        clock=stations.clock,
        progress=watch,
        run_dir=f"run-{count}-{per_host}",
    )
    hosts = len({name.partition("/")[0] for name in names})
    bound_s = max(sum(watch.walls) / count, max(watch.walls), MEASURE_S * len(watch.walls) / hosts)
    return {
        "stations": count,
        "hosts": hosts,
        "trials": len(watch.walls),
        "search_s": round(watch.searched_s, 1),
        "bound_s": round(bound_s, 1),
        "over_bound": round(watch.searched_s / bound_s, 2),
        "races_s": round(stations.now - watch.searched_s, 1),
    }


def main() -> None:
    out = Path(sys.argv[1]).absolute()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        Path("net.py").write_text("never run", "utf-8")
        shapes = ((1, 1), (8, 1), (8, 8), (64, 1), (64, 8))
        rows = [simulated(count, per_host) for count, per_host in shapes]
    out.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
