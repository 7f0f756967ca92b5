"""Exclusive use of the machine: while one trial verifies or times, the others are stopped.

Trials compile side by side. A timing taken next to a running compiler is wrong, and so is a
kernel that Inductor chose by such a timing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Set
from typing import Protocol

__all__ = ["Exclusive", "Host"]


class Host(Protocol):
    """Leave to measure on a host that executors share."""

    def may_measure(self) -> bool:
        """Whether this one may measure now; if not, asks for leave."""

    def measured(self) -> None:
        """Give the leave back."""


class Exclusive:
    """Grants exclusive use to one trial at a time, first come, first served.

    Args:
        stop, resume: for the trials with these numbers.
        grant: tells a trial that all others are stopped.
        may_grant: whether nothing but trials uses the machine; called again until it is so.
        granted_is_over: called when a trial's exclusive use has ended.
    """

    def __init__(
        self,
        stop: Callable[[list[int]], None],
        resume: Callable[[list[int]], None],
        grant: Callable[[int], None],
        may_grant: Callable[[], bool],
        granted_is_over: Callable[[], None] = lambda: None,
    ) -> None:
        self._stop, self._resume, self._grant = stop, resume, grant
        self._may_grant, self._granted_is_over = may_grant, granted_is_over
        self._hushed = False
        self._present: set[int] = set()
        self._stopped: set[int] = set()
        self._waiting: deque[int] = deque()
        self._owner: int | None = None

    @property
    def taken(self) -> bool:
        """Whether a trial has exclusive use or waits for it, or all are hushed: none may start."""
        return self.is_granted or bool(self._waiting) or self._hushed

    @property
    def is_granted(self) -> bool:
        return self._owner is not None

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
            if self._hushed:  # the next on the host may begin as soon as it is told
                self._halt(self._present & {number})
            self._granted_is_over()
            self.advance()

    def hush(self, is_on: bool) -> None:
        """Keep all but the owner stopped, as long as another executor of this host measures."""
        self._hushed = is_on
        if is_on:
            self._halt(self._present - {self._owner})
        else:
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
        elif not self._hushed:
            self._continue(self._present - set(self._waiting))

    def _halt(self, numbers: Set[int | None]) -> None:
        moving = {n for n in numbers if n is not None} - self._stopped
        self._stopped |= moving
        self._stop(sorted(moving))

    def _continue(self, numbers: set[int]) -> None:
        self._resume(sorted(self._stopped & numbers))
        self._stopped -= numbers
