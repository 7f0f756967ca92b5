"""Who may measure on a host that stations share: one after another, or those that may at once.

Stations on one host share its memory, caches and power. Before one measures, all others of its
host have stopped their trials. GPUs of one driver that do not disturb each other may measure at
once, which eager mode against itself tells; nothing compiles meanwhile.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autocompile.cluster.executor import ClusterExecutor
from autocompile.cluster.stations import Link, Station
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
_LIMITS = TimingLimits(rounds=100, max_s=3.0, front_s=3.0, half_width=0.0)
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
        self._in_step: set[str] = set()  # are given a token once all of their group have asked
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
        self._in_step.discard(station)
        host = self._home.pop(station, None)
        if host is None:
            return []
        here = self._hosts[host]
        for group in (here.members, here.holders, here.asked, here.hushed):
            group.discard(station)
        here.waiting = deque(s for s in here.waiting if s != station)
        return self._advance(host)

    def allow(self, stations: Collection[str], in_step: bool = False) -> Orders:
        """Let these measure at once with one another, and with no other.

        ``in_step``: none of them before all have asked.
        """
        self._groups |= dict.fromkeys(stations, frozenset(stations))
        self._in_step -= {*stations}
        self._in_step |= {*stations} if in_step else set()
        homes = dict.fromkeys(self._home.get(station) for station in stations)
        return [order for host in homes for order in self._advance(host)]

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
        while ready := self._ready(here):
            first = ready[0]
            group = self._groups.get(first, frozenset({first}))
            if not here.holders <= group:
                break
            # The token hushes the others of its own station; beside a second timing that is late.
            others = here.members - {first} if len(group) == 1 else here.members
            orders += [(s, Do.HUSH) for s in sorted(others - here.asked)]
            here.asked |= others
            if not others <= here.hushed:
                return orders
            here.waiting.remove(first)
            here.holders.add(first)
            here.asked.add(first)
            here.hushed.add(first)
            orders.append((first, Do.GRANTED))
        if here.holders:  # one that has joined since
            orders += [(s, Do.HUSH) for s in sorted(here.members - here.asked)]
            here.asked |= here.members
        elif not self._ready(here):  # who has not confirmed yet is let go on when it does
            orders += [(s, Do.FREE) for s in sorted(here.hushed)]
            here.asked -= here.hushed
            here.hushed = set()
        return orders

    def _ready(self, here: _Host) -> list[str]:
        """Those that wait, but for who is to measure in step with others that have not asked."""
        asked = {*here.waiting, *here.holders}
        return [
            station
            for station in here.waiting
            if station not in self._in_step or self._groups[station] & here.members <= asked
        ]


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

    def go_on() -> None:
        """Nobody waits for one that has ended."""
        for stations in homes.values():
            allow([station.link for station in stations], False)

    at_once, found = eager_against_itself(executor, go_on), {}
    for host, stations in homes.items():
        timed = [at_once[s.name] for s in stations if s.name in at_once]
        found[host] = len(timed) == len(stations) and together(timed)
        if not found[host]:
            for station in stations:
                allow([station.link], False)
    return found


def eager_against_itself(
    executor: ClusterExecutor, ended: Callable[[], None] = lambda: None
) -> dict[str, Alike]:
    """What each station measures; those that fail are left out. ``ended``: called after each."""
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
                    ended()
                    said = TrialResult.read(event.ending.payload)
                    if event.ending.outcome is Outcome.OK and said.measurement:
                        ratio = measurement_of(said.measurement).speedup
                        found[str(said.detail.get("station"))] = Alike(ratio, *_timed(event.ending))
    return found


def _timed(ending: Ending) -> tuple[float, float]:
    """Begin and end of its longest stretch of timing: before that it may have waited."""
    spans = [(a, b) for step, a, b in ending.spans if step == Step.MEASURE.value]
    return max(spans, key=lambda span: span[1] - span[0], default=(0.0, 0.0))
