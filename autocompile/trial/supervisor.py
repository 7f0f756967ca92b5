"""The supervisor: the first process of a trial. It starts the worker and outlives it.

As a child subreaper (prctl(2)) it becomes the parent of every process that the trial leaves
behind, in whatever session. When the worker ends, or the tuner dies, it kills them all. It imports
neither torch nor numpy and only waits.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from autocompile.protocol import processes
from autocompile.protocol.events import EventName, encode


def end_with_parent(signum: int, frame: Any) -> NoReturn:
    """Handler of the signal that the parent's death sends: nothing below this process stays."""
    processes.end_descendants()
    os._exit(1)


def _say(descriptor: int, line: str) -> None:
    with contextlib.suppress(OSError):
        os.write(descriptor, line.encode())


def guard(work: Callable[[], None], descriptor: int, nonce: str, parent: int) -> None:
    """Fork: the child does ``work`` and never returns; this process waits for it and exits.

    The worker sends its pid to the result channel, ``descriptor``, once it can be stopped and asked
    for its stacks; this process sends how it ended. ``parent`` is the pid of the process that
    started this one.
    """
    signal.signal(signal.SIGTERM, end_with_parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    processes.die_with_parent(parent, signal.SIGTERM)
    processes.adopt_orphans()
    processes.keep_others_from_writing()  # compiler caches hold code that is run again
    supervisor = os.getpid()
    worker = os.fork()
    if worker == 0:
        try:
            _become_worker(supervisor)
            _say(descriptor, encode(nonce, EventName.WORKER_BEGAN, pid=os.getpid()))
            work()
        except BaseException:
            traceback.print_exc()  # into the trial's log
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            # work() leaves by itself; this is for what it could not handle.
            os._exit(70)
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == worker:
            break
    processes.end_descendants()
    code = os.waitstatus_to_exitcode(status)
    _say(descriptor, encode(nonce, EventName.WORKER_ENDED, code=code))
    os._exit(0)


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
