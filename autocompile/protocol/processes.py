"""What the processes of a trial do for their tree to end with them. Only the standard library.

The parent stops, measures and kills trees from outside: ``autocompile.execute.trees``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable

MARKER = "AUTOCOMPILE_TRIAL"
"""Environment variable by which programs that a trial started are known, in whatever session.

A fork keeps its parent's environment until it runs another program, so it is found as a descendant;
if its supervisor is killed, the fork server adopts it.
"""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PATIENCE_S = 10.0  # with a process in an uninterruptible system call


def die_with_parent(parent: int, by: int = signal.SIGKILL) -> None:
    """Ask for a signal when the parent dies; if it is gone already, this process leaves.

    The signal follows the thread that created this process, so create it from one that stays.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends: none can leave the tree."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def keep_others_from_writing() -> None:
    """Whatever the umask says, only the owner may write to files that are made from now on."""
    os.umask(os.umask(0o022) | 0o022)


def parents() -> dict[int, int]:
    """The parent of every process, zombies included. Not every kernel lists children."""
    parent_of = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with (
            contextlib.suppress(OSError),
            open(f"/proc/{pid}/stat", "rb", buffering=0) as file,
        ):
            parent_of[int(pid)] = int(file.read().rpartition(b")")[2].split(None, 2)[1])
    return parent_of


def children(parent: int) -> list[int]:
    """Those that nobody has waited for yet are among them."""
    return [pid for pid, its_parent in parents().items() if its_parent == parent]


def kill(pids: Iterable[int]) -> None:
    """Kill those that are still there and that this user may kill."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def end_descendants() -> None:
    """Kill and reap all that is below this process, which adopts orphans: level by level."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        kill(children(os.getpid()))
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)
