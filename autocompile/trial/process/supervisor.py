"""The supervisor: the first process of a trial. It starts the one that works and outlives it.

As a child subreaper (prctl(2)) it becomes the parent of every process that the trial leaves
behind, in whatever session, so that nothing can hide; when the worker ends, or the tuner dies, it
kills them all. It imports neither torch nor numpy and does nothing but wait.
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

from autocompile.protocol.events import EventName, encode
from autocompile.protocol.processes import (
    adopt_orphans,
    die_with_parent,
    end_descendants,
    keep_others_from_writing,
)

__all__ = ["guard"]


def _fall(signum: int, frame: Any) -> NoReturn:
    """The parent process has ended, so the trial must end too."""
    end_descendants()
    os._exit(1)


def _volunteer_for_the_oom_killer() -> None:
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("900")


def _say(descriptor: int, line: str) -> None:
    with contextlib.suppress(OSError):
        os.write(descriptor, line.encode())


def guard(work: Callable[[], None], descriptor: int, nonce: str, cgroup: str, parent: int) -> None:
    """Fork: the child does ``work`` and never returns, this process looks after it and leaves.

    Args:
        work: what the trial does.
        descriptor: the result channel; the worker tells it its pid as soon as it can be stopped and
            asked for its stacks, and this process how it ended.
        nonce: of the channel.
        cgroup: a file that takes the pid of a process which is to be held to a memory limit;
            empty for none.
        parent: the pid of the process that started this one.
    """
    signal.signal(signal.SIGTERM, _fall)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    die_with_parent(parent, signal.SIGTERM)
    adopt_orphans()
    keep_others_from_writing()  # compiler caches hold code that is run again
    supervisor = os.getpid()
    worker = os.fork()
    if worker == 0:
        try:
            _become_worker(supervisor)
            _say(descriptor, encode(nonce, EventName.WORKER_BEGAN, pid=os.getpid()))
            if cgroup and not _enter(cgroup):
                _say(descriptor, encode(nonce, EventName.NO_CGROUP))
            work()
        except BaseException:
            traceback.print_exc()  # into the trial's log
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(70)  # work() leaves by itself; this is for what it could not handle
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == worker:
            break
    end_descendants()
    code = os.waitstatus_to_exitcode(status)
    _say(descriptor, encode(nonce, EventName.WORKER_ENDED, code=code))
    os._exit(0)


def _enter(cgroup: str) -> bool:
    try:
        with open(cgroup, "w") as file:
            file.write(str(os.getpid()))
    except OSError:  # some kernels let us make a group and not move into it
        return False
    return True


def _become_worker(supervisor: int) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    die_with_parent(supervisor)
    _volunteer_for_the_oom_killer()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
