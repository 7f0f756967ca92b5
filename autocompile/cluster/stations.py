"""The stations of a run as the driver sees them: who is there, who is lost, what each runs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from autocompile.cluster.agreement import demand_same_versions
from autocompile.cluster.wire import Do, Say
from autocompile.errors import UsageError
from autocompile.execute.executor import Ending, Job
from autocompile.protocol.requests import Kind
from autocompile.settings.config import CompileConfig
from autocompile.store.record import Step

__all__ = ["Link", "Message", "Receive", "Station", "Stations", "Task"]

_OPEN_S = 120.0  # for a station's first word
_CLOSE_S = 10.0
GLANCE_S = 0.5

Message = Mapping[str, Any] | None  # None: the station is lost


class Link(Protocol):
    """The way to one station."""

    name: str

    def send(self, kind: Do, **fields: Any) -> None: ...

    def hello(self, facts: Mapping[str, Any]) -> None:
        """It has said where it is; from now on it takes part in its host's tokens."""

    def close(self) -> None:
        """Kill it; may be called twice."""

    def again(self) -> Link | None:
        """A new station in its place, after it was lost; None where there can be none."""


Receive = Callable[[Sequence[Link], float], list[tuple[Link, Message]]]
"""Waits so many seconds for messages from any of the links."""


@dataclass
class Task:
    """A job that has not ended, and how often its station was lost."""

    job: Job
    request: Mapping[str, Any]
    losses: int = 0
    step: Step = Step.IMPORT
    only_at: str = ""  # a station, which it compares with the one where it was done

    @property
    def is_probe(self) -> bool:
        return bool(self.request["kind"] == Kind.PROBE.value)

    @property
    def is_plain(self) -> bool:
        """Whether it times plain ``torch.compile()`` beside eager mode."""
        plain = CompileConfig("inductor").to_dict()
        return (self.request["kind"], self.request.get("config")) == (Kind.TRIAL.value, plain)

    @property
    def cell(self) -> tuple[str, int | None] | None:
        """Phase and batch size of a race."""
        if self.request["kind"] not in (Kind.RACE.value, Kind.EXPORTED.value):
            return None
        return self.request["phase"], self.request["batch_size"]

    @property
    def is_alone(self) -> bool:
        """Whether nothing may run beside it on its station."""
        races_alone = self.cell is not None and not self.request.get("takes_turns")
        return races_alone or self.job.fresh or self.losses > 0 or self.is_probe


@dataclass(eq=False)
class Station:
    """One station; without slots it has not said hello, without a probe it gets no trials."""

    link: Link
    began: float
    facts: Mapping[str, Any] = field(default_factory=dict)
    slots: int = 0
    running: dict[int, Task] = field(default_factory=dict)
    probe: Ending | None = None
    is_compared: bool = False  # it has timed plain torch.compile(), or will
    raced: Counter[tuple[str, int | None]] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        return self.link.name

    @property
    def load(self) -> float:
        return len(self.running) / self.slots

    def has_room_for(self, task: Task) -> bool:
        if task.is_alone or any(t.is_alone for t in self.running.values()):
            return not self.running
        return len(self.running) < self.slots


class Stations:
    """Those that are not lost, by name.

    Attributes:
        reasons: why others have left.
        has_probe: whether a probe decides who takes trials.
    """

    def __init__(
        self, links: Sequence[Link], receive: Receive, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._receive, self._clock = receive, clock
        self._there = {link.name: Station(link, clock()) for link in links}
        self.reasons: dict[str, str] = {}
        self.has_probe = False

    @property
    def all(self) -> list[Station]:
        return list(self._there.values())

    @property
    def able(self) -> list[Station]:
        """Those that take trials: before the first probe all that have said hello."""
        return [s for s in self.all if s.slots and (s.probe is not None or not self.has_probe)]

    @property
    def slots(self) -> int:
        return max(1, sum(s.slots for s in self.able))

    @property
    def told_reasons(self) -> list[str]:
        return [f"{name}: {why}" for name, why in self.reasons.items()]

    @property
    def hosts(self) -> int:
        return max(1, len({s.facts["boot"] for s in self.able}))

    def await_hellos(self) -> None:
        """Wait until each has said hello or is given up."""
        while any(not s.slots for s in self.all):
            for station, message in self.listen(GLANCE_S):
                if message is None:
                    self.give_up(station, "it has ended before it was ready")
        if not self.all:
            raise UsageError(
                "no station has started",
                *self.told_reasons,
                hint="ray status   (what is in use, and by whom)",
            )
        demand_same_versions({s.name: s.facts for s in self.all})

    def listen(self, timeout_s: float) -> list[tuple[Station, Message]]:
        """What stations say; those that end or do not start in time are lost."""
        found: list[tuple[Station, Message]] = []
        for link, message in self._receive([s.link for s in self.all], timeout_s):
            station = self._there.get(link.name)
            if station is None or station.link is not link:
                continue  # it was given up
            kind = message and message["say"]
            if message and kind is Say.HELLO:
                station.facts, station.slots = dict(message), int(message["slots"])
                link.hello(station.facts)
            elif message and kind is Say.SLOTS:
                station.slots = int(message["slots"])
            elif message and kind is Say.FAILED:
                self.reasons[link.name] = message["text"]
            found.append((station, None if kind is Say.CLOSED else message))
        for station in self.all:
            if not station.slots and self._clock() - station.began > _OPEN_S:
                what = f"it has not started within {_OPEN_S:.0f} s: another job may use its place"
                self.reasons[station.name] = what
                found.append((station, None))
        return found

    def give_up(self, station: Station, why: str) -> None:
        station.link.close()
        if self._there.get(station.name) is station:
            del self._there[station.name]
        self.reasons.setdefault(station.name, why)

    def replace(self, station: Station) -> None:
        """Start another in the place of one that was lost, where that is still there."""
        if station.probe is not None and (link := station.link.again()) is not None:
            self._there[link.name] = Station(link, self._clock())

    def close(self) -> None:
        left = {s.name for s in self.all}
        for station in self.all:
            station.link.send(Do.CLOSE)
        until = self._clock() + _CLOSE_S
        while left and self._clock() < until:
            for station, message in self.listen(GLANCE_S):
                if message is None:
                    left.discard(station.name)
        for station in self.all:
            station.link.close()
        self._there.clear()
