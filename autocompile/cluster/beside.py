"""Finds out how many stations of a host may measure at once: eager mode against itself on all."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from autocompile.cluster.executor import ClusterExecutor
from autocompile.cluster.hosts import together
from autocompile.estimate.intervals import Interval
from autocompile.execute.executor import Ended
from autocompile.execute.job import JobFactory
from autocompile.protocol.requests import Header, TimingLimits, TrialRequest
from autocompile.protocol.results import TrialResult
from autocompile.settings.config import EAGER
from autocompile.settings.phases import FORWARD
from autocompile.store.measurement import measurement_of
from autocompile.store.record import Outcome, RunFolder

__all__ = ["share_hosts"]

_SAMPLE = "autocompile.trial.target.sample:get_model"
_LIMITS = TimingLimits(rounds=100, max_s=3.0, front_s=3.0, half_width=0.0)
_TIMEOUT_S = 120.0


def share_hosts(executor: ClusterExecutor, allow: Callable[[str, int], None]) -> dict[str, int]:
    """Have each host's stations measure alone, then at once; returns the tokens of each host.

    Args:
        executor: with GPU stations that run nothing.
        allow: lets so many stations of a host measure at once.
    """
    homes: dict[str, list[str]] = {}
    for station in executor.stations:
        homes.setdefault(str(station.facts["boot"]), []).append(station.name)
    homes = {host: names for host, names in homes.items() if len(names) > 1}
    if not homes:
        return {}
    alone = _ratios(executor)
    for host, names in homes.items():
        allow(host, len(names))
    at_once, found = _ratios(executor), {}
    for host, names in homes.items():
        if all(name in alone and name in at_once for name in names):
            found[host] = together(_of(alone, names), _of(at_once, names))
        allow(host, found.setdefault(host, 1))
    return found


def _of(ratios: Mapping[str, Interval], names: Sequence[str]) -> list[Interval]:
    return [ratios[name] for name in names]


def _ratios(executor: ClusterExecutor) -> dict[str, Interval]:
    """What eager mode against itself gives on each station; those that fail are left out."""
    with tempfile.TemporaryDirectory(prefix="autocompile-") as scratch:
        folder = RunFolder(Path(scratch))
        folder.create()
        factory = JobFactory(folder, Header(_SAMPLE), _TIMEOUT_S, None)
        left, found = set[int](), {}
        for _ in executor.stations:
            number = factory.next_number()
            request = TrialRequest(
                header=factory.header,
                number=number,
                phase=FORWARD,
                config=EAGER,
                batch_size=4,
                limits=_LIMITS,
            )
            left.add(number)
            executor.start(factory.job(request))
        while left:
            for event in executor.wait(1.0):
                if isinstance(event, Ended):
                    left.discard(event.number)
                    said = TrialResult.read(event.ending.payload)
                    if event.ending.outcome is Outcome.OK and said.measurement:
                        name = str(said.detail.get("station"))
                        found[name] = measurement_of(said.measurement).speedup
    return found
