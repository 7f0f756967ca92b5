"""Exclusive use of the machine: while one trial verifies or times, the others are stopped.

Trials compile side by side. A timing taken next to a running compiler is wrong, and so is a
kernel that Inductor chose by such a timing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Set

__all__ = ["Exclusive"]


class Exclusive:
    """Grants exclusive use to one trial at a time, first come, first served.

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
        if self._owner is not None:
            return
        if self._waiting and self._may_grant():
            self._owner = self._waiting.popleft()
            # Stop the others before granting, or the owner would start next to them.
            self._halt(self._present - {self._owner})
            self._continue({self._owner})
            self._grant(self._owner)
        else:
            self._continue(self._present - set(self._waiting))

    def _halt(self, numbers: Set[int | None]) -> None:
        moving = {n for n in numbers if n is not None} - self._stopped
        self._stopped |= moving
        self._stop(sorted(moving))

    def _continue(self, numbers: set[int]) -> None:
        self._resume(sorted(self._stopped & numbers))
        self._stopped -= numbers
