"""What a driver itself costs for each trial, with scripted stations: python growth.py growth.json

Process time, the scripted stations' own work included: an upper bound. First of the executor alone,
then of a whole run, whose sampler looks at all settings that are left.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripted import measured, stations, tune, write

from autocompile import SearchSpace
from autocompile.execute.executor import Ended, Ending
from autocompile.execute.job import JobFactory
from autocompile.progress import Progress
from autocompile.protocol.requests import Header, Side, TrialRequest
from autocompile.settings.config import DEFAULT_INDUCTOR
from autocompile.store.record import Record, RunFolder

TRIALS = 2000
SPACE = SearchSpace(
    batch_sizes=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
    options=tuple((("limit", n),) for n in range(70)),
    fullgraph=(False,),
    dynamic=(None, False, True),
)
WITH_TWINS = dataclasses.replace(
    SPACE, fullgraph=(False, True)
)  # the other one answers each


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
            if len(self.at_s) == TRIALS:
                raise KeyboardInterrupt


def whole(
    count: int, space: SearchSpace = SPACE, budget_s: float | None = None
) -> dict[str, Any]:
    """A run with everything: sampler, records, Optuna, report."""
    stamps = Stamps()
    run_dir = f"run-{count}-{len(space.fullgraph)}-{budget_s}"
    tune(*stations(count, script), space, stamps, run_dir, budget_s)
    return {
        "stations": count,
        "trials": len(stamps.at_s),
        "ms_per_trial": slices(stamps.at_s),
    }


def executor_alone(count: int) -> dict[str, Any]:
    """Jobs from ``request.json`` to their ending, with as many running as there is room for."""
    (_, executor), folder = stations(count, script), RunFolder(Path(f"jobs-{count}"))
    folder.create()
    factory = JobFactory(folder, Header("net.py"), 60.0, None)
    at_s, running = list[float](), 0
    while len(at_s) < TRIALS:
        while running < executor.slots:
            request = TrialRequest(
                header=factory.header,
                number=factory.next_number(),
                phase="forward",
                sides=(Side(DEFAULT_INDUCTOR),),
                batch_size=4,
            )
            executor.start(factory.job(request))
            running += 1
        for event in executor.wait(60.0):
            if isinstance(event, Ended):
                running -= 1
                factory.drop_cache(event.number)
                at_s.append(time.process_time())
    executor.close()
    return {"stations": count, "trials": len(at_s), "ms_per_trial": slices(at_s)}


def slices(at_s: Sequence[float]) -> list[float]:
    """Of each eighth."""
    size = len(at_s) // 8
    ends = at_s[::size][:9]
    return [round(1000 * (b - a) / size, 2) for a, b in itertools.pairwise(ends)]


def main() -> dict[str, Any]:
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
    }
    found["executor"] = [executor_alone(8), executor_alone(64)]
    found["whole"] = [whole(8), whole(64)]
    found["with_budget"] = [whole(8, budget_s=1e7)]
    found["with_twins"] = [whole(8, WITH_TWINS), whole(64, WITH_TWINS)]
    return found


if __name__ == "__main__":
    write(main)
