"""Fakes for tests of the search, report, CLI and cluster, beside those of ``autocompile.testing``.

executor = FakeExecutor(lambda request: measured(speedup=1.3, compile_s=2.0))

stations = ScriptedStations(["a", "b"], lambda name: FakeExecutor(script))
executor = ClusterExecutor(stations.links, stations.receive, stations.clock)
"""

from __future__ import annotations

import heapq
import itertools
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autocompile import __version__
from autocompile.cluster.dispatch import Link, Message
from autocompile.cluster.wire import Do, Say, decode, encode
from autocompile.execute.executor import (
    Ended,
    Executor,
    Job,
    Stepped,
)
from autocompile.store.reading import plain
from autocompile.testing import (
    Script,
    ScriptedExecutor,
    failed,
    kind_of,
    measured,
    probed,
)

__all__ = [
    "FakeExecutor",
    "Script",
    "ScriptedStations",
    "failed",
    "kind_of",
    "measured",
    "probed",
]

FakeExecutor = ScriptedExecutor


class ScriptedStations:
    """Stations whose jobs end as executors of their own decide, ``wall_s`` later.

    The last ``measure_s`` of a job come one after another at each station.

    Args:
        names: of the stations.
        make: the executor of a station.
        slots: of each station.
        facts: by name, what a station says of itself beside the usual.

    Attributes:
        links: to give to the executor.
        now: the time.
        sent: name and message of all that was sent, in order.
    """

    def __init__(
        self,
        names: Sequence[str],
        make: Callable[[str], Executor],
        slots: int = 1,
        facts: Mapping[str, Mapping[str, Any]] | None = None,
        measure_s: float = 0.0,
    ) -> None:
        self.now, self.sent = 0.0, list[tuple[str, dict[str, Any]]]()
        self._make, self._slots, self._facts = make, slots, facts or {}
        self._measure_s, self._free_at = measure_s, dict[str, float]()
        self._events: list[tuple[float, int, _Scripted, str | None]] = []
        self._count = itertools.count()
        self._scratch = tempfile.TemporaryDirectory()
        self.alive: dict[str, _Scripted] = {}
        self.links: list[Link] = [self._open(name) for name in names]

    def clock(self) -> float:
        return self.now

    def lose(self, name: str, replaced: bool = False) -> None:
        """A station dies without a word, with what it runs."""
        station = self.alive.pop(name)
        station.is_replaced = replaced
        self._events = [e for e in self._events if e[2] is not station]
        heapq.heapify(self._events)
        self._put(station, None, 0.0)

    def receive(
        self, links: Sequence[Link], timeout_s: float
    ) -> list[tuple[Link, Message]]:
        """The next that happens, or nothing and the time moves on."""
        if not self._events or self._events[0][0] > self.now + timeout_s:
            self.now += timeout_s
            return []
        self.now, _, station, line = heapq.heappop(self._events)
        return [(station, None if line is None else decode(line))]

    def _open(self, name: str) -> _Scripted:
        self.alive[name] = station = _Scripted(self, name, self._make(name))
        facts = {"autocompile": __version__, **self._facts.get(name, {})}
        self._put(station, encode(Say.HELLO, slots=self._slots, **facts), 0.0)
        return station

    def _put(self, station: _Scripted, line: str | None, after_s: float) -> None:
        heapq.heappush(
            self._events, (self.now + after_s, next(self._count), station, line)
        )

    def _drop(self, station: _Scripted, number: int) -> None:
        """What a job would still have said."""

        def is_its(line: str | None) -> bool:
            return line is not None and json.loads(line).get("number") == number

        self._events = [
            e for e in self._events if e[2] is not station or not is_its(e[3])
        ]
        heapq.heapify(self._events)

    def _ends_in(self, name: str, wall_s: float) -> float:
        measure_s = min(wall_s, self._measure_s)
        begins = max(self.now + wall_s - measure_s, self._free_at.get(name, 0.0))
        self._free_at[name] = begins + measure_s
        return begins + measure_s - self.now


class _Scripted:
    """One of them: a link and the station at its end."""

    def __init__(
        self, stations: ScriptedStations, name: str, executor: Executor
    ) -> None:
        self.name, self._stations, self._executor = name, stations, executor
        self.is_replaced = False

    def send(self, kind: Do, **fields: Any) -> None:
        message = decode(encode(kind, **fields))
        self._stations.sent.append((self.name, message))
        if self._stations.alive.get(self.name) is not self:
            return
        if kind is Do.CLOSE:
            self._stations._put(self, encode(Say.CLOSED), 0.0)
        elif kind is Do.CANCEL:
            self._stations._drop(self, message["number"])
            self._executor.cancel(message["number"])
            self._pass_on()
        elif kind is Do.START:
            number = message["job"]["number"]
            folder = Path(self._stations._scratch.name) / self.name / str(number)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "request.json").write_text(
                json.dumps(message["request"]), "utf-8"
            )
            self._executor.start(
                Job(**message["job"] | {"folder": folder, "toolchain": None})
            )
            self._pass_on()

    def _pass_on(self) -> None:
        while events := self._executor.wait(0.0):
            for event in events:
                if isinstance(event, Stepped):
                    line = encode(
                        Say.STEPPED, number=event.number, step=event.step.value
                    )
                    self._stations._put(self, line, 0.0)
                elif isinstance(event, Ended):
                    ending = plain(event.ending)
                    own = {"files": {}, "slots": self._stations._slots}
                    line = encode(Say.ENDED, number=event.number, ending=ending, **own)
                    after_s = self._stations._ends_in(self.name, event.ending.wall_s)
                    self._stations._put(self, line, after_s)

    def close(self) -> None:
        if self._stations.alive.get(self.name) is self:
            del self._stations.alive[self.name]

    def again(self) -> Link | None:
        return self._stations._open(self.name) if self.is_replaced else None
