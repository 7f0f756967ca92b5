"""Who may measure on a host that stations share: one after another, or those that may at once.

Stations on one host share its memory, caches and power. Before one measures, all others of its
host have stopped their trials. GPUs of one driver that do not disturb each other may measure at
once, which eager mode against itself tells; nothing compiles meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from autocompile.cluster.wire import Do

__all__ = ["Hosts", "Orders"]

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
