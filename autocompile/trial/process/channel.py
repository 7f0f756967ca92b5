"""The trial's end of the result channel: JSON lines on a pipe of their own."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autocompile.protocol.events import EventName, encode
from autocompile.protocol.results import TaskResult
from autocompile.store.record import Step

__all__ = ["Channel"]


class Channel:
    """Sends steps and the result to the parent, or to stdout when a trial is rerun by hand.

    Args:
        descriptor: the pipe; None for stdout.
        nonce: proves to the parent that a line is ours.
        control: a pipe on which the parent says that other trials are stopped; None if there
            are none.
        folder: of the trial.
        has_fork_server: there is one, which prepares what trials share.

    Attributes:
        current: the step that was begun last.
        waited_s: seconds spent waiting until other trials were stopped.
    """

    def __init__(
        self,
        descriptor: int | None,
        nonce: str,
        control: int | None = None,
        folder: Path = Path(),
        has_fork_server: bool = False,
    ) -> None:
        self._descriptor, self._nonce, self._control = descriptor, nonce, control
        self.folder, self.has_fork_server = folder, has_fork_server
        self._depth, self._lock = 0, threading.RLock()  # Inductor compiles in threads at times
        self.current = Step.IMPORT
        self.waited_s = 0.0
        for each in (descriptor, control):
            if each is not None:
                os.set_inheritable(each, False)

    def step(self, step: Step) -> None:
        """Say which step begins."""
        self.current = step
        self._send(EventName.STEP, step=step.value)

    def modules(self, names: list[str]) -> None:
        """Say what other trials will need to import as well."""
        self._send(EventName.MODULES, names=names)

    def toolchain(self) -> None:
        """Say that trials will compile for the CPU."""
        self._send(EventName.TOOLCHAIN)

    def room(self, trials: int) -> None:
        """Say how many trials the device has memory for at once."""
        self._send(EventName.ROOM, trials=trials)

    def result(self, result: TaskResult) -> None:
        """Say how it ended; the first result counts."""
        self._send(EventName.RESULT, step=self.current.value, **result.to_dict())

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """While it is entered, no other trial of the run uses the machine; may be nested."""
        with self._lock:  # a second thread waits as well
            self._depth += 1
            if self._depth == 1 and self._control is not None:
                began = time.perf_counter()
                self._send(EventName.EXCLUSIVE)
                os.read(self._control, 1)
                self.waited_s += time.perf_counter() - began
        try:
            yield
        finally:
            with self._lock:
                self._depth -= 1
                if self._depth == 0 and self._control is not None:
                    self._send(EventName.SHARED)

    def _send(self, event: EventName, **fields: Any) -> None:
        line = encode(self._nonce, event, **fields)
        if self._descriptor is None:
            sys.stdout.write(line)
            return
        data = line.encode()
        while data:
            data = data[os.write(self._descriptor, data) :]
