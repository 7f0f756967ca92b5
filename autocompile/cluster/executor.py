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

from autocompile.cluster.agreement import call_times, slower, unlike
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
    """Runs jobs on stations whose machines are alike; the probe goes to each of them."""

    def __init__(
        self, links: Sequence[Link], receive: Receive, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stations, self._clock = Stations(links, receive, clock), clock
        self._waiting: list[Task] = []
        self._events: list[Event] = []
        self._probe: Task | None = None
        self._reference: tuple[str, Ending] | None = None  # whose probe has spoken for all
        # The first trial of plain torch.compile() that worked, where, and the times of its calls.
        self._plain: tuple[Task, str, tuple[float, ...]] | None = None
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

    def tell_later(self, events: Sequence[Event]) -> None:
        """Give events, of stations that were lost, to who waits next."""
        self._events[:0] = events

    def compile_threads(self, alone: bool) -> int:
        """One: a station may have as few cores as slots."""
        return 1

    def start(self, job: Job) -> None:
        """Send a job to a station that has room, or queue it until there is one."""
        self._raise_interrupt()
        if job.python is not None:
            raise UsageError("other interpreters are paths of this machine, not of a cluster's")
        task = Task(job, read_request(job.folder).to_dict())
        if not task.is_probe:
            self._waiting.append(task)
            self._dispatch()
            return
        self._probe, self._reference, self._stations.has_probe = task, None, True
        self._plain = None
        for station in self._stations.all:
            station.probe = None
            self._send(station, task)

    def wait(self, timeout_s: float) -> list[Event]:
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
        self._waiting = [t for t in self._waiting if t.job.number != number]
        at = [s for s in self._stations.all if number in s.running]
        for station in at:
            station.link.send(Do.CANCEL, number=number)
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

    def _compare_others(self) -> None:
        """Have stations that did not time plain ``torch.compile()`` do so, to compare them."""
        if self._plain is None:
            return
        task, _, _ = self._plain
        others = [s for s in self._stations.able if not s.is_compared]
        again = [dataclasses.replace(task, losses=0, only_at=station.name) for station in others]
        self._waiting[:0] = again  # or jobs that are started meanwhile would keep them waiting
        for station in others:
            station.is_compared = True

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
            if not (task.is_probe or task.only_at):
                at = station.name if len(self._stations.all) > 1 else ""
                self._events.append(Stepped(task.job.number, task.step, at))
        elif kind is Say.ENDED and task is not None:
            del station.running[task.job.number]
            self._end(station, task, message)
        self._count()

    def _end(self, station: Station, task: Task, message: Mapping[str, Any]) -> None:
        """Keep what a job has left, and say how it ended."""
        for file, text in ({} if task.only_at else message["files"]).items():
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
            self._compare(station, ending)
        else:
            self._events.append(Ended(task.job.number, marked(ending, station.name)))
            if self._plain is None and task.is_plain and (times_s := call_times(ending)):
                self._plain, station.is_compared = (task, station.name, times_s), True
                self._compare_others()

    def _lose(self, station: Station) -> None:
        """Put back what a dead station was doing, and start another in its place."""
        if station not in self._stations.all:  # its end has been told twice
            return
        self._stations.give_up(station, "it does not answer")
        tasks = self._given_back(station)
        told = f"lost ({self._stations.reasons[station.name]})"
        if tasks:
            told += f"; trial {', '.join(str(t.job.number) for t in tasks)} is put back"
        self._tell(station, told)
        self._stations.replace(station)
        for task in reversed(tasks):
            task.losses += 1
            if task.losses < _MOST_LOSSES:
                self._waiting.insert(0, task)
                continue
            what = f"it takes its machine down: {_MOST_LOSSES} stations were lost while it ran"
            self._events.append(Ended(task.job.number, Ending(Outcome.CRASHED, task.step, what)))
        self._demand_one()
        self._conclude_probe()

    def _given_back(self, station: Station) -> list[Task]:
        """The jobs of a station that leaves, but for those that only compare it."""
        self._waiting = [t for t in self._waiting if t.only_at != station.name]
        return [t for t in station.running.values() if not (t.is_probe or t.only_at)]

    def _demand_one(self) -> None:
        if not self._stations.all:
            raise RunError(
                "no station is left",
                *self._stations.told_reasons,
                "finished trials are safe",
                hint="the same command with --resume, once there are machines",
            )

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
        self._compare_others()
        self._count()

    def _compare(self, station: Station, ending: Ending) -> None:
        """Leave out a station that cannot do what another did, and the slower of the two."""
        assert self._plain is not None
        task, name, others_s = self._plain
        times_s = call_times(ending)
        if ending.outcome not in (Outcome.OK, Outcome.INTERRUPTED):
            what = f"plain torch.compile(), which works on {name}, ended with "
            self._leave_out(station, f"{what}{ending.outcome.value} ({ending.message})")
        elif times_s and (why := slower(times_s, others_s)):
            self._leave_out(station, f"{why} there as on {name}")
        elif times_s and (why := slower(others_s, times_s)):
            self._plain = task, station.name, times_s
            for other in [s for s in self._stations.all if s.name == name]:
                self._leave_out(other, f"{why} there as on {station.name}")

    def _leave_out(self, station: Station, why: str) -> None:
        self._tell(station, f"left out: {why}")
        self._stations.give_up(station, why)
        self._waiting[:0] = self._given_back(station)
        self._demand_one()

    def _tell(self, station: Station, text: str) -> None:
        self._events.append(Told(f"{station.name}: {text}"))
