"""The trial's end of the result channel: JSON lines on a pipe of their own."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from autocompile.record import Step

__all__ = ["Channel"]

_VERSION = 1


class Channel:
    """Sends steps and the result to the parent, or to stdout when a trial is rerun by hand.

    Args:
        descriptor: the pipe; None for stdout.
        nonce: proves to the parent that a line is ours.
        control: a pipe on which the parent says that the neighbours stand still; None if there
            are none.
        cores: to compile on and to time on, once :meth:`keep_apart` has been called; None: all.

    Attributes:
        current: the step that was begun last.
        waited_s: seconds spent waiting for the neighbours to stand still.
    """

    def __init__(
        self,
        descriptor: int | None,
        nonce: str,
        control: int | None = None,
        cores: tuple[list[int], list[int]] | None = None,
    ) -> None:
        self._descriptor, self._nonce, self._control = descriptor, nonce, control
        self._cores = cores
        self._apart = False
        self._depth = 0
        self.current = Step.IMPORT
        self.waited_s = 0.0
        for each in (descriptor, control):
            if each is not None:
                os.set_inheritable(each, False)

    def step(self, step: Step) -> None:
        """Say which step begins."""
        self.current = step
        self._send({"event": "step", "step": step.value})

    def modules(self, names: list[str]) -> None:
        """Say what other trials will need to import as well."""
        self._send({"event": "modules", "names": names})

    def toolchain(self) -> None:
        """Say that trials will compile for the CPU."""
        self._send({"event": "toolchain"})

    def room(self, trials: int) -> None:
        """Say how many trials the device has memory for at once."""
        self._send({"event": "room", "trials": trials})

    def result(self, payload: dict[str, Any]) -> None:
        """Say how it ended; the first result counts."""
        self._send({"event": "result", "step": self.current.value, **payload})

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """While it is entered, no other trial of the run uses the machine; may be nested."""
        self.quiet_from_now_on()
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0 and self._control is not None:
                self._move(0)
                self._send({"event": "busy"})

    def quiet_from_now_on(self) -> None:
        """Like :meth:`quiet`, until this process has ended: leaving it disturbs as well."""
        self._depth += 1
        if self._depth == 1:
            self._ask("quiet")
            self._move(1)

    def keep_apart(self) -> None:
        """Keep to the cores that trials compile on while nothing is timed here."""
        self._apart = self._cores is not None
        self._move(0)

    @contextlib.contextmanager
    def offline(self) -> Iterator[None]:
        """While it is entered this process leaves the device alone, except in :meth:`quiet`.

        It need not stand still while another trial is timed on other cores; coming back it waits
        until that is over.
        """
        if not self._apart or self._depth:
            yield
            return
        self._send({"event": "offline"})
        try:
            yield
        finally:
            self._ask("online")

    def _ask(self, event: str) -> None:
        if self._control is not None:
            began = time.perf_counter()
            self._send({"event": event})
            os.read(self._control, 1)
            self.waited_s += time.perf_counter() - began

    def _move(self, place: int) -> None:
        """Keep every thread of this process to the cores for compiling (0) or for timing (1)."""
        if not self._apart or self._cores is None:
            return
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError):  # it has just ended
                os.sched_setaffinity(int(thread), self._cores[place])

    def _send(self, message: dict[str, Any]) -> None:
        line = json.dumps({"v": _VERSION, "nonce": self._nonce, **message}) + "\n"
        if self._descriptor is None:
            sys.stdout.write(line)
            return
        data = line.encode()
        while data:
            data = data[os.write(self._descriptor, data) :]
