"""Finds out whether stations of a host may measure at once: eager mode against itself on all."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from autocompile.cluster.executor import ClusterExecutor
from autocompile.cluster.stations import Link, Station
from autocompile.estimate.intervals import Interval
from autocompile.execute.executor import Ended, Ending, Event, Told
from autocompile.execute.job import JobFactory
from autocompile.protocol.requests import Header, TimingLimits, TrialRequest
from autocompile.settings.config import EAGER
from autocompile.settings.phases import FORWARD
from autocompile.store.measurement import Measurement
from autocompile.store.record import Outcome, RunFolder, Step

__all__ = ["Alike", "eager_against_itself", "share_hosts", "together"]

_FLOOR = 0.01  # relative: the half-width at which a trial stops timing
_BESIDE = 0.5  # of the longest timing: the least that all must have been timing at once
_SAMPLE = "autocompile.trial.target.sample:get_model"
_LIMITS = TimingLimits(rounds=100, max_s=3.0, front_s=3.0, half_width=0.0)
_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Alike:
    """What eager mode against itself gives on a station, and when that was timed, in Unix time."""

    ratio: Interval
    begin: float
    end: float


def together(at_once: Sequence[Alike], floor: float = _FLOOR) -> bool:
    """Whether stations may measure at once: eager mode against itself shows nothing but noise.

    Every ratio is 1 within ``floor``, and known as well, while all were timing.
    """
    if not at_once:
        return False
    beside_s = min(one.end for one in at_once) - max(one.begin for one in at_once)
    were_beside = beside_s >= _BESIDE * max(one.end - one.begin for one in at_once)
    ratios = [one.ratio for one in at_once]
    return were_beside and all(max(abs(r.value - 1), r.half_width) <= floor for r in ratios)


def share_hosts(
    executor: ClusterExecutor, allow: Callable[[Sequence[Link], bool], None]
) -> dict[str, bool]:
    """Have all stations of each host measure at once; returns whether they may.

    Args:
        executor: with GPU stations that run nothing.
        allow: lets stations measure at once with one another only; the second argument: in step.
    """
    homes: dict[str, list[Station]] = {}
    for station in executor.stations:
        homes.setdefault(str(station.facts["boot"]), []).append(station)
    homes = {host: stations for host, stations in homes.items() if len(stations) > 1}
    if not homes:
        return {}
    for stations in homes.values():
        allow([station.link for station in stations], True)

    def ended(name: str) -> None:
        """Nobody waits in step for one that has ended."""
        for stations in homes.values():
            if name in [station.name for station in stations]:
                allow([station.link for station in stations], False)

    at_once, found = eager_against_itself(executor, ended), {}
    for host, stations in homes.items():
        timed = [at_once[s.name] for s in stations if s.name in at_once]
        found[host] = len(timed) == len(stations) and together(timed)
        if not found[host]:
            for station in stations:
                allow([station.link], False)
    return found


def eager_against_itself(
    executor: ClusterExecutor, ended: Callable[[str], None] = lambda name: None
) -> dict[str, Alike]:
    """What each station measures but those that fail; ``ended`` is called with each name."""
    with tempfile.TemporaryDirectory(prefix="autocompile-") as scratch:
        folder = RunFolder(Path(scratch))
        folder.create()
        factory = JobFactory(folder, Header(_SAMPLE), _TIMEOUT_S, None)
        left, found, told = set[int](), {}, list[Event]()
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
                if isinstance(event, Told):
                    told.append(event)
                elif isinstance(event, Ended):
                    left.discard(event.number)
                    said = event.ending.payload
                    name = str(said.get("detail", {}).get("station"))
                    ended(name)
                    if event.ending.outcome is Outcome.OK and said.get("measurement"):
                        ratio = Measurement.from_dict(said["measurement"]).speedup
                        found[name] = Alike(ratio, *_timed(event.ending))
    executor.tell_later(told)
    return found


def _timed(ending: Ending) -> tuple[float, float]:
    """Begin and end of its longest stretch of timing: before that it may have waited."""
    spans = [(a, b) for step, a, b in ending.spans if step == Step.MEASURE.value]
    return max(spans, key=lambda span: span[1] - span[0], default=(0.0, 0.0))
