"""What a driver itself costs for each trial, with scripted stations: python growth.py growth.json

Process time of the whole driver, the scripted stations' own work included: an upper bound.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import autocompile
from autocompile.cluster.executor import ClusterExecutor
from autocompile.execute.executor import Ending
from autocompile.progress import Progress
from autocompile.store.record import Record
from autocompile.testing import FakeExecutor, ScriptedStations, measured, probed

TRIALS, SLICE = 2000, 250
SPACE = autocompile.SearchSpace(
    batch_sizes=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
    options=tuple((("limit", n),) for n in range(40)),
    fullgraph=(False, True),
    dynamic=(None, False, True),
)


def script(request: Mapping[str, Any]) -> Ending:
    """A speed-up that depends on the setting alone."""
    if request["config"]["backend"] == "eager":
        return measured(1.0)
    text = json.dumps(request["config"], sort_keys=True)
    return measured(1.0 + hashlib.sha256(text.encode()).digest()[0] / 256)


class Stamps(Progress):
    """When each search trial had ended, in process time; ends the run after the last."""

    def __init__(self) -> None:
        self.at_s: list[float] = []

    def ended(self, record: Record, left: int) -> None:
        if record.role == "search" and record.duplicate_of is None:
            self.at_s.append(time.process_time())
            if len(self.at_s) > TRIALS:
                raise KeyboardInterrupt


def cost(count: int) -> dict[str, Any]:
    names = [f"host{n // 8}/{n % 8}" for n in range(count)]
    stations = ScriptedStations(names, lambda name: FakeExecutor(script, probed(options=["limit"])))
    executor = ClusterExecutor(stations.links, stations.receive, stations.clock)
    stamps = Stamps()
    autocompile.tune(
        "net.py",
        executor=executor,
        space=SPACE,
        effort="full",
        clock=stations.clock,
        progress=stamps,
        run_dir=f"run-{count}",
    )
    ends = stamps.at_s[::SLICE]
    per_trial_ms = [round(1000 * (b - a) / SLICE, 2) for a, b in itertools.pairwise(ends)]
    return {"stations": count, "trials": len(stamps.at_s) - 1, "ms_per_trial_by_250": per_trial_ms}


def main() -> None:
    out = Path(sys.argv[1]).absolute()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        Path("net.py").write_text("never run", "utf-8")
        rows = [cost(8), cost(64)]
    machine = {"python": platform.python_version(), "cores": os.cpu_count()}
    out.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n", "utf-8")
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
