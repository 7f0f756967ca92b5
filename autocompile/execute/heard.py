"""What a trial says to its parent while it runs, and what the parent does about it.

Nothing that a trial sends can raise here: what is no event, or has other fields than its event, is
noted, and :mod:`autocompile.execute.ending` makes an outcome of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autocompile.execute.child import Child
from autocompile.execute.exclusive import Exclusive
from autocompile.execute.executor import Event, Stepped
from autocompile.execute.memory import Held, trials_at_once
from autocompile.execute.starter import ProcessStarter
from autocompile.protocol.events import ChannelError, EventName, LineReader
from autocompile.store.record import Step


class Heard:
    """The events of one trial: a method for each of :class:`EventName`, in the same order.

    Args:
        child: the state of the trial, which the methods change.
        starter: of the trial's interpreter; it warms up its fork server for the trials after it.
        exclusive: who may use the machine alone.
        report: takes what the search is told.
        make_room: takes how many trials find memory at once.
    """

    def __init__(
        self,
        child: Child,
        starter: ProcessStarter,
        exclusive: Exclusive,
        report: Callable[[Event], None],
        make_room: Callable[[int], None],
    ) -> None:
        self._child, self._starter, self._exclusive = child, starter, exclusive
        self._report, self._make_room = report, make_room
        self._reader = LineReader(child.nonce)
        self._number = child.job.number

    def __call__(self, data: bytes) -> bool:
        """Take what came through the channel; False if it was no message of ours."""
        try:
            for event, fields in self._reader.feed(data):
                self._take(event, fields)
        except ChannelError as error:
            self._child.garbage = str(error)
            return False
        return True

    def _take(self, event: EventName, fields: dict[str, Any]) -> None:
        try:
            getattr(self, event.value)(**fields)
        except (TypeError, ValueError, OverflowError) as error:
            raise ChannelError(f"a wrong {event.value!r}: {error}") from error

    # From the supervisor:

    def worker_began(self, pid: int) -> None:
        """The process that runs the trial is there."""
        self._child.worker = int(pid)

    # From the worker:

    def step(self, step: str) -> None:
        """A step begins, and with it the time that it may take."""
        self._child.clock.enter(Step(step))
        self._report(Stepped(self._number, self._child.clock.step))

    def modules(self, names: list[str]) -> None:
        """Other trials will import these too."""
        self._starter.warm([str(name) for name in names], None)

    def toolchain(self) -> None:
        """Trials will compile for the CPU."""
        self._starter.warm((), self._child.job.toolchain)

    def room(
        self, phases: list[dict[str, Any]], free_bytes: int | None, context_bytes: int
    ) -> None:
        """What eager mode holds in each phase, and what of an accelerator's memory is free."""
        held = [Held(**each) for each in phases]
        self._make_room(trials_at_once(held, free_bytes, context_bytes))

    def exclusive(self) -> None:
        """It waits until no other trial uses the machine."""
        self._child.clock.hold(waits=True)
        self._exclusive.request(self._number)

    def shared(self) -> None:
        """The others may go on."""
        self._exclusive.give_back(self._number)

    def measured(self, /, **record: Any) -> None:
        """What it has measured, right by the checks that it names: its result if none follows."""
        self._child.measured = record

    def result(self, /, **record: Any) -> None:
        """It is over. The first result is final: code of the user's cannot send another."""
        if self._child.result is None:
            self._child.result = record
            self._child.clock.enter(Step.EXIT)

    # From the supervisor:

    def worker_ended(self, code: int, rank: int | None = None) -> None:
        """The worker and all below it are gone; of several ranks, which one ended first."""
        self._child.code = int(code)
        self._child.rank = None if rank is None else int(rank)
