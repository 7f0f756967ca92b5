"""The supervisor: the first process of a trial. It starts the workers and outlives them.

As a child subreaper (prctl(2)) it becomes the parent of every process that the trial leaves
behind, in whatever session. When a worker ends, or the tuner dies, it kills them all. It imports
neither torch nor numpy and only waits.

A trial has one worker, or one for each rank. The ranks succeed together; the first that ends
otherwise ends the trial, and what it has left in a file is the trial's result.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from autocompile.protocol import processes
from autocompile.protocol.events import (
    FAILED_RANK,
    MEETING,
    RANKS_ARE_OVER,
    EventName,
    encode,
)

_LEAVE_S = 5.0  # for the other ranks, once the result has been sent
_POLL_S = 0.01


def end_with_parent(signum: int, frame: Any) -> NoReturn:
    """Handler of the signal that the parent's death sends: nothing below this process stays."""
    processes.end_descendants()
    os._exit(1)


def _say(descriptor: int, line: str) -> None:
    data = line.encode()
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(descriptor, data) :]


def guard(
    work: Callable[[int], None],
    descriptor: int,
    nonce: str,
    parent: int,
    folder: Path,
) -> None:
    """Fork: the children do ``work`` and never return; this process waits for them and exits.

    There is one for each rank that the request in ``folder`` asks for, whose number ``work`` gets.
    Rank 0 sends its pid to the result channel, ``descriptor``, once it can be stopped and asked for
    its stacks; this process sends how the first ended. ``parent`` is the pid of the process that
    started this one.
    """
    signal.signal(signal.SIGTERM, end_with_parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    processes.die_with_parent(parent, signal.SIGTERM)
    processes.adopt_orphans()
    processes.keep_others_from_writing()  # compiler caches hold code that is run again
    for name in (FAILED_RANK, RANKS_ARE_OVER, MEETING):  # of a first try
        (folder / name).unlink(missing_ok=True)
    count, supervisor = ranks_asked(folder), os.getpid()
    workers: dict[int, int] = {}
    for rank in range(count):
        if (worker := os.fork()) == 0:
            _be_worker(work, rank, supervisor, descriptor, nonce)
        workers[worker] = rank
    _wait_for_end(workers, count, descriptor, nonce, folder)
    os._exit(0)


def _wait_for_end(
    workers: dict[int, int], count: int, descriptor: int, nonce: str, folder: Path
) -> None:
    """Wait for the first worker that ends, end all, and say how it has ended."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid in workers:
            break
    rank, code = workers.pop(pid), os.waitstatus_to_exitcode(status)
    is_over = (folder / RANKS_ARE_OVER).exists()
    if is_over:
        _wait_for(workers)
    processes.end_descendants()
    ended: dict[str, Any] = {"code": code}
    if count > 1 and not is_over:
        ended["rank"] = rank
        with contextlib.suppress(OSError, ValueError):
            failed = json.loads((folder / FAILED_RANK).read_text())
            _say(descriptor, encode(nonce, EventName.RESULT, **failed))
    _say(descriptor, encode(nonce, EventName.WORKER_ENDED, **ended))


def ranks_asked(folder: Path) -> int:
    """How many ranks the request in a trial's folder asks for."""
    try:
        asked = json.loads((folder / "request.json").read_text())
        is_spread = asked.get("kind") in ("trial", "probe")
        return int(asked.get("ranks", 1)) if is_spread else 1
    except (OSError, ValueError, AttributeError):
        return 1  # the worker says what is wrong with it


def _wait_for(workers: dict[int, int]) -> None:
    """Let the other ranks leave by themselves."""
    until = time.monotonic() + _LEAVE_S
    while workers and time.monotonic() < until:
        with contextlib.suppress(ChildProcessError):
            pid, _ = os.waitpid(-1, os.WNOHANG)
            workers.pop(pid, None)
        time.sleep(_POLL_S)


def _be_worker(
    work: Callable[[int], None], rank: int, supervisor: int, descriptor: int, nonce: str
) -> NoReturn:
    try:
        _become_worker(supervisor)
        if rank == 0:
            _say(descriptor, encode(nonce, EventName.WORKER_BEGAN, pid=os.getpid()))
        work(rank)
    except BaseException:
        traceback.print_exc()  # into the trial's log
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        # work() leaves by itself; this is for what it could not handle.
        os._exit(70)


def _become_worker(supervisor: int) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    processes.die_with_parent(supervisor)
    # If memory runs out, the kernel ends this process before others.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("900")
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
