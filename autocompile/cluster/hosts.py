"""Who may measure on a host that stations share: one after another, or those that may at once.

Stations on one host share its memory, caches and power. Before one measures, all others of its
host have stopped their trials. GPUs of one driver that do not disturb each other may measure at
once, which eager mode against itself tells; nothing compiles meanwhile.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autocompile.cluster.executor import ClusterExecutor
from autocompile.cluster.stations import Link
from autocompile.cluster.wire import Do
from autocompile.estimate.intervals import Interval
from autocompile.execute.executor import Ended, Ending
from autocompile.execute.job import JobFactory
from autocompile.protocol.requests import Header, TimingLimits, TrialRequest
from autocompile.protocol.results import TrialResult
from autocompile.settings.config import EAGER
from autocompile.settings.phases import FORWARD
from autocompile.store.measurement import measurement_of
from autocompile.store.record import Outcome, RunFolder, Step

__all__ = ["Alike", "Hosts", "eager_against_itself", "share_hosts", "together"]

_FLOOR = 0.01  # relative: the half-width at which a trial stops timing
_BESIDE = 0.5  # of the longest timing: the least that all must have been timing at once
_SAMPLE = "autocompile.trial.target.sample:get_model"
_TIMED_S = (3.0, 12.0)  # the longer one where start-up has kept the short ones apart
_TIMEOUT_S = 120.0

Orders = list[tuple[str, Do]]


@dataclass
class _Host:
    members: set[str] = field(default_factory=set)
    waiting: deque[str] = field(default_factory=deque)
    holders: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)  # to stop their trials
    hushed: set[str] = field(default_factory=set)  # have stopped them


class Hosts:
    """The tokens of all hosts, first come, first served. Methods return who is to be told what."""

    def __init__(self) -> None:
        self._hosts: dict[str, _Host] = {}
        self._home: dict[str, str] = {}  # of each station
        self._groups: dict[str, frozenset[str]] = {}  # those that may measure beside it, and it
        self._early: set[str] = set()  # have asked before it was heard that they have joined

    def join(self, station: str, host: str) -> Orders:
        """Add a station; if it was there, it begins anew."""
        has_asked = station in self._early
        orders = self.leave(station)
        self._home[station] = host
        self._hosts.setdefault(host, _Host()).members.add(station)
        return orders + (self.ask(station) if has_asked else self._advance(host))

    def leave(self, station: str) -> Orders:
        """Remove a station, which may be dead."""
        self._early.discard(station)
        self._groups.pop(station, None)
        host = self._home.pop(station, None)
        if host is None:
            return []
        here = self._hosts[host]
        for group in (here.members, here.holders, here.asked, here.hushed):
            group.discard(station)
        here.waiting = deque(s for s in here.waiting if s != station)
        return self._advance(host)

    def allow(self, stations: Collection[str]) -> None:
        """Let these measure at once with one another, and with no other."""
        self._groups |= dict.fromkeys(stations, frozenset(stations))

    def ask(self, station: str) -> Orders:
        """A station wants to measure."""
        if (host := self._home.get(station)) is None:
            self._early.add(station)
            return []
        here = self._hosts[host]
        if station not in here.waiting and station not in here.holders:
            here.waiting.append(station)
        return self._advance(host)

    def confirm(self, station: str) -> Orders:
        """A station has stopped its trials."""
        host = self._home.get(station)
        if host is not None and station in self._hosts[host].asked:
            self._hosts[host].hushed.add(station)
        return self._advance(host)

    def done(self, station: str) -> Orders:
        """A station gives its token back; its trials stay stopped until it is told otherwise."""
        host = self._home.get(station)
        if host is not None:
            self._hosts[host].holders.discard(station)
        return self._advance(host)

    def _advance(self, host: str | None) -> Orders:
        if host is None:
            return []
        here, orders = self._hosts[host], Orders()
        while here.waiting:
            first = here.waiting[0]
            group = self._groups.get(first, frozenset({first}))
            if not here.holders <= group:
                break
            # The token hushes the others of its own station; beside a second timing that is late.
            others = here.members - {first} if len(group) == 1 else here.members
            orders += [(s, Do.HUSH) for s in sorted(others - here.asked)]
            here.asked |= others
            if not others <= here.hushed:
                return orders
            here.waiting.popleft()
            here.holders.add(first)
            here.asked.add(first)
            here.hushed.add(first)
            orders.append((first, Do.GRANTED))
        if here.holders:  # one that has joined since
            orders += [(s, Do.HUSH) for s in sorted(here.members - here.asked)]
            here.asked |= here.members
        elif not here.waiting:  # who has not confirmed yet is let go on when it does
            orders += [(s, Do.FREE) for s in sorted(here.hushed)]
            here.asked -= here.hushed
            here.hushed = set()
        return orders


@dataclass(frozen=True)
class Alike:
    """What eager mode against itself gives on a station, and when that was timed, in Unix time."""

    ratio: Interval
    begin: float
    end: float


def together(alone: Sequence[Alike], at_once: Sequence[Alike], floor: float = _FLOOR) -> bool:
    """Whether stations may measure at once: eager mode against itself shows nothing but noise.

    Every ratio is 1 within ``floor``, and known as well as alone, while all were timing.

    Args:
        alone, at_once: what each station has measured, in the same order.
    """
    for own, beside in zip(alone, at_once, strict=True):
        allowed = max(floor, 1.5 * own.ratio.half_width)
        if abs(beside.ratio.value - 1) > floor or beside.ratio.half_width > allowed:
            return False
    return _were_beside(at_once)


def _were_beside(timed: Sequence[Alike]) -> bool:
    """Whether they were all timing at once for most of the time."""
    if not timed:
        return False
    at_once_s = min(one.end for one in timed) - max(one.begin for one in timed)
    return at_once_s >= _BESIDE * max(one.end - one.begin for one in timed)


def share_hosts(
    executor: ClusterExecutor, allow: Callable[[Sequence[Link]], None]
) -> dict[str, bool]:
    """Have each host's stations measure alone, then at once; returns whether they may.

    Args:
        executor: with GPU stations that run nothing.
        allow: lets stations measure at once with one another only.
    """
    links = {station.name: station.link for station in executor.stations}
    homes: dict[str, list[str]] = {}
    for station in executor.stations:
        homes.setdefault(str(station.facts["boot"]), []).append(station.name)
    homes = {host: names for host, names in homes.items() if len(names) > 1}
    if not homes:
        return {}
    alone, at_once = eager_against_itself(executor, _TIMED_S[0]), dict[str, Alike]()
    for names in homes.values():
        allow([links[name] for name in names])
    for timed_s in _TIMED_S:
        at_once = eager_against_itself(executor, timed_s)
        if all(_were_beside(_of(at_once, names)) for names in homes.values()):
            break
    found = {}
    for host, names in homes.items():
        known = [name for name in names if name in alone and name in at_once]
        found[host] = known == names and together(_of(alone, names), _of(at_once, names))
        if not found[host]:
            for name in names:
                allow([links[name]])
    return found


def _of(found: Mapping[str, Alike], names: Sequence[str]) -> list[Alike]:
    return [found[name] for name in names if name in found]


def eager_against_itself(executor: ClusterExecutor, timed_s: float) -> dict[str, Alike]:
    """What each station measures in about so many seconds; those that fail are left out."""
    limits = TimingLimits(
        rounds=round(100 * timed_s / _TIMED_S[0]), max_s=timed_s, front_s=timed_s, half_width=0.0
    )
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
                limits=limits,
            )
            left.add(number)
            executor.start(factory.job(request))
        while left:
            for event in executor.wait(1.0):
                if isinstance(event, Ended):
                    left.discard(event.number)
                    said = TrialResult.read(event.ending.payload)
                    if event.ending.outcome is Outcome.OK and said.measurement:
                        ratio = measurement_of(said.measurement).speedup
                        found[str(said.detail.get("station"))] = Alike(ratio, *_timed(event.ending))
    return found


def _timed(ending: Ending) -> tuple[float, float]:
    """Begin and end of its longest stretch of timing: before that it may have waited."""
    spans = [(a, b) for step, a, b in ending.spans if step == Step.MEASURE.value]
    return max(spans, key=lambda span: span[1] - span[0], default=(0.0, 0.0))
