"""Process trees on Linux: who belongs to one, its memory, pausing it, leaving nothing alive."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "MARKER",
    "adopt_orphans",
    "descendants",
    "die_with_parent",
    "end_descendants",
    "end_strays",
    "keep_others_from_writing",
    "kill_tree",
    "pause",
    "resume",
    "thread_count",
    "tree_memory_bytes",
]

MARKER = "AUTOCOMPILE_TRIAL"
"""Environment variable by which programs that a trial started are known, in whatever session."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


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


def thread_count() -> int:
    """Threads of this process, those of C libraries too."""
    return len(os.listdir("/proc/self/task"))


class _Seen(NamedTuple):
    """What the kernel says of a process."""

    state: str
    parent: int
    group: int

    @property
    def is_alive(self) -> bool:
        return self.state not in "ZX"

    @property
    def is_moving(self) -> bool:
        return self.is_alive and self.state not in "Tt"


def _look_at(pid: int) -> _Seen | None:
    try:  # without pathlib, which takes twice as long: this is read for every process
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            words = file.read().rpartition(b")")[2].split(None, 3)
        return _Seen(words[0].decode(), int(words[1]), int(words[2]))
    except (OSError, ValueError, IndexError):
        return None


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _trees(roots: Collection[int]) -> dict[int, dict[int, _Seen]]:
    """What is below each of these, children before grandchildren, from one look at all."""
    # Not every kernel lists children, and under CUDA each of dozens of threads has a list.
    if not roots:
        return {}
    every = {pid: seen for pid in _pids() if (seen := _look_at(pid))}
    children = defaultdict[int, list[int]](list)
    for pid, seen in every.items():
        children[seen.parent].append(pid)
    found = {root: dict[int, _Seen]() for root in roots}
    for root, below in found.items():
        todo = [root]
        while todo:
            born = children[todo.pop()]
            todo += born
            below |= {child: every[child] for child in born}
    return found


def descendants(root: int) -> list[int]:
    """Every living process below one, children before grandchildren."""
    return [pid for pid, seen in _trees([root])[root].items() if seen.is_alive]


def tree_memory_bytes(roots: Collection[int]) -> dict[int, int]:
    """Resident memory below each of these, without pages of files, with what forks share."""
    return {root: sum(map(_own_bytes, tree)) for root, tree in _trees(roots).items()}


def _own_bytes(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
        return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _signal_all(
    pids: Iterable[int], number: int, send: Callable[[int, int], None] = os.kill
) -> set[int]:
    reached = set()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(pid, number)
            reached.add(pid)
    return reached


def _marked(value: str) -> list[int]:
    """Processes whose environment carries the marker, zombies and ourselves left out."""
    needle, found = f"{MARKER}={value}".encode(), []
    for pid in set(_pids()) - {os.getpid()}:
        with contextlib.suppress(OSError):
            if needle in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def _until_quiet(find: Callable[[], list[int]], patience_s: float = 10.0) -> bool:
    """Kill what ``find`` finds until two passes in a row find nothing."""
    deadline = time.monotonic() + patience_s
    quiet = 0
    while quiet < 2 and time.monotonic() < deadline:
        alive = find()
        quiet = 0 if alive else quiet + 1
        _signal_all(alive, signal.SIGKILL)
        if alive:
            time.sleep(0.01)
    return quiet >= 2


def end_descendants() -> bool:
    """Kill and reap everything below this process."""

    def find() -> list[int]:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        return descendants(os.getpid())

    return _until_quiet(find)


def end_strays(known: Collection[int]) -> None:
    """Kill every child of this process that it does not know, with all below it, in one pass."""
    here = os.getpid()
    children = {pid for pid, seen in _trees([here])[here].items() if seen.parent == here}
    for stray in children - set(known):
        _signal_all([stray, *descendants(stray)], signal.SIGKILL)


def kill_tree(root: int | None, marker: str) -> bool:
    """Kill a process (None if it is gone), all below it, and all with this value of ``MARKER``.

    Returns whether two passes in a row found nothing alive.
    """
    if root is not None:
        _until_quiet(lambda: descendants(root))
        _signal_all([root], signal.SIGKILL)
    return _until_quiet(lambda: _marked(marker))


def pause(
    roots: Collection[int], groups: Collection[int] = (), patience_s: float = 0.25
) -> dict[int, list[int]]:
    """Stop every process below these, which go on themselves, and wait until they are stopped.

    ``groups`` are process groups inside the trees: the kernel stops them at once, forks included;
    what is in none is stopped one by one, and looked for again. A process in an uninterruptible
    system call stops when the call returns, and is not waited for longer than ``patience_s``.

    Returns for each root the living processes below it, for :func:`resume`.
    """
    # A process that has not called setpgid yet is not in its group.
    held = _signal_all(groups, signal.SIGSTOP, os.killpg)
    deadline = time.monotonic() + patience_s
    while True:
        trees = _trees(roots)
        moving = {p: seen for tree in trees.values() for p, seen in tree.items() if seen.is_moving}
        outside = [pid for pid, seen in moving.items() if seen.group not in held]
        _signal_all(outside, signal.SIGSTOP)
        _await_stillness(moving, deadline)
        if not outside or time.monotonic() >= deadline:
            return {
                root: [pid for pid, seen in tree.items() if seen.is_alive]
                for root, tree in trees.items()
            }


def _await_stillness(pids: Iterable[int], deadline: float) -> None:
    nap_s, left = 0.0005, list(pids)
    while left and time.monotonic() < deadline:
        time.sleep(nap_s)
        nap_s *= 2
        left = [pid for pid in left if (seen := _look_at(pid)) and seen.is_moving]


def resume(pids: Iterable[int], groups: Iterable[int] = ()) -> None:
    """Let the processes and groups that :func:`pause` has stopped go on."""
    _signal_all(pids, signal.SIGCONT)
    _signal_all(groups, signal.SIGCONT, os.killpg)
