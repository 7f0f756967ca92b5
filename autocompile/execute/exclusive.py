"""Exclusive use of the machine: by one command of a user, and within it by one trial at a time.

A timing taken next to a running compiler is wrong, and so is a kernel that Inductor chose by such a
timing. One command at a time compiles or times, also where their GPUs differ: calls are launched
from the CPU. (Several GPUs of a host in one search: ``--ray``.) Its lock is a file in the temporary
folder, one for each user; with another ``TMPDIR`` it is another lock. The trials of a command
compile side by side; while one of them verifies or times, the others are stopped.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from autocompile.errors import RunError
from autocompile.store.files import not_for_all

_GLANCE_S = 0.5


def take(file: BinaryIO) -> bool:
    """Lock a file; a moment's patience is for those who only look whether it is held."""
    for pause_s in (0.05, 0.1, 0.2, None):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if pause_s:
            time.sleep(pause_s)
    return False


@contextlib.contextmanager
def held(
    doing: str, tell: Callable[[str], None], wait: bool = False
) -> Iterator[float]:
    """Hold this machine; yields the seconds that it was waited for.

    Where another autocompile of this user is at work, which names what it is ``doing``, that is a
    RunError without ``wait``. ``tell`` is told of a wait, and of what cannot be locked.
    """
    path = Path(tempfile.gettempdir()) / f"autocompile-{os.getuid()}.lock"
    began, told = time.monotonic(), ""
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open(path, "r+b", buffering=0, opener=_own_file))
            while not take(file):
                said = os.pread(file.fileno(), 1000, 0).decode("utf-8", "replace")
                holder = (
                    "".join(c if c.isprintable() else " " for c in said)
                    or "it has just begun"
                )
                if not wait:
                    raise RunError(
                        f"another autocompile is at work on this machine: {holder}",
                        "two at once spoil each other's timing",
                        hint="the same command with --wait, or when the other has ended",
                    )
                if holder != told:
                    tell(
                        f"waiting for the autocompile that is at work on this machine: {holder}"
                    )
                    told = holder
                time.sleep(_GLANCE_S)
            file.truncate(0)
            since = time.strftime("%Y-%m-%d %H:%M")
            os.pwrite(
                file.fileno(), f"pid {os.getpid()} since {since}, {doing}".encode(), 0
            )
        except OSError as error:
            why = error.strerror or error
            tell(f"cannot tell whether another autocompile is at work: {path}: {why}")
        yield time.monotonic() - began if told else 0.0


def _own_file(path: str, flags: int) -> int:
    """Open a file of this user; what another has put there, or a link, is an OSError."""
    descriptor = not_for_all(path, flags | os.O_CREAT)
    if os.fstat(descriptor).st_uid != os.geteuid():
        os.close(descriptor)
        raise PermissionError(0, "it is another user's")
    return descriptor


class Exclusive:
    """Grants exclusive use to one trial at a time, first come, first served.

    While a trial owns it, all others are stopped; else all move but those that were stopped and
    wait for their own grant.

    Args:
        stop, resume: for the trials with these numbers.
        grant: tells a trial that all others are stopped.
        may_grant: whether nothing but trials uses the machine; called again until it is so.
    """

    def __init__(
        self,
        stop: Callable[[list[int]], None],
        resume: Callable[[list[int]], None],
        grant: Callable[[int], None],
        may_grant: Callable[[], bool],
    ) -> None:
        self._stop, self._resume, self._grant = stop, resume, grant
        self._may_grant = may_grant
        self._present: set[int] = set()
        self._stopped: set[int] = set()
        self._waiting: deque[int] = deque()
        self._owner: int | None = None

    @property
    def taken(self) -> bool:
        """Whether a trial has exclusive use or waits for it: none may start."""
        return self._owner is not None or bool(self._waiting)

    def enter(self, number: int) -> None:
        self._present.add(number)

    def request(self, number: int) -> None:
        """Queue a trial for exclusive use, which :meth:`advance` grants."""
        if number == self._owner:  # another process or thread of the trial that has it
            self._grant(number)
        elif number in self._present and number not in self._waiting:
            self._waiting.append(number)

    def give_back(self, number: int) -> None:
        """End a trial's exclusive use, if it has it."""
        if self._owner == number:
            self._owner = None
            self.advance()

    def leave(self, number: int) -> None:
        """Remove a trial that has ended."""
        self._present.discard(number)
        self._stopped.discard(number)
        if number in self._waiting:
            self._waiting.remove(number)
        self.give_back(number)

    def advance(self) -> None:
        """Grant exclusive use to who has waited longest, or let all go on."""
        if self._owner is None and self._waiting and self._may_grant():
            self._owner = self._waiting.popleft()
            self._settle()
            self._grant(self._owner)
        elif self._owner is None:
            self._settle()

    def _settle(self) -> None:
        """Stop who must not move now, and only then let the others go on."""
        if self._owner is not None:
            still = self._present - {self._owner}
        else:
            still = self._stopped & set(self._waiting)
        self._stop(sorted(still - self._stopped))
        self._resume(sorted(self._stopped - still))
        self._stopped = still
