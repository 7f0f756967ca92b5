"""The process trees of trials, seen from the parent: their memory, stopping and killing them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable

import psutil

from autocompile.protocol.processes import MARKER, kill, parents

_STILL = ("stopped", "tracing-stop")  # as psutil says it
_DEAD = ("zombie", "dead")
_PATIENCE_S = 10.0  # with a process in an uninterruptible system call


def below(roots: Collection[int]) -> dict[int, list[int]]:
    """The living processes below each of these, parents first, from one look at all processes.

    ``psutil.Process.children`` would look at all of them for each root: stopping sixteen trials
    takes 79 ms with it and 7 ms so.
    """
    children = defaultdict[int, list[int]](list)
    for pid, parent in parents().items() if roots else ():
        children[parent].append(pid)
    trees = {}
    for root in roots:
        tree = list(children[root])
        for pid in tree:  # which grows meanwhile
            tree += children[pid]
        trees[root] = [pid for pid in tree if _status(pid) not in _DEAD]
    return trees


def _status(pid: int) -> str:
    with contextlib.suppress(psutil.Error):
        return str(psutil.Process(pid).status())
    return "dead"


def tree_memory_bytes(roots: Collection[int]) -> dict[int, int]:
    """Resident memory of the processes below each of these, shared pages of files left out.

    What a fork shares with its origin is counted, as a fresh interpreter would hold it as well.
    """
    held = dict.fromkeys(roots, 0)
    for root, tree in below(roots).items():
        for pid in tree:
            with contextlib.suppress(psutil.Error):
                memory = psutil.Process(pid).memory_info()
                held[root] += memory.rss - memory.shared
    return held


def kill_tree(root: int | None, marker: str) -> bool:
    """Kill every process below a root, itself, and all with this value of ``MARKER``.

    The root must be alive or not yet waited for; None if it is gone. Returns whether two looks in a
    row found nothing alive.
    """
    if root is not None:
        _kill_until_none(lambda: below([root])[root])
        kill([root])
    return _kill_until_none(lambda: _marked(marker))


def _marked(value: str) -> list[int]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARKER) == value and process.pid != os.getpid():
                found.append(process.pid)
    return found


def _kill_until_none(find: Callable[[], list[int]]) -> bool:
    deadline, looks_without = time.monotonic() + _PATIENCE_S, 0
    while looks_without < 2 and time.monotonic() < deadline:
        found = find()
        looks_without = 0 if found else looks_without + 1
        kill(found)
        if found:
            time.sleep(0.01)
    return looks_without == 2


def pause(
    roots: Collection[int], groups: Collection[int] = (), patience_s: float = 0.25
) -> dict[int, list[int]]:
    """Stop every process below these, which go on, and wait until they are stopped.

    The kernel stops ``groups``, process groups with all of their members in the trees, at once,
    forks included; what is in none is stopped one by one, and looked for again. A process in an
    uninterruptible system call stops when that returns. Returns for each root the living processes
    below it, for :func:`resume`.
    """
    # A process that has not called setpgid yet is not in its group.
    stopped = _signal_all(groups, signal.SIGSTOP, os.killpg)
    deadline = time.monotonic() + patience_s
    while True:
        trees = below(roots)
        moving = [
            pid for tree in trees.values() for pid in tree if _status(pid) not in _STILL
        ]
        outside = [pid for pid in moving if _group(pid) not in stopped]
        _signal_all(outside, signal.SIGSTOP)
        nap_s = 0.0005
        while moving and time.monotonic() < deadline:
            time.sleep(nap_s)
            nap_s *= 2
            moving = [pid for pid in moving if _status(pid) not in (*_STILL, *_DEAD)]
        if not outside or time.monotonic() >= deadline:
            return trees


def _group(pid: int) -> int | None:
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(pid)
    return None


def resume(pids: Iterable[int], groups: Iterable[int] = ()) -> None:
    """Let the processes and groups that :func:`pause` has stopped go on."""
    _signal_all(pids, signal.SIGCONT)
    _signal_all(groups, signal.SIGCONT, os.killpg)


def _signal_all(
    pids: Iterable[int], number: int, send: Callable[[int, int], None] = os.kill
) -> set[int]:
    """Those that could be reached."""
    reached = set()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(pid, number)
            reached.add(pid)
    return reached
