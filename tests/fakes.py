"""Fakes for tests and studies of the search, report, CLI and cluster: scripted trials, no torch.

executor = FakeExecutor(lambda request: measured(speedup=1.3, compile_s=2.0))

stations = ScriptedStations(["a", "b"], lambda name: FakeExecutor(script))
executor = ClusterExecutor(stations.links, stations.receive, stations.clock)
"""

from __future__ import annotations

import heapq
import itertools
import json
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autocompile import __version__
from autocompile.cluster.dispatch import Link, Message
from autocompile.cluster.wire import Do, Say, decode, encode
from autocompile.execute.executor import (
    Ended,
    Ending,
    Event,
    Executor,
    Job,
    Stepped,
    Told,
)
from autocompile.protocol.requests import (
    ProbeRequest,
    Request,
    TrialRequest,
    read_request,
)
from autocompile.settings.phases import FORWARD
from autocompile.store.reading import plain
from autocompile.store.record import Outcome, Step

__all__ = [
    "FakeExecutor",
    "ScriptedStations",
    "failed",
    "kind_of",
    "measured",
    "probed",
]

Script = Callable[[Mapping[str, Any]], Ending]


def measured(
    speedup: float,
    *,
    eager_s: float = 1e-3,
    noise: float = 0.002,
    rounds: int = 8,
    compile_s: float = 1.0,
    flags: Sequence[str] = (),
    **more: Any,
) -> Ending:
    """A successful trial: ``rounds`` pairs of blocks around a speed-up.

    Args:
        noise: relative half-range of the compiled blocks, spread evenly.
        flags: of the measurement, such as ``eager_slowed``.
        more: further keys of the payload, such as ``graph_breaks``.
    """
    spread = [noise * (2 * i / max(1, rounds - 1) - 1) for i in range(rounds)]
    payload = {
        "measurement": {
            "eager_s": [eager_s] * rounds,
            "compiled_s": [eager_s / speedup * (1 + s) for s in spread],
            "calls": [1, 1],
            "flags": list(flags),
        },
        "compile_s": compile_s,
        "graphs": 1,
        "graph_breaks": 0,
        "recompiles": 0,
    }
    return Ending(
        Outcome.OK, Step.EXIT, payload={**payload, **more}, wall_s=compile_s + 1
    )


def failed(outcome: str, step: str = "compile", message: str = "") -> Ending:
    """A failed trial."""
    return Ending(Outcome(outcome), Step(step), message or outcome, wall_s=1.0)


def probed(**more: Any) -> Ending:
    """A probe of a machine with inductor, two modes that differ, and a plain module."""
    payload = {
        "environment": {
            "torch": "2.13.0",
            "python": "3.11.7",
            "platform": "Linux",
            "device": "cpu",
            "device_name": "a CPU",
            "cores": 2,
            "threads": 1,
            "cuda": None,
        },
        "backends": {"inductor": "", "cudagraphs": "no CUDA device"},
        "all_backends": ["aot_eager", "cudagraphs", "inductor"],
        "modes": {
            "default": "default",
            "reduce-overhead": "default",
            "max-autotune": "max-autotune",
        },
        "target": {
            "kind": "functions",
            "description": "Linear",
            "parameters": 10,
            "phases": [FORWARD],
            "algorithm": None,
            "own_batch_size": {},
            "choices": {},
        },
    }
    return Ending(Outcome.OK, Step.EXIT, payload={**payload, **more}, wall_s=0.1)


def kind_of(request: Request) -> str:
    """The kind of a request; of trials also ``race``, and ``exported`` for exported code."""
    if not isinstance(request, TrialRequest) or not request.is_race:
        return request.kind
    return "exported" if request.is_exported else "race"


class FakeExecutor:
    """An :class:`autocompile.execute.executor.Executor` with scripted trials.

    Args:
        script: returns the ending of a trial for its request.
        probe: the ending of the probe.
        slots: how many jobs may run at once; they end in the order of their start.

    Attributes:
        requests: all started requests in order, without the probe.
    """

    def __init__(
        self, script: Script, probe: Ending | None = None, slots: int = 1
    ) -> None:
        self._script, self._probe, self.slots = script, probe or probed(), slots
        self.lanes = 1
        self._events: deque[Event] = deque()
        self.requests: list[dict[str, Any]] = []

    def compile_threads(self, alone: bool) -> int:
        """One."""
        return 1

    def start(self, job: Job) -> None:
        """Decide at once how it ends; :meth:`wait` tells."""
        asked = read_request(job.folder)
        request = {**asked.to_dict(), "kind": kind_of(asked)}
        if isinstance(asked, ProbeRequest):
            ending = self._probe
        elif isinstance(asked, TrialRequest) and asked.is_race:
            ending = self._race(request)
        elif isinstance(asked, TrialRequest):
            (side,) = request["sides"]
            request = {**request, "config": side["config"]}
            self.requests.append(request)
            ending = self._script(request)
            ending = replace(ending, payload={"sides": [dict(ending.payload)]})
        else:
            self.requests.append(request)
            ending = self._script(request)
        self._events.append(Stepped(job.number, Step.COMPILE))
        self._events.append(Ended(job.number, ending))

    def _race(self, request: Mapping[str, Any]) -> Ending:
        """Run the script for each side, in a request whose ``repeats`` is the trial's number."""
        sides, wall_s = [], 0.0
        for side in request["sides"]:
            own = {**request, "config": side["config"], "repeats": side["repeats"]}
            if request["kind"] == "race":
                self.requests.append(own)
            ending = self._script(own)
            wall_s += ending.wall_s
            said = {"number": side["repeats"], "outcome": ending.outcome.value}
            said |= {"step": ending.step.value, "message": ending.message}
            sides.append({**ending.payload, **said})
        payload = {"sides": sides}
        return Ending(Outcome.OK, Step.EXIT, payload=payload, wall_s=wall_s)

    def wait(self, timeout_s: float) -> list[Event]:
        """Return the next event."""
        return [self._events.popleft()] if self._events else []

    def cancel(self, number: int) -> None:
        """End a job as interrupted."""
        kept = [e for e in self._events if isinstance(e, Told) or e.number != number]
        self._events = deque(kept)
        self._events.append(
            Ended(number, Ending(Outcome.INTERRUPTED, Step.COMPILE, "stopped"))
        )

    def close(self) -> None:
        """Do nothing."""


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
