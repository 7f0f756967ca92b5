"""ClusterExecutor: spreads jobs over stations. Knows nothing of Ray: links carry the messages.

A station is a machine of the cluster. One that is lost gives its jobs back, and they run elsewhere,
alone. A job whose second station is lost too takes its machines down, which is its outcome. Jobs of
a race that take turns share a station, and the sets of a race go round the stations: differences of
machines are in its interval.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from autocompile import __version__
from autocompile.cluster.wire import Do, Say, sent_job
from autocompile.errors import RunError, UsageError
from autocompile.execute.ending import stopped_early
from autocompile.execute.executor import Ended, Ending, Event, Job, Stepped, Told
from autocompile.protocol.requests import (
    ProbeRequest,
    ProbeResult,
    read_request,
)
from autocompile.settings.tuned import unlike
from autocompile.store.files import write_text
from autocompile.store.reading import of_fields
from autocompile.store.record import Outcome, Step

_OPEN_S = 120.0  # for a station's first word
_CLOSE_S = 10.0
_GLANCE_S = 0.5
_MOST_LOSSES = 2  # of stations by one job
# Of what a probe describes; the number of cores is a matter of the node, and shown.
_ALIKE = (
    *("device_name", "driver", "power_limit_w", "cpu", "cpu_capability"),
    *("cuda", "torch", "python"),
)

Message = Mapping[str, Any] | None  # None: the station is lost


class Link(Protocol):
    """The way to one station."""

    name: str

    def send(self, kind: Do, **fields: Any) -> None: ...

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

    @property
    def is_probe(self) -> bool:
        return bool(self.request["kind"] == ProbeRequest.kind)

    @property
    def cell(self) -> tuple[str, int | None] | None:
        """Phase and batch size of a race."""
        if all(s["repeats"] is None for s in self.request.get("sides", ())):
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
    probe: Ending | None = None
    slots: int = 0
    running: dict[int, Task] = field(default_factory=dict)
    raced: Counter[tuple[str, int | None]] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        return self.link.name

    def has_room_for(self, task: Task) -> bool:
        if task.is_alone or any(t.is_alone for t in self.running.values()):
            return not self.running
        return len(self.running) < self.slots

    def preference(self, task: Task) -> tuple[Any, ...]:
        """Smallest where a job should go; a race to the station that has raced it least."""
        if task.cell is None:
            return not self.has_room_for(task), len(self.running) / self.slots
        shares = any(t.cell == task.cell for t in self.running.values())
        joins = bool(task.request.get("takes_turns")) and shares
        return not joins, self.raced[task.cell], len(self.running) / self.slots

    def differs_from(self, other: Station) -> str:
        """Why it cannot share a run with another, whose probe has succeeded; empty if it can."""
        assert self.probe
        assert other.probe
        if self.probe.outcome is not Outcome.OK:
            return f"its probe ended with {self.probe.outcome.value} ({self.probe.message})"
        own = ProbeResult.read(self.probe.payload).environment
        first = ProbeResult.read(other.probe.payload).environment
        both = unlike(first, own, _ALIKE).items()
        told = "; ".join(f"{name} is {mine}, not {its}" for name, (its, mine) in both)
        return f"its machine differs from that of {other.name}: {told}" if told else ""


@dataclass
class Interrupts:
    """How often Ctrl-C was pressed in the main thread, for executors that others wait for."""

    count: int = 0


class ClusterExecutor:
    """Runs jobs on stations whose machines are alike; the probe goes to each of them.

    Each of ``interrupts`` raises KeyboardInterrupt once in a method that waits.
    """

    def __init__(
        self,
        links: Sequence[Link],
        receive: Receive,
        clock: Callable[[], float] = time.monotonic,
        interrupts: Interrupts | None = None,
    ) -> None:
        self._receive, self._clock = receive, clock
        self._interrupts, self._heard = interrupts or Interrupts(), 0
        # Those that are not lost.
        self.stations = [Station(link, clock()) for link in links]
        self._reasons: dict[str, str] = {}  # why others have left, by their names
        self._waiting: list[Task] = []
        self._events: list[Event] = []
        self._probe: Task | None = None  # until all have ended it
        self._has_probe = False
        self.slots = self.lanes = 1
        try:
            self._await_hellos()
        except BaseException:
            self.close()
            raise

    def compile_threads(self, alone: bool) -> int:
        """One: a station may have as few cores as slots."""
        return 1

    def start(self, job: Job) -> None:
        """Send a job to a station that has room, or queue it until there is one."""
        if job.python is not None:
            raise UsageError(
                "other interpreters are paths of this machine, not of a cluster's"
            )
        task = Task(job, read_request(job.folder).to_dict())
        if not task.is_probe:
            self._waiting.append(task)
            self._dispatch()
            return
        self._probe, self._has_probe = task, True
        for station in self.stations:
            station.probe = None
            self._send(station, task)

    def wait(self, timeout_s: float) -> list[Event]:
        self._raise_interrupt()
        if not (self.stations or self._events):
            raise RunError(
                "no station is left",
                *self._told_reasons,
                "finished trials are safe",
                hint="the same command with --resume, once there are machines",
            )
        until = self._clock() + timeout_s
        while not self._events and (
            self._waiting or any(s.running for s in self.stations)
        ):
            self._raise_interrupt()
            if (left := until - self._clock()) <= 0:
                break
            for station, message in self._listen(min(left, _GLANCE_S)):
                self._take(station, message)
            self._dispatch()
        events, self._events = self._events, []
        return events

    def cancel(self, number: int) -> None:
        self._waiting = [t for t in self._waiting if t.job.number != number]
        at = [s for s in self.stations if number in s.running]
        for station in at:
            station.link.send(Do.CANCEL, number=number)
        if not at and not any(
            isinstance(e, Ended) and e.number == number for e in self._events
        ):
            self._events.append(Ended(number, stopped_early()))

    def close(self) -> None:
        """End every station and all that runs there."""
        self._waiting.clear()
        left = {*self.stations}
        for station in left:
            station.link.send(Do.CLOSE)
        until = self._clock() + _CLOSE_S
        while left and self._clock() < until:
            left -= {
                station
                for station, message in self._listen(_GLANCE_S)
                if message is None
            }
        for station in self.stations:
            station.link.close()
        self.stations = []

    def _raise_interrupt(self) -> None:
        if self._heard < self._interrupts.count:
            self._heard += 1
            raise KeyboardInterrupt

    # What stations say ----------------------------------------------------------------------------

    def _await_hellos(self) -> None:
        """Wait until each has said hello or is given up."""
        while any(not s.slots for s in self.stations):
            self._raise_interrupt()
            for station, message in self._listen(_GLANCE_S):
                self._take(station, message)
        if not self.stations:
            raise UsageError(
                "no station has started",
                *self._told_reasons,
                hint="ray status   (what is in use, and by whom)",
            )

    def _listen(self, timeout_s: float) -> list[tuple[Station, Message]]:
        """What stations say; those that end or do not start in time are lost."""
        by_link = {station.link: station for station in self.stations}
        found: list[tuple[Station, Message]] = []
        for link, message in self._receive([*by_link], timeout_s):
            if message and message["say"] is Say.FAILED:
                self._reasons[link.name] = message["text"]
            elif link in by_link:
                is_over = message is None or message["say"] is Say.CLOSED
                found.append((by_link[link], None if is_over else message))
        for station in self.stations:
            if not station.slots and self._clock() - station.began > _OPEN_S:
                what = f"it has not started within {_OPEN_S:.0f} s: another job may use its place"
                self._reasons.setdefault(station.name, what)
                found.append((station, None))
        return found

    def _take(self, station: Station, message: Message) -> None:
        if station not in self.stations:  # it was given up meanwhile
            return
        if message is None:
            self._lose(station)
            return
        kind, task = message["say"], station.running.get(message.get("number", 0))
        if kind is Say.HELLO:
            self._reasons.pop(station.name, None)
            station.slots = int(message["slots"])
            if message["autocompile"] != __version__:
                self._leave_out(
                    station, f"autocompile is {message['autocompile']} there"
                )
        elif kind is Say.TOLD:
            if not station.slots:  # what it waits for
                self._reasons[station.name] = message["text"]
            self._tell(station, message["text"])
        elif kind is Say.STEPPED and task is not None:
            task.step = Step(message["step"])
            if not task.is_probe:
                self._events.append(Stepped(task.job.number, task.step))
        elif kind is Say.ENDED and task is not None:
            del station.running[task.job.number]
            # Fewer, if the probe needed much memory.
            station.slots = int(message["slots"])
            self._end(station, task, message)
        self._count()

    def _tell(self, station: Station, text: str) -> None:
        self._events.append(Told(f"{station.name}: {text}"))

    # Where a job runs -----------------------------------------------------------------------------

    @property
    def _able(self) -> list[Station]:
        """Those that take trials: before the first probe all that have said hello."""
        return [
            s for s in self.stations if s.slots and (s.probe or not self._has_probe)
        ]

    def _count(self) -> None:
        self.slots = max(1, sum(s.slots for s in self._able))
        self.lanes = max(1, len(self._able))

    def _dispatch(self) -> None:
        """Send what waits to stations with room; what a lost station ran comes first."""
        able = self._able
        for task in list(self._waiting):
            station = min(able, key=lambda s: s.preference(task), default=None)
            if station is None:
                return
            if station.has_room_for(task):
                self._waiting.remove(task)
                self._send(station, task)
            elif task.is_alone:  # others would keep it waiting
                able.remove(station)

    def _send(self, station: Station, task: Task) -> None:
        job = task.job
        station.running[job.number] = task
        if task.cell is not None:
            station.raced[task.cell] += 1
        kept: list[str] = []
        # Beside those still needed.
        if cache := job.environment.get("TORCHINDUCTOR_CACHE_DIR"):
            kept = [path.name for path in Path(cache).parent.iterdir()]
        sent = {"job": sent_job(job), "request": task.request}
        station.link.send(Do.START, **sent, kept=kept, alone=task.is_alone)

    # What becomes of it ---------------------------------------------------------------------------

    def _end(self, station: Station, task: Task, message: Mapping[str, Any]) -> None:
        """Keep what a job has left, and say how it ended."""
        for file, text in message["files"].items():
            write_text(task.job.folder / Path(file).name, text)
        try:
            ending = of_fields(Ending, message["ending"])
        except (AttributeError, TypeError, ValueError) as error:
            what = f"{station.name} sent an ending that makes no sense: {error}"
            ending = Ending(Outcome.INFRASTRUCTURE, task.step, what)
        if task.is_probe:
            station.probe = ending
            self._conclude_probe()
        else:
            self._events.append(Ended(task.job.number, _marked(ending, station.name)))

    def _conclude_probe(self) -> None:
        """When the probes have ended, the first good one speaks for all; who differs leaves.

        Where none is good the target is to blame, and all stay.
        """
        if not (self._probe and self.stations and all(s.probe for s in self.stations)):
            return
        number, self._probe = self._probe.job.number, None
        good = [s for s in self.stations if s.probe and s.probe.outcome is Outcome.OK]
        speaker = (good or self.stations)[0]
        assert speaker.probe is not None
        self._events.append(Ended(number, speaker.probe))
        for station in list(self.stations) if good else ():
            if why := station.differs_from(speaker):
                self._leave_out(station, why)

    def _lose(self, station: Station) -> None:
        """Put back what a dead station was doing, and start another in its place."""
        why = (
            "it does not answer"
            if station.slots
            else "it has ended before it was ready"
        )
        self._give_up(station, why)
        tasks = [t for t in station.running.values() if not t.is_probe]
        told = f"lost ({self._reasons[station.name]})"
        if tasks:
            told += f"; trial {', '.join(str(t.job.number) for t in tasks)} is put back"
        self._tell(station, told)
        if (
            station.slots
            and station.probe
            and (link := station.link.again()) is not None
        ):
            del self._reasons[station.name]
            self.stations.append(Station(link, self._clock(), station.probe))
        for task in reversed(tasks):
            task.losses += 1
            if task.losses < _MOST_LOSSES:
                self._waiting.insert(0, task)
                continue
            what = f"it takes its machine down: {_MOST_LOSSES} stations were lost while it ran"
            self._events.append(
                Ended(task.job.number, Ending(Outcome.CRASHED, task.step, what))
            )
        self._conclude_probe()
        self._count()

    def _leave_out(self, station: Station, why: str) -> None:
        self._tell(station, f"left out: {why}")
        self._give_up(station, why)

    def _give_up(self, station: Station, why: str) -> None:
        station.link.close()
        self.stations.remove(station)
        self._reasons.setdefault(station.name, why)

    @property
    def _told_reasons(self) -> list[str]:
        return [f"{name}: {why}" for name, why in self._reasons.items()]


def _marked(ending: Ending, station: str) -> Ending:
    """With the station in what is kept of it, of each side of a race too."""

    def named(said: Mapping[str, Any]) -> dict[str, Any]:
        return {**said, "detail": {**said.get("detail", {}), "station": station}}

    payload = ending.payload
    # A forged payload is as it is.
    with contextlib.suppress(TypeError, ValueError, AttributeError):
        payload = named(payload)
        if isinstance(payload.get("sides"), list):
            payload["sides"] = [named(side) for side in payload["sides"]]
    return dataclasses.replace(ending, payload=payload)
