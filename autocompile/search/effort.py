"""The one dial: how much a run may cost. Everything that depends on it stands in this table."""

from __future__ import annotations

from dataclasses import dataclass

from autocompile.errors import UsageError

__all__ = ["EFFORTS", "Effort", "effort"]


@dataclass(frozen=True)
class Effort:
    """One position of the dial.

    Attributes:
        name: as it is typed.
        dynamic: values of ``dynamic`` that are tried.
        fullgraph: values of ``fullgraph`` that are tried.
        half_width: the search stops measuring a setting at this relative half-width.
        max_s: or after so many seconds.
        finalists: how many of the best are measured again in fresh processes.
        processes: in how many, and likewise default inductor; fewer for those that have lost.
        most_processes: in how many at most, while one that may be the best is not yet known to ...
        confirm_half_width: ... this half-width; also what each process aims at.
        budget_s: how long a run may search where the user does not say; None: to the end.
    """

    name: str
    dynamic: tuple[bool | None, ...]
    fullgraph: tuple[bool, ...]
    half_width: float
    max_s: float
    finalists: int
    processes: int
    most_processes: int
    confirm_half_width: float
    budget_s: float | None

    def includes(self, name: str) -> bool:
        """Whether what the effort of that name does is done at this one too."""
        order = list(EFFORTS)
        return order.index(self.name) >= order.index(name)


EFFORTS = {
    e.name: e
    for e in (
        Effort("quick", (None,), (False,), 0.03, 1.0, 1, 3, 5, 0.02, 600.0),
        # dynamic is about shapes that change. A trial has one batch size: a graph for every shape
        # is more work to compile and no better informed, and to say False gives the code of None
        # and costs microseconds at each call. Both are for full effort and --dynamic.
        Effort("normal", (None,), (False, True), 0.02, 2.0, 3, 5, 9, 0.01, 3600.0),
        Effort("full", (None, True, False), (False, True), 0.01, 4.0, 3, 7, 9, 0.01, None),
    )
}


def effort(name: str) -> Effort:
    """The effort of that name.

    Raises:
        UsageError: there is none.
    """
    if name not in EFFORTS:
        raise UsageError(f"effort {name!r} is none of {', '.join(EFFORTS)}")
    return EFFORTS[name]
