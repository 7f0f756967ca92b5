"""Which sets a race still needs, and so what a resumed run could race.

A race goes through the stages in order: each phase and batch size has what an earlier stage needs
before another one has what a later stage needs.
"""

from __future__ import annotations

from collections.abc import Callable

from autocompile.estimate.candidates import Candidate
from autocompile.estimate.decision import SETS, Decision, finalists

Stage = Callable[[Candidate, Decision], bool]
"""Whether a finalist of a decision needs another set."""


def lacks_one(c: Candidate, decision: Decision) -> bool:
    """It was timed in the search only, or no set has made all checks."""
    return not c.tries or not c.is_verified


def lacks_tries(c: Candidate, decision: Decision) -> bool:
    """It was in fewer sets than an answer needs, or none of them has made all checks."""
    return c.tries < SETS[0] or not c.is_verified


def lacks_counted(c: Candidate, decision: Decision) -> bool:
    """Some of its sets were left out, since the host was slow: they are made up for."""
    return c.sets < SETS[0]


def is_undecided(c: Candidate, decision: Decision) -> bool:
    """The decision is open, and another set may settle it."""
    return bool(decision.open) and c.sets < SETS[1]


STAGES: tuple[Stage, ...] = (lacks_one, lacks_tries, lacks_counted, is_undecided)


def needing(decision: Decision, stage: Stage) -> list[Candidate]:
    """The finalists that need another set; none of those that were in as many as there may be."""
    return [c for c in finalists(decision) if c.tries < SETS[1] and stage(c, decision)]


def could_go_on(decision: Decision) -> bool:
    """Whether a resumed run would race anything of a decision, if it had the time."""
    return any(needing(decision, stage) for stage in STAGES)
