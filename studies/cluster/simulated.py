"""Wall time on simulated clusters against the least possible.

    python studies/cluster/simulated.py studies/cluster/simulated.json

The clock is simulated; the search, the scheduling and the race are the real ones, and the messages
are the real JSON. A trial takes 8 to 40 s, of which the last 3 s come one after another at each
station.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from fakes import FakeExecutor, ScriptedStations, measured, probed

from autocompile import SearchSpace
from autocompile.api import Parts, tune_with
from autocompile.cluster.dispatch import ClusterExecutor
from autocompile.execute.executor import Ending
from autocompile.progress import Progress
from autocompile.request import Request
from autocompile.store.record import Record

MEASURE_S = 3.0
SPACE = SearchSpace(
    batch_sizes=(8, 16, 32, 64), fullgraph=(False, True), dynamic=(None, False, True)
)


def script(request: Mapping[str, Any]) -> Ending:
    """Time and speed-up that depend on the setting alone."""
    text = json.dumps([request["config"], request["batch_size"]], sort_keys=True)
    digest = hashlib.sha256(text.encode()).digest()
    is_eager = request["config"]["backend"] == "eager"
    wall_s = 8.0 if is_eager else 8.0 + 32.0 * digest[1] / 255
    ending = measured(
        1.0 if is_eager else 1.0 + digest[0] / 256, compile_s=wall_s - MEASURE_S
    )
    return dataclasses.replace(ending, wall_s=wall_s)


class Watch(Progress):
    """When the search ended and what its trials took."""

    def __init__(self, stations: ScriptedStations) -> None:
        self.stations, self.walls, self.searched_s = stations, list[float](), 0.0

    def ended(self, record: Record, left: int) -> None:
        if record.role == "search" and record.wall_s:
            self.walls.append(record.wall_s)
            self.searched_s = self.stations.now


def simulated(count: int) -> dict[str, Any]:
    """Every setting of the space, on so many stations."""
    names = [f"host{n}" for n in range(count)]
    probe = probed(options=["limit"])
    found = ScriptedStations(
        names, lambda name: FakeExecutor(script, probe), measure_s=MEASURE_S
    )
    executor = ClusterExecutor(found.links, found.receive, found.clock)
    watch = Watch(found)
    request = Request("net.py", space=SPACE, effort="full", run_dir=f"run-{count}")
    tune_with(request, Parts(executor, watch, found.clock))
    bound_s = max(sum(watch.walls) / count, max(watch.walls))
    return {
        "stations": count,
        "trials": len(watch.walls),
        "search_s": round(watch.searched_s, 1),
        "bound_s": round(bound_s, 1),
        "over_bound": round(watch.searched_s / bound_s, 2),
        "races_s": round(found.now - watch.searched_s, 1),
    }


def main() -> None:
    out = Path(sys.argv[1]).absolute()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        Path("net.py").write_text("never run", "utf-8")
        text = json.dumps([simulated(count) for count in (1, 8, 64)], indent=1)
    out.write_text(text + "\n", "utf-8")
    print(text)


if __name__ == "__main__":
    main()
