"""The trial's end of the result channel: JSON lines on a pipe of their own."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from autocompile.protocol.events import EventName, encode
from autocompile.store.reading import plain
from autocompile.store.record import Outcome, Step, TaskResult

# Modules of torch._inductor, and how the methods of their classes begin that time kernels.
_TIMING = {
    "runtime.benchmarking": "benchmark",
    # A whole table of candidates in one go: each request stops the other trials once.
    "select_algorithm": "benchmark_in_current_process",
    "runtime.triton_heuristics": "benchmark_all_configs",
}


class Channel:
    """Sends steps and the result to the parent, or to stdout when a trial is rerun by hand.

    Args:
        descriptor: the pipe; None for stdout.
        control: a pipe on which the parent says that other trials are stopped; None if there
            are no others.
        has_fork_server: a fork server prepares what trials share.

    Attributes:
        waited_s: seconds spent waiting until other trials were stopped.
        drain: waits until the device has done what they had given it.
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
        # Inductor compiles in threads at times.
        self._depth, self._lock = 0, threading.RLock()
        self.current = Step.IMPORT
        self.waited_s = 0.0
        self.drain: Callable[[], None] = lambda: None
        for each in (descriptor, control):
            if each is not None:
                os.set_inheritable(each, False)

    def step(self, step: Step) -> None:
        self.current = step
        self.send(EventName.STEP, step=step.value)

    def result(self, result: TaskResult) -> None:
        """Send the result; the first one counts."""
        result.step = self.current
        self.send(EventName.RESULT, **plain(result))

    def measured(self, result: TaskResult) -> None:
        """Send what counts if this process ends, whatever ends it, before it sends its result."""
        if self._descriptor is not None:
            known = dataclasses.replace(result, outcome=Outcome.OK, step=Step.EXIT)
            self.send(EventName.MEASURED, **plain(known))

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Context in which no other trial of the run uses the machine; may be nested."""
        with self._lock:  # a second thread waits as well
            self._depth += 1
            if self._depth == 1 and self._control is not None:
                began = time.perf_counter()
                self.send(EventName.EXCLUSIVE)
                os.read(self._control, 1)
                self.drain()
                self.waited_s += time.perf_counter() - began
        try:
            yield
        finally:
            with self._lock:
                self._depth -= 1
                if self._depth == 0 and self._control is not None:
                    self.send(EventName.SHARED)

    def send(self, event: EventName, **fields: Any) -> None:
        line = encode(self._nonce, event, **fields)
        if self._descriptor is None:
            sys.stdout.write(line)
            return
        data = line.encode()
        while data:
            data = data[os.write(self._descriptor, data) :]


def make_autotuning_exclusive(channel: Channel) -> int:
    """Run Inductor's own benchmarks exclusively too, for the rest of this process.

    A kernel chosen beside another trial is a guess. This holds for templates under max-autotune,
    Triton configurations and coordinate descent. Returns how many methods were wrapped.
    """
    wrapped = 0
    for name, prefix in _TIMING.items():
        with contextlib.suppress(ImportError):
            module = importlib.import_module(f"torch._inductor.{name}")
            for owner in list(vars(module).values()):
                if isinstance(owner, type) and owner.__module__ == module.__name__:
                    wrapped += _wrap(owner, prefix, channel)
    return wrapped


def _wrap(owner: type, prefix: str, channel: Channel) -> int:
    methods = {n: m for n, m in vars(owner).items() if n.startswith(prefix)}
    for name, method in methods.items():
        if callable(method):
            setattr(owner, name, _exclusively(method, channel))
        elif isinstance(method, classmethod):
            setattr(owner, name, classmethod(_exclusively(method.__func__, channel)))
    return len(methods)


def _exclusively(method: Callable[..., Any], channel: Channel) -> Callable[..., Any]:
    @functools.wraps(method)
    def timed(*args: Any, **kwargs: Any) -> Any:
        with channel.exclusive():
            return method(*args, **kwargs)

    return timed
