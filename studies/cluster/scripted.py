"""A run of autocompile on scripted stations, for the studies of this folder."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from fakes import FakeExecutor, Script, ScriptedStations, measured, probed

import autocompile
from autocompile.api import Parts, tune_with
from autocompile.cluster.dispatch import ClusterExecutor
from autocompile.progress import Progress
from autocompile.request import Request

__all__ = ["ScriptedStations", "measured", "stations", "tune", "write"]


def stations(
    count: int, script: Script, measure_s: float = 0.0
) -> tuple[ScriptedStations, ClusterExecutor]:
    """So many stations, and an executor over them."""
    names = [f"host{n}" for n in range(count)]
    probe = probed(options=["limit"])
    found = ScriptedStations(
        names, lambda name: FakeExecutor(script, probe), measure_s=measure_s
    )
    return found, ClusterExecutor(found.links, found.receive, found.clock)


def tune(
    found: ScriptedStations,
    executor: ClusterExecutor,
    space: autocompile.SearchSpace,
    progress: Progress,
    run_dir: str,
    budget_s: float | None = None,
) -> None:
    """Every setting of a space, on the stations' clock."""
    request = Request(
        "net.py", space=space, effort="full", budget_s=budget_s, run_dir=run_dir
    )
    tune_with(request, Parts(executor, progress, found.clock))


def write(make: Callable[[], Any]) -> None:
    """Write what is found, in a scratch folder, to the file that the command line names."""
    out = Path(sys.argv[1]).absolute()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        Path("net.py").write_text("never run", "utf-8")
        text = json.dumps(make(), indent=1)
    out.write_text(text + "\n", "utf-8")
    print(text)
