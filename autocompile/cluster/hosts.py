"""Who may measure on a host that stations share: the tokens, and how many a host has.

Stations on one host share its memory, caches and power. Before one measures, all others of its
host have stopped their trials. On hosts whose GPUs do not disturb each other several measure at
once; nothing compiles meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from autocompile.cluster.wire import Do
from autocompile.estimate.intervals import Interval

__all__ = ["Hosts", "together"]

_FLOOR = 0.01  # relative: the half-width at which a trial stops timing

Orders = list[tuple[str, Do]]


def together(alone: Sequence[Interval], at_once: Sequence[Interval], floor: float = _FLOOR) -> int:
    """How many stations of a host may measure at once.

    All of them, if eager mode against itself shows nothing but noise while all measure: every ratio
    is 1 within ``floor``, and known as well as alone. Otherwise one.

    Args:
        alone, at_once: the ratio that each station has measured, in the same order.
    """
    for own, beside in zip(alone, at_once, strict=True):
        allowed = max(floor, 1.5 * own.half_width)
        if abs(beside.value - 1) > floor or beside.half_width > allowed:
            return 1
    return max(1, len(at_once))


@dataclass
class _Host:
    tokens: int = 1
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
        host = self._home.pop(station, None)
        if host is None:
            return []
        here = self._hosts[host]
        for group in (here.members, here.holders, here.asked, here.hushed):
            group.discard(station)
        here.waiting = deque(s for s in here.waiting if s != station)
        return self._advance(host)

    def allow(self, host: str, tokens: int) -> Orders:
        """Let so many stations of a host measure at once."""
        self._hosts.setdefault(host, _Host()).tokens = tokens
        return self._advance(host)

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
        while here.waiting and len(here.holders) < here.tokens:
            first = here.waiting[0]
            # The token hushes the others of its own station; beside a second timing that is late.
            others = here.members - {first} if here.tokens == 1 else here.members
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
