"""ClusterExecutor: spreads jobs over stations. Knows nothing of Ray: links carry the messages.

A station that is lost gives its jobs back, and they run elsewhere, alone. One whose second station
is lost too takes its machines down, which is its outcome. Jobs of a race that take turns share a
station, and the sets of a race go round the stations: differences of machines are in its interval.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autocompile.cluster.agreement import slower, unlike
from autocompile.cluster.stations import GLANCE_S, Link, Receive, Station, Stations, Task
from autocompile.cluster.wire import Do, Say, ending_of, marked, sent_job
from autocompile.errors import RunError, UsageError
from autocompile.execute.executor import Ended, Ending, Event, Job, Stepped, Told
from autocompile.protocol.requests import read_request
from autocompile.store.files import write_text
from autocompile.store.record import Outcome, Step

__all__ = ["ClusterExecutor"]

_MOST_LOSSES = 2  # of stations by one job


class ClusterExecutor:
    """Runs jobs on stations whose machines are alike; the probe goes to each of them.

    Args:
        links: to the stations, which have been told to open.
        receive: waits for messages of any of the links.
        clock: returns seconds.

    Raises:
        UsageError: no station starts, or they run different versions.
    """

    def __init__(
        self, links: Sequence[Link], receive: Receive, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stations, self._clock = Stations(links, receive, clock), clock
        self._waiting: list[Task] = []
        self._events: list[Event] = []
        self._probe: Task | None = None
        self._reference: tuple[str, Ending] | None = None  # whose probe has spoken for all
        self._compared: int | None = None  # the trial that runs on every station
        self._timed: dict[str, Ending] = {}  # how it has ended, by station
        self._interrupts = 0
        self.slots = self.lanes = 1
        try:
            self._stations.await_hellos()
        except BaseException:
            self._stations.close()
            raise

    @property
    def stations(self) -> list[Station]:
        """Those that are not lost."""
        return self._stations.all

    def interrupt(self) -> None:
        """Have the next call raise KeyboardInterrupt, as Ctrl-C does in the main thread."""
        self._interrupts += 1

    def start(self, job: Job) -> None:
        """Send a job to a station that has room, or queue it until there is one."""
        self._raise_interrupt()
        if job.python is not None:
            raise UsageError("other interpreters are paths of this machine, not of a cluster's")
        task = Task(job, read_request(job.folder).to_dict())
        if not task.is_probe:
            self._waiting += self._copies(task)
            self._dispatch()
            return
        self._probe, self._reference, self._stations.has_probe = task, None, True
        self._compared = None
        for station in self._stations.all:
            station.probe = None
            self._send(station, task)

    def wait(self, timeout_s: float) -> list[Event]:
        """Wait until a job takes a step or ends.

        Raises:
            RunError: no station is left.
        """
        self._raise_interrupt()
        until = self._clock() + timeout_s
        while not self._events and (self._waiting or any(s.running for s in self._stations.all)):
            if (left := until - self._clock()) <= 0:
                break
            for station, message in self._stations.listen(min(left, GLANCE_S)):
                if message is None:
                    self._lose(station)
                else:
                    self._take(station, message)
            self._dispatch()
        events, self._events = self._events, []
        return events

    def cancel(self, number: int) -> None:
        """Kill a job, wherever it is."""
        self._waiting = [t for t in self._waiting if t.job.number != number]
        at = [s for s in self._stations.all if number in s.running]
        for station in at:
            station.link.send(Do.CANCEL, number=number)
        if not at and number == self._compared:
            self._timed = {}
        if not at and not any(isinstance(e, Ended) and e.number == number for e in self._events):
            ending = Ending(Outcome.INTERRUPTED, Step.IMPORT, "stopped before it started")
            self._events.append(Ended(number, ending))

    def close(self) -> None:
        """End every station and all that runs there."""
        self._waiting.clear()
        self._stations.close()

    def _count(self) -> None:
        self.slots, self.lanes = self._stations.slots, self._stations.hosts

    def _raise_interrupt(self) -> None:
        if self._interrupts:
            self._interrupts -= 1
            raise KeyboardInterrupt

    @property
    def _running(self) -> list[Task]:
        return [t for s in self._stations.all for t in s.running.values()]

    # Where a job runs -----------------------------------------------------------------------------

    def _copies(self, task: Task) -> list[Task]:
        """The job; the first of plain ``torch.compile()`` once at each station, to compare them."""
        able = self._stations.able
        if self._compared is not None or len(able) < 2 or not task.is_plain:
            return [task]
        self._compared = task.job.number
        return [dataclasses.replace(task, only_at=station.name) for station in able]

    def _dispatch(self) -> None:
        """Send what waits to stations with room; what a lost station ran comes first."""
        kept: set[str] = set()  # for a job that runs alone, once what runs there has ended
        for task in list(self._waiting):
            able = [s for s in self._stations.able if s.name not in kept]
            if (station := self._choose(task, able)) is not None:
                self._waiting.remove(task)
                self._send(station, task)
            elif task.cell is None and task.is_alone and able:
                kept.add(min(able, key=lambda s: s.load).name)

    def _choose(self, task: Task, able: Sequence[Station]) -> Station | None:
        """Of those able, the one with most room, or of a race whose turn it is; None: wait."""
        if (cell := task.cell) is None:
            at = task.only_at
            able = [s for s in able if s.has_room_for(task) and at in ("", s.name)]
            return min(able, key=lambda s: s.load, default=None)
        sharing = [s for s in able if any(t.cell == cell for t in s.running.values())]
        if not (task.request.get("takes_turns") and sharing):
            sharing = sorted(able, key=lambda s: (s.raced[cell], s.load))[:1]
        return next((s for s in sharing if s.has_room_for(task)), None)

    def _send(self, station: Station, task: Task) -> None:
        job = task.job
        station.running[job.number] = task
        if task.cell is not None:
            station.raced[task.cell] += 1
        kept: list[str] = []
        if cache := job.environment.get("TORCHINDUCTOR_CACHE_DIR"):  # beside those still needed
            kept = [path.name for path in Path(cache).parent.iterdir()]
        sent = {"job": sent_job(job), "request": task.request}
        station.link.send(Do.START, **sent, kept=kept, alone=task.is_alone)

    # What becomes of it ---------------------------------------------------------------------------

    def _take(self, station: Station, message: Mapping[str, Any]) -> None:
        kind, task = message["say"], station.running.get(message.get("number", 0))
        if kind is Say.HELLO and self._probe is not None:  # in place of one that was lost
            self._send(station, self._probe)
        elif kind is Say.TOLD:
            self._tell(station, message["text"])
        elif kind is Say.STEPPED and task is not None:
            task.step = Step(message["step"])
            if not task.is_probe:
                self._events.append(Stepped(task.job.number, task.step, station.name))
        elif kind is Say.ENDED and task is not None:
            del station.running[task.job.number]
            self._end(station, task, message)
        self._count()

    def _end(self, station: Station, task: Task, message: Mapping[str, Any]) -> None:
        """Keep what a job has left, and say how it ended."""
        for file, text in message["files"].items():
            write_text(task.job.folder / Path(file).name, text)
        try:
            ending = ending_of(message["ending"])
        except (KeyError, TypeError, ValueError) as error:
            what = f"{station.name} sent an ending that makes no sense: {error}"
            ending = Ending(Outcome.INFRASTRUCTURE, task.step, what)
        if task.is_probe:
            station.probe = ending
            self._conclude_probe()
        elif task.only_at:
            self._timed[station.name] = ending
            self._conclude_comparison()
        else:
            self._events.append(Ended(task.job.number, marked(ending, station.name)))

    def _lose(self, station: Station) -> None:
        """Put back what a dead station was doing, and start another in its place.

        Raises:
            RunError: it was the last.
        """
        if station not in self._stations.all:  # its end has been told twice
            return
        self._stations.give_up(station, "it does not answer")
        tasks = [t for t in station.running.values() if not t.is_probe]
        tasks += [t for t in self._waiting if t.only_at == station.name]
        self._waiting = [t for t in self._waiting if t.only_at != station.name]
        if self._timed or any(t.only_at for t in (*self._waiting, *self._running)):
            tasks = [t for t in tasks if not t.only_at]  # others time it
        told = f"lost ({self._stations.reasons[station.name]})"
        if tasks:
            told += f"; trial {', '.join(str(t.job.number) for t in tasks)} is put back"
        self._tell(station, told)
        self._stations.replace(station)
        for task in reversed(tasks):
            task.losses, task.only_at = task.losses + 1, ""
            if task.losses < _MOST_LOSSES:
                self._waiting.insert(0, task)
                continue
            what = f"it takes its machine down: {_MOST_LOSSES} stations were lost while it ran"
            self._events.append(Ended(task.job.number, Ending(Outcome.CRASHED, task.step, what)))
        if not self._stations.all:
            raise RunError(
                "no station is left",
                *self._stations.told_reasons,
                "finished trials are safe",
                hint="the same command with --resume, once there are machines",
            )
        self._conclude_probe()
        self._conclude_comparison()

    def _conclude_probe(self) -> None:
        """When the probes have ended, the first good one speaks for all; who differs leaves."""
        if self._probe is None or any(t.is_probe for t in self._running):
            return
        probes = {s.name: s.probe for s in self._stations.able if s.probe is not None}
        if self._reference is None and probes:
            good = [n for n, ending in probes.items() if ending.outcome is Outcome.OK]
            name = next(iter(good or probes))
            self._reference = name, probes[name]
            self._events.append(Ended(self._probe.job.number, probes[name]))
        for station in self._stations.able:
            if station.probe is None or self._reference is None:
                continue
            if why := unlike(station.probe, *self._reference):
                self._leave_out(station, why)
        self._count()

    def _conclude_comparison(self) -> None:
        """When plain ``torch.compile()`` has ended everywhere, one speaks; who is slower leaves."""
        is_open = any(t.only_at for t in (*self._waiting, *self._running))
        if is_open or self._compared is None or not self._timed:
            return
        endings, self._timed = self._timed, {}
        good = {name: e for name, e in endings.items() if e.outcome is Outcome.OK}
        reasons = slower(good)
        name = next((n for n in good if n not in reasons), next(iter(endings)))
        self._events.append(Ended(self._compared, marked(endings[name], name)))
        for station in self._stations.all:
            if why := reasons.get(station.name):
                self._leave_out(station, why)
        self._count()

    def _leave_out(self, station: Station, why: str) -> None:
        self._tell(station, f"left out: {why}")
        self._stations.give_up(station, why)
        self._waiting[:0] = [t for t in station.running.values() if not t.is_probe]

    def _tell(self, station: Station, text: str) -> None:
        self._events.append(Told(f"{station.name}: {text}"))
