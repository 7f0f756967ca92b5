"""Compares candidates, and decides which is best and whether more measuring is needed.

Settings whose estimates differ by less than 1 % are equal, and the plainest of them is chosen. A
decision is open while another setting may be more than 2 % better than the chosen one (the
indifference zone of ranking and selection: Kim and Nelson, 2001).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autocompile.estimate.candidates import (
    ONE,
    Candidate,
    candidates,
    extra_s,
    of_sets,
    refreshing_s,
)
from autocompile.estimate.intervals import Interval, median, over_sets, ratio
from autocompile.estimate.limits import Limits
from autocompile.settings.config import DEFAULT_INDUCTOR
from autocompile.store.record import Record

SAME = 0.01
"""Settings whose estimates differ by less are equal."""
ZONE = 0.02
"""A setting that may be better by less than this is not measured further."""
SETS = (3, 6)
"""Minimum and maximum number of sets of fresh processes for a finalist."""
_MUCH = 0.1  # single processes of a setting differ by less
_MOST = 4  # finalists of one batch size, besides eager and the default


def compare(first: Candidate, second: Candidate) -> Interval:
    """How many times faster ``first`` is than ``second``.

    Uses blocks of the same rounds if one process ran both, else the speed-ups over eager in common
    sets, else those of different processes, in which a slow host cancels.
    """
    if first is second:
        return ONE
    if second.record.config.is_baseline:
        return first.speedup
    if first.record.config.is_baseline:
        return ratio(ONE, second.speedup)
    common_sets = first.logs.keys() & second.logs.keys()
    logs = [_in_set(first, second, number) for number in common_sets]
    if not logs:
        return ratio(first.speedup, second.speedup)
    if min(first.sets, second.sets) > 1:
        return over_sets(logs)
    # One set each: what their searches say is all that tells how far single processes differ.
    return of_sets(logs, first.searched - second.searched)


def _in_set(first: Candidate, second: Candidate, number: int) -> float:
    """The log of how many times faster ``first`` was than ``second`` in one set."""
    over_eager = first.logs[number] - second.logs[number]
    ours, theirs = first.blocks.get(number), second.blocks.get(number)
    if ours is None or theirs is None:
        return over_eager
    our_process, our_times = ours
    their_process, their_times = theirs
    if our_process != their_process:
        return over_eager
    # Costs beside the calls are in the logs, and not in the blocks.
    if extra_s(first.record) or extra_s(second.record):
        return over_eager
    rounds = zip(our_times, their_times, strict=False)
    return median([math.log(their_s / our_s) for our_s, their_s in rounds])


def _is_late(c: Candidate) -> bool:
    """Whether it was not raced, and seems much faster than eager."""
    return not c.tries and c.least_gain > 1 + _MUCH


@dataclass(frozen=True)
class Decision:
    """The best setting at one batch size of a phase, of those that keep the limits."""

    best: Candidate  # the plainest of the best; eager if nothing is faster
    ties: tuple[Candidate, ...]  # ``best``, then those equal to it
    rivals: tuple[Candidate, ...]  # all others that may be chosen, fastest first
    # (candidate, largest possible gain as a fraction) of those that may be more than 2 %
    # better; empty if decided.
    open: tuple[tuple[Candidate, float], ...]
    # Largest gain over ``best`` that any other tried setting may have (95 %); None where
    # there is no other.
    ceiling: float | None
    # The same as ``open`` of those beside which eager ran slower, so that a race of them
    # would settle nothing.
    doubtful: tuple[tuple[Candidate, float], ...] = ()
    keeps_eager: bool = True  # whether eager mode keeps the limits

    @property
    def is_faster(self) -> bool:
        """Whether ``best`` beats eager with the whole interval that a user reads."""
        return not self.best.record.config.is_baseline and self.best.least_gain > 1

    @property
    def least(self) -> float:
        """The speed-up that a setting has to exceed: any, where eager may not be chosen."""
        return 1.0 if self.keeps_eager else 0.0


def decide(found: Sequence[Candidate], limits: Limits | None = None) -> Decision | None:
    """The best candidate of one batch size that keeps the limits.

    What has passed all checks precedes what has not, which leads only where nothing else may be
    chosen. Raced settings precede those only searched, since the best of many single figures is
    biased upwards; where none of them is faster than eager, one that was found after the
    race and is more than a tenth faster counts. The best must beat eager with the whole
    interval that a user reads, which counts that runs are apart: a gain of less than 3 %
    is none. Where eager breaks a limit, the fastest setting that keeps them is the best,
    even below 1. What makes eager slower beside it is never the best; whether it is faster
    stays open.

    Returns:
        None if eager mode was not measured, or if nothing keeps the limits.
    """
    limits = limits or Limits()
    eager = next((c for c in found if c.record.config.is_baseline), None)
    if eager is None:
        return None
    keeps_eager = eager.keeps(limits)
    allowed = [c for c in found if c is not eager and c.keeps(limits)]
    doubtful = [c for c in allowed if c.slows_eager]
    rivals = [c for c in allowed if not c.slows_eager]
    rivals.sort(key=_speed, reverse=True)
    ties = _ties([c for c in rivals if c.is_verified], keeps_eager)
    if not ties:
        ties = [eager] if keeps_eager else _ties(rivals, keeps_eager)
    if not ties:
        return None
    best = ties[0]
    others = [c for c in (*rivals, *doubtful) if c is not best]
    if keeps_eager and best is not eager:
        others.append(eager)
    over_best = [(c, compare(c, best)) for c in others]
    open_: list[tuple[Candidate, float]] = []
    in_doubt: list[tuple[Candidate, float]] = []
    for c, ratio_ in sorted(over_best, key=lambda pair: -pair[1].high):
        if _may_win(c, ratio_):
            pairs = in_doubt if c.slows_eager else open_
            pairs.append((c, ratio_.high - 1))
    return Decision(
        best=best,
        ties=tuple(ties),
        rivals=tuple(c for c in rivals if c is not best),
        open=tuple(open_),
        doubtful=tuple(in_doubt),
        ceiling=max((ratio_.high - 1 for _, ratio_ in over_best), default=None),
        keeps_eager=keeps_eager,
    )


def _ties(rivals: Sequence[Candidate], keeps_eager: bool) -> list[Candidate]:
    """The best of those that may be chosen and its equals, the plainest first.

    Args:
        rivals: fastest first.
    """
    eligible = [c for c in rivals if c.sets] or list(rivals)
    if keeps_eager:
        eligible = [c for c in eligible if c.least_gain > 1]
    if not eligible:
        eligible = [c for c in rivals if _is_late(c)]
    if not eligible:
        return []
    fastest = eligible[0]
    equals = [c for c in eligible if compare(fastest, c).value <= 1 + SAME]
    cheapest_s = min(c.record.compile_s or 0.0 for c in equals)
    return sorted(equals, key=lambda c: plainness(c, cheapest_s))


def _may_win(c: Candidate, over_best: Interval) -> bool:
    """Whether a setting may still be more than 2 % better than the best.

    One that lost in the search by a single process is expected to lose again. Where its
    own interval reaches beyond what single processes differ by, it has not lost.
    """
    if c.sets or over_best.value > 1:
        return over_best.high > 1 + ZONE
    return over_best.high > 1 + _MUCH


def decide_all(
    records: Iterable[Record], limits: Limits | None = None
) -> dict[int | None, Decision]:
    """The decision for each batch size of a phase whose eager mode was measured."""
    every = candidates(records)
    sizes = {c.record.batch_size for c in every}
    found = {}
    for size in sorted(sizes, key=lambda size: size or 0):
        here = [c for c in every if c.record.batch_size == size]
        decision = decide(here, limits)
        if decision:
            found[size] = decision
    return found


def as_calls_grow(
    found: Sequence[Candidate], limits: Limits
) -> list[tuple[Candidate, float]]:
    """Which setting takes a program the least time, with compiling, and from how many passes on.

    Eager mode is the first; one that is less than 2 % faster than the one before it is left out.
    """
    allowed = [c for c in found if c.keeps(limits) and c.is_verified]
    eager = [c for c in allowed if c.record.config.is_baseline]
    compiled = [
        c for c in allowed if not c.record.config.is_baseline and not c.slows_eager
    ]
    rivals = _that_count(compiled)
    # Where eager breaks a limit, the first is what compiles in the least time.
    by_compile_time = sorted(rivals, key=lambda c: (c.compile_s, _with_refreshing_s(c)))
    first = (eager or by_compile_time)[:1]
    turns = [(c, 0.0) for c in first]
    while turns:
        following = _next_turn(*turns[-1], rivals)
        if following is None:
            break
        # One that would be overtaken before its own turn has none.
        turns = [turn for turn in turns if turn[1] < following[1]]
        turns.append(following)
    return turns


def _that_count(rivals: Sequence[Candidate]) -> list[Candidate]:
    """Those that were raced, if any was, and where none of them pays also late ones."""
    raced = [c for c in rivals if c.sets]
    if not raced:
        return list(rivals)
    if any(c.least_gain > 1 for c in raced):
        return raced
    return raced + [c for c in rivals if _is_late(c)]


def _next_turn(
    now: Candidate, since: float, rivals: Sequence[Candidate]
) -> tuple[Candidate, float] | None:
    """What overtakes a setting first, and after how many passes: at least ``since``."""
    now_s = _with_refreshing_s(now)
    overtaking = []
    for c in rivals:
        call_s = _with_refreshing_s(c)
        if call_s * (1 + ZONE) < now_s:
            passes = (c.compile_s - now.compile_s) / (now_s - call_s)
            overtaking.append((max(since, passes), call_s, c))
    if not overtaking:
        return None
    after, _, first = min(overtaking, key=lambda each: each[:2])
    return first, after


def _with_refreshing_s(c: Candidate) -> float:
    """Seconds of a pass with its share of refreshing constants, but not of compiling."""
    return c.call_s + refreshing_s(c.record)


def finalists(decision: Decision) -> list[Candidate]:
    """The settings to race: those that may be the best, and plain ``torch.compile()``.

    Empty if only eager can be the best.
    """
    every = sorted((decision.best, *decision.rivals), key=_speed, reverse=True)
    every = [c for c in every if not c.record.config.is_baseline]
    raced = [c for c in every if c.sets]
    chosen = _going_on(decision, raced) if raced else _first(every, decision.least)
    if not chosen:
        return []
    # Also raced next to other environments, since it brings eager mode of the default one.
    is_elsewhere = any(c.record.config.environment != "default" for c in chosen)
    plain = [c for c in every if c.record.config == DEFAULT_INDUCTOR]
    needed = [c for c in plain if is_elsewhere or c.sets < SETS[0]]
    return chosen + [c for c in needed if c not in chosen]


def _first(searched: Sequence[Candidate], least: float) -> list[Candidate]:
    """Before the first set, the fastest of the search that may exceed ``least``."""
    if not searched:
        return []
    leader = searched[0]
    alive = [c for c in searched if not is_out(c, leader)]
    chosen = [c for c in alive if c.speedup.high > least][:_MOST]
    # Without its fastest part, noise of the search could choose a feature that does nothing.
    features = leader.record.config.features
    parts = [
        c for c in alive if c not in chosen and c.record.config.features < features
    ]
    return chosen + parts[:1]


def _going_on(decision: Decision, raced: Sequence[Candidate]) -> list[Candidate]:
    """Later, the leader with those that lack sets and those that may still be better."""
    leader = raced[0]
    may_win = [c for c, _ in decision.open]

    def needs_sets(c: Candidate) -> bool:
        # The others are compared with these two in the same sets.
        if c in (leader, decision.best):
            return True
        return c.tries < SETS[1] and (c.sets < SETS[0] or c in may_win)

    alive = [
        c for c in raced if c.speedup.high > decision.least and not is_out(c, leader)
    ]
    chosen = [c for c in alive if needs_sets(c)]
    late = [] if decision.best.record.config.is_baseline else [decision.best]
    new = [c for c in (*late, *may_win) if not c.tries]
    room = max(0, _MOST - len(chosen))
    return chosen + new[:room]


def is_out(candidate: Candidate, leader: Candidate) -> bool:
    """Whether it is slower than the leader by more than the zone, with 95 % confidence."""
    zone = ZONE if candidate.sets and leader.sets else 0.0
    return compare(leader, candidate).low > 1 + zone


def plainness(c: Candidate, cheapest_s: float) -> tuple[bool, int, float]:
    """Sort key for equal settings: cheap to compile first, then few changes to torch's defaults."""
    is_clearly_longer = c.compile_s > 1.25 * cheapest_s + 0.25
    return is_clearly_longer, c.record.config.changes(), c.compile_s


def _speed(c: Candidate) -> float:
    """The speed-up; without a race its lower end, since the best of many is biased upwards."""
    return c.speedup.value if c.sets else c.speedup.low
