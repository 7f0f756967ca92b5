"""Stops the processes of trials while another has exclusive use, and lets them go on."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable, Sequence

from autocompile.execute.child import Child
from autocompile.protocol.processes import pause, resume

__all__ = ["grant", "hold", "release"]

_BIRTH_S = 5.0  # for a supervisor to start its worker


def hold(children: Sequence[Child], read: Callable[[Child, int], object]) -> None:
    """Stop these trials and their clocks; ``read`` takes what a pipe of a trial holds."""
    for child in children:
        _await_birth(child, read)
        child.clock.hold()
    groups = [group for child in children for group in child.groups]
    stopped = pause([child.supervisor for child in children], groups)
    for child in children:
        child.stopped = stopped[child.supervisor]


def _await_birth(child: Child, read: Callable[[Child, int], object]) -> None:
    """Wait for the worker's pid: without it, the worker cannot be stopped."""
    deadline = time.monotonic() + _BIRTH_S
    while child.worker is None and not child.gone and time.monotonic() < deadline:
        reports = select.poll()  # select() takes no descriptor above 1023
        reports.register(child.pipes.results, select.POLLIN)
        if reports.poll(1000 * _BIRTH_S):
            read(child, child.pipes.results)


def release(children: Sequence[Child]) -> None:
    """Let these trials and their clocks go on."""
    for child in children:
        resume(child.stopped, child.groups)
        child.stopped = []
        child.clock.go()


def grant(child: Child) -> None:
    """Tell a trial that all others are stopped."""
    child.clock.go()
    with contextlib.suppress(OSError):  # it has exited; its end is read later
        os.write(child.pipes.control, b"!")
