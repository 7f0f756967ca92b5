"""The order of preference among candidates: which is best, what is as good, and what decided."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from autocompile.calm import Calm
from autocompile.ranking import Candidate
from autocompile.stats import ratio

__all__ = ["SAME", "rank", "some_are_seen", "tie_reasons", "tie_set"]

SAME = 0.01
"""Two settings whose speed differs by less are as good as one another."""


def rank(found: Sequence[Candidate], objective: str) -> list[Candidate]:
    """Best first: highest throughput, or lowest latency. Confirmed ones go before the others.

    A machine that is slow for a while can flatter a setting by a third. So those of which no round
    was calm come last, if others were seen; of those of which some were, the lower bound counts.
    """
    hides_unseen = some_are_seen(found)

    def merit(c: Candidate) -> tuple[bool, bool, float]:
        value = c.throughput.value if objective == "throughput" else 1 / c.call_s
        if c.confirmed and c.calm < Calm.ENOUGH:
            value *= c.speedup.low / c.speedup.value
        is_confirmed = c.confirmed > 0 or c.record.config.is_baseline
        return is_confirmed, not (hides_unseen and c.is_unseen), value

    return sorted(found, key=merit, reverse=True)


def some_are_seen(found: Iterable[Candidate]) -> bool:
    """Whether a repeat of any compiled setting was calm: one of which none was comes after it."""
    compiled = (c for c in found if not c.record.config.is_baseline)
    return any(c.confirmed and not c.is_unseen for c in compiled)


class _Merit(NamedTuple):
    """What is compared among equals, the first that differs decides; less is better."""

    disturbed: int
    seems_slower: bool
    is_dear: bool
    changes: int
    compile_s: float


def tie_set(best: Candidate, found: Iterable[Candidate]) -> list[Candidate]:
    """Those of the same batch size that are not clearly slower than ``best``, it included.

    Clearly slower means that the interval of the ratio lies wholly beyond 1 %. The order is the
    order of preference: those that were measured most undisturbed; those that seem equal (by the
    estimate within 1 %) before those of which it is only not known; then those that compile about
    as fast as the cheapest; then the fewest settings that differ from torch's; then the cheapest.
    """
    ties = [
        c
        for c in found
        if c.record.batch_size == best.record.batch_size
        and (c is best or ratio(best.speedup, c.speedup).low <= 1 + SAME)
    ]
    merits = _merits(ties)
    return sorted(ties, key=lambda c: merits[c.record.number])


def tie_reasons(ties: Sequence[Candidate]) -> dict[str, str]:
    """What put the first before each of the others, by their numbers (as JSON has them: text).

    ``disturbed``, ``seems_slower``, ``compile_s`` or ``changes``.
    """
    merits = _merits(ties)
    first, reasons = merits[ties[0].record.number], {}
    for other in ties[1:]:
        pairs = zip(_Merit._fields, first, merits[other.record.number], strict=True)
        name = next((name for name, mine, theirs in pairs if mine != theirs), "compile_s")
        reasons[str(other.record.number)] = "compile_s" if name == "is_dear" else name
    return reasons


def _merits(ties: Sequence[Candidate]) -> Mapping[int, _Merit]:
    cheapest_s = min((c.record.compile_s or 0.0 for c in ties), default=0.0)
    calmest = max((c.calm for c in ties), default=Calm.ENOUGH)
    fastest = max((c.speedup.value for c in ties if c.calm is calmest), default=0.0)

    def merit(c: Candidate) -> _Merit:
        compile_s = c.record.compile_s or 0.0
        return _Merit(
            disturbed=-c.calm,
            seems_slower=fastest > (1 + SAME) * c.speedup.value,
            is_dear=compile_s > 1.25 * cheapest_s + 0.25,
            changes=c.record.config.changes(),
            compile_s=compile_s,
        )

    return {c.record.number: merit(c) for c in ties}
