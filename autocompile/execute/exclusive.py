"""Quiet: while one trial is verified or timed, the others of the run stand still.

Trials compile side by side, but a number that was taken while a neighbour compiled is not true,
and nor is a kernel that Inductor chose by timing it then. So a trial asks before it times
anything, the others are stopped, and it is told to go; it says when it is through.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

__all__ = ["Quiet"]


class Quiet:
    """Decides who runs. Trials are known by their numbers.

    Args:
        hold: stops some trials.
        release: lets some go on.
        grant: tells it that the others stand still.
    """

    def __init__(
        self,
        hold: Callable[[list[int]], None],
        release: Callable[[list[int]], None],
        grant: Callable[[int], None],
    ) -> None:
        self._hold, self._release, self._grant = hold, release, grant
        self._present: set[int] = set()
        self._held: set[int] = set()
        self._waiting: deque[int] = deque()
        self._alone: int | None = None

    @property
    def taken(self) -> bool:
        """Whether somebody is being timed: nothing may start now."""
        return self._alone is not None

    def enter(self, number: int) -> None:
        """A trial has started; nobody is being timed."""
        self._present.add(number)

    def ask(self, number: int) -> None:
        """A trial wants the others to stand still; first come, first served."""
        if number == self._alone:  # a second process or thread of it asks: they do already
            self._grant(number)
        elif number in self._present and number not in self._waiting:
            self._waiting.append(number)
            self._next()

    def give_back(self, number: int) -> None:
        """A trial has done its timing."""
        if self._alone == number:
            self._alone = None
            self._next()

    def leave(self, number: int) -> None:
        """A trial is over."""
        self._present.discard(number)
        self._held.discard(number)
        if number in self._waiting:
            self._waiting.remove(number)
        self.give_back(number)

    def _next(self) -> None:
        if self._alone is not None:
            return
        if self._waiting:
            self._alone = self._waiting.popleft()
            # All others are held before the one is told, or it would begin beside them.
            others = self._present - self._held - {self._alone}
            self._held |= others
            self._hold(sorted(others))
            self._free({self._alone})
            self._grant(self._alone)
        else:
            self._free(self._present)

    def _free(self, numbers: set[int]) -> None:
        self._release(sorted(self._held & numbers))
        self._held -= numbers
