"""The answer of a phase at a batch size: what to use, how sure that is, and what goes on.

:func:`answer` is the one place that decides these words. It is given the records, the limits
and what the search expects of what it has not tried; everything that shows, exports, gates or
compares results reads the
:class:`~autocompile.store.report.Answer` that it returns.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from autocompile.estimate.candidates import Candidate, candidates
from autocompile.estimate.decision import SETS, ZONE, Decision, compare, decide
from autocompile.estimate.figures import figures
from autocompile.estimate.limits import Limits
from autocompile.estimate.stages import could_go_on
from autocompile.settings.config import DEFAULT_INDUCTOR
from autocompile.store.record import EXPORTED, Outcome, Record
from autocompile.store.report import Answer, Next, Verdict, Word, size_in_words
from autocompile.store.run import Searched

State = Literal["over", "running", "stopped"]

# They say nothing about a setting: it has not ended.
_NOT_ENDED = (Outcome.INTERRUPTED, Outcome.INFRASTRUCTURE)
_FEWEST = 0.005  # the smallest gain that a sentence names, as a fraction
# Times the lower end of an interval, from which its upper end says only that it is wide.
_ROUGH = 4.0
_NAMED = 3  # families that a sentence names


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What may still come: of the search, and of a run that is resumed.

    Attributes:
        state: ``stopped`` also of a run that was killed.
        command: resumes the run; empty where that makes no sense.
        longer: the same with a longer budget than it had.
        wall_s: seconds that the run took; 0: not known.
        spent_trials: what ``--trials`` was, where it ended the search; 0: it did not.
        calls: of a pass that makes several; 0: one call is timed.
    """

    searched: Searched = field(default_factory=Searched)
    state: State = "over"
    command: str = ""
    longer: str = ""
    wall_s: float = 0.0
    spent_trials: int = 0
    calls: int = 0


def answers(
    batch_size: int | None,
    records: Sequence[Record],
    limits: Limits,
    outlook: Outlook,
) -> dict[int | None, Answer]:
    """The answers of a phase: first at ``batch_size``, then at the others, by their size.

    Args:
        batch_size: what the phase's answer is about, and ``outlook.searched.rest``.
        records: of one phase, exported code included.
    """
    sizes = {record.batch_size for record in records} - {batch_size}
    found = {}
    for size in sorted(sizes, key=lambda size: size or 0):
        mine = [record for record in records if record.batch_size == size]
        found[size] = _answer(_Case.of(size, mine, limits, outlook, False))
    mine = [record for record in records if record.batch_size == batch_size]
    leading = _Case.of(batch_size, mine, limits, outlook, True)
    elsewhere = [size for size, one in found.items() if one.best]
    return {batch_size: _answer(leading, elsewhere), **found}


def answer(
    batch_size: int | None,
    records: Sequence[Record],
    limits: Limits | None = None,
    outlook: Outlook | None = None,
) -> Answer:
    """The answer of a phase at a batch size that ``outlook.searched.rest`` is about."""
    every = answers(batch_size, records, limits or Limits(), outlook or Outlook())
    return every[batch_size]


@dataclass(frozen=True)
class _Case:
    """All that an answer is made of."""

    size: int | None
    records: Sequence[Record]  # at this batch size, without exported code
    exported: Sequence[Record]
    found: Sequence[Candidate]
    limits: Limits
    decision: Decision | None
    outlook: Outlook
    is_leading: bool  # whether the search's rest and unseen are about this batch size

    @classmethod
    def of(
        cls,
        size: int | None,
        mine: Sequence[Record],
        limits: Limits,
        outlook: Outlook,
        is_leading: bool,
    ) -> _Case:
        records = [r for r in mine if r.role != EXPORTED]
        exported = [r for r in mine if r.role == EXPORTED]
        found = candidates(records)
        decision = decide(found, limits)
        return cls(
            size, records, exported, found, limits, decision, outlook, is_leading
        )

    @property
    def ended(self) -> list[Record]:
        """Records of all that says something of its setting."""
        return [r for r in self.records if r.outcome not in _NOT_ENDED]

    @property
    def others(self) -> list[Record]:
        """Records of settings other than plain eager mode that have ended."""
        return [r for r in self.ended if not r.config.is_plain_eager]

    @property
    def allowed(self) -> list[Candidate]:
        """What works and keeps the limits, other than plain eager mode."""
        return [
            c
            for c in self.found
            if not c.record.config.is_plain_eager and c.keeps(self.limits)
        ]

    @property
    def untried_compiled(self) -> int | None:
        """Compiled settings without a result at this batch size; None: not known."""
        compiled = self.outlook.searched.compiled
        if compiled is None:
            return None
        tried = {r.config for r in self.ended if not r.config.is_eager}
        return max(0, compiled - len(tried))

    @property
    def unchecked(self) -> Candidate | None:
        """What is surely faster than the best of what has passed all checks, or leads alone."""
        if self.decision is None:
            return None
        best = self.decision.best
        if not best.is_verified:
            return best
        ahead = (c for c, _ in self.decision.open if compare(c, best).low > 1)
        return next((c for c in ahead if not c.is_verified), None)

    @property
    def nothing_compiled_ended(self) -> bool:
        """Whether no compiled setting has ended: also where there is none to try."""
        return all(r.config.is_eager for r in self.ended)

    @property
    def has_none_to_compile(self) -> bool:
        """Whether the search has no compiled setting, so that going on changes nothing."""
        return self.outlook.searched.compiled == 0

    @property
    def breaks_limits(self) -> bool:
        """Whether eager mode was measured, and nothing keeps the limits."""
        has_eager = any(c.record.config.is_baseline for c in self.found)
        return self.decision is None and has_eager

    @property
    def there(self) -> str:
        size = size_in_words(self.size, self.outlook.calls)
        return f" at {size}" if size else ""


# --- the verdict ----------------------------------------------------------------------------------


def _answer(case: _Case, elsewhere: Sequence[int | None] = ()) -> Answer:
    """An answer; ``elsewhere``: batch sizes at which something keeps the limits."""
    verdict, reason = _verdict(case)
    decision = case.decision
    if verdict in ("unknown", "failed") or decision is None:
        if verdict == "failed" and case.breaks_limits and elsewhere:
            sizes = " and ".join(str(size) for size in elsewhere)
            reason += f"; at batch size {sizes} there are settings that do"
        outlook = case.outlook
        is_worth_more = verdict == "unknown" and not case.has_none_to_compile
        # A run that was stopped has time left.
        goes_on = outlook.command if outlook.state == "stopped" else outlook.longer
        return Answer(
            batch_size=case.size,
            verdict=verdict,
            reason=reason,
            command=goes_on if is_worth_more else "",
            calls=case.outlook.calls,
        )
    doubts = list(_doubts(case, decision, verdict))
    can_change = any(doubt.can_change for doubt in doubts)
    return Answer(
        batch_size=case.size,
        verdict=verdict,
        reason=reason,
        confidence=_word(doubts),
        why=_why(doubts),
        command=case.outlook.command if can_change else "",
        best=figures(decision, case.found, case.exported),
        next=_next(decision) if verdict == "keep_eager" else None,
        calls=case.outlook.calls,
    )


def _verdict(case: _Case) -> tuple[Verdict, str]:
    """The verdict, and why it is that."""
    eager = [r for r in case.records if r.config.is_baseline]
    broken = [r for r in eager if r.outcome not in (Outcome.OK, Outcome.INTERRUPTED)]
    if eager and len(broken) == len(eager):
        return "failed", f"eager mode itself fails: {broken[0].message}"
    if not any(c.record.config.is_baseline for c in case.found):
        return "unknown", _without_eager(case)
    decision = case.decision
    keeps_eager = decision is not None and decision.best.record.config.is_baseline
    if case.nothing_compiled_ended and (decision is None or keeps_eager):
        return "unknown", _what_took_the_time(case)
    if decision is None:
        return "failed", _beyond_the_limits(case)
    if (first := case.unchecked) and (keeps_eager or first is decision.best):
        return "unknown", _not_checked(first)
    if keeps_eager:
        if not case.allowed:
            return "keep_eager", _why_nothing(case)
        return "keep_eager", f"nothing {_not_better(decision)}"
    better = f"nothing else {_not_better(decision)}"
    if decision.ceiling is None:
        better = "nothing else keeps the limits"
    if decision.is_faster:
        return "faster", better
    return "within_limits", f"eager mode does not keep the limits; {better}"


def _not_checked(first: Candidate) -> str:
    """That what seems to be the fastest has not passed all checks."""
    return (
        f"{first.record.config.label()} was {first.speedup.value:.2f}x in its first trial and has "
        "not passed all checks, which come with its first race"
    )


def _not_better(decision: Decision) -> str:
    """What is known of how much faster another setting may be, which was tried.

    A figure is named where it is small: beyond the zone it is of single processes, whose
    intervals are wide, or of what is open, which is said by name.
    """
    ceiling = decision.ceiling or 0.0
    if ceiling > ZONE:
        is_settled = not (decision.open or decision.doubtful)
        known = "expected to be more than" if is_settled else "surely more than"
        return f"that was tried is {known} {100 * ZONE:.0f} % faster"
    most = f"{100 * max(ceiling, _FEWEST):.1f}"
    if ceiling > ZONE / 2:
        most = f"{100 * ZONE:.0f}"
    return f"that was tried is more than {most} % faster (95 %)"


def _without_eager(case: _Case) -> str:
    if case.outlook.state == "running":
        return "eager mode has not ended yet" if case.records else "not started"
    if not case.records:
        return f"not started{case.there}"
    return f"eager mode did not end{case.there}, so there is nothing to compare with"


def _what_took_the_time(case: _Case) -> str:
    """Why no compiled setting has ended."""
    if case.has_none_to_compile:
        reasons = "; ".join(_why_none_is_there(case.outlook.searched))
        why = reasons or "nothing else was asked for"
        return f"no compiled setting was measured{case.there} ({why})"
    if case.outlook.state == "running":
        return "no compiled setting has ended yet"
    stopped = [r for r in case.records if r.outcome in _NOT_ENDED and r.wall_s > 0]
    if stopped:
        last = max(stopped, key=lambda r: r.wall_s)
        return (
            f"no compiled setting has ended{case.there}: {last.config.label()} was stopped "
            f"after {last.wall_s:.0f} s, in step {last.step.value}"
        )
    if case.outlook.spent_trials:
        return (
            f"no compiled setting was tried{case.there}: --trials "
            f"{case.outlook.spent_trials} ended the search before"
        )
    eager_s, whole_s = sum(r.wall_s for r in case.records), case.outlook.wall_s
    of_all = f" of {whole_s:.0f} s" if whole_s else ""
    return (
        f"the run ended before any compiled setting was tried{case.there}: "
        f"trials in eager mode took {eager_s:.0f} s{of_all}"
    )


def _beyond_the_limits(case: _Case) -> str:
    """What is nearest to the limits, where nothing keeps them."""
    bounds = [bound for c in case.found for bound in c.against(case.limits)]
    facts = []
    for option in dict.fromkeys(bound.option for bound in bounds):
        mine = [bound for bound in bounds if bound.option == option]
        most = mine[0].most or 0.0
        seen = [bound.seen for bound in mine if bound.seen is not None]
        if not seen:
            facts.append(f"{option} is {_amount(option, most)}, and no figure is known")
        elif min(seen) > most:
            least = _amount(option, min(seen))
            facts.append(
                f"{option} is {_amount(option, most)}, and the least is {least}"
            )
    said = "; ".join(facts) or "no setting keeps all of them at once"
    return f"nothing that works keeps the limits{case.there}: {said}"


def _amount(option: str, value: float) -> str:
    """Seconds or bytes in a sentence."""
    if option == "--max-memory":
        return f"{value / 1e9:.3g} GB" if value >= 1e9 else f"{value / 1e6:.3g} MB"
    return f"{value:.3g} s" if value >= 1 else f"{1e3 * value:.3g} ms"


def _why_nothing(case: _Case) -> str:
    """Why there is nothing but eager mode to choose."""
    beside = [c for c in case.found if not c.record.config.is_plain_eager]
    if any(c.record.is_known_to_pay for c in beside):
        return "every other setting that works exceeds the limits"
    if beside:
        return "the settings that work take the weights as constants, which is not known to pay"
    failed = [r for r in case.others if not r.ok]
    # What was not tried may work.
    is_rest = bool(case.outlook.searched.untried)
    what = "every setting other than eager that was tried failed"
    if not is_rest:
        what = "every setting other than eager failed"
    if any(r.ok for r in case.others):
        what = "every setting that worked in the search failed when it was raced"
        failed = [r for r in failed if r.repeats is not None]
    kinds = Counter(r.outcome.value for r in failed).most_common()
    return f"{what}: {', '.join(f'{number} × {kind}' for kind, number in kinds)}"


def _why_none_is_there(searched: Searched) -> Iterator[str]:
    """Why a search has no setting but eager mode: what cannot be used, what a rule left out."""
    yield from (f"{backend}: {why}" for backend, why in searched.unusable.items())
    # Others begin with the flag that would bring them: nobody has asked for those.
    asked = {
        reason: count
        for reason, count in searched.dropped.items()
        if not reason.startswith("--")
    }
    # All of them: which one is about what the user asked for is not kept.
    for reason, count in Counter(asked).most_common():
        settings = "setting" if count == 1 else "settings"
        yield f"{reason}: {count} {settings} left out"


def _next(decision: Decision) -> Next | None:
    """The best of the others: of those that were raced, if any was."""
    raced = [c for c in decision.rivals if c.sets]
    for c in (raced or decision.rivals)[:1]:
        return Next(
            number=c.record.number,
            config=c.record.config,
            speedup=c.reported,
            confirmed_processes=c.sets,
        )
    return None


# --- how sure it is -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Doubt:
    """Something that keeps an answer from being high."""

    word: Literal["open", "low"]
    text: str
    can_change: bool  # whether a resumed run could do something about it


def _word(doubts: Sequence[_Doubt]) -> Word:
    """Low goes before open: that another setting may be faster hides no missing process."""
    words = {doubt.word for doubt in doubts}
    return "low" if "low" in words else "open" if words else "high"


def _why(doubts: Sequence[_Doubt]) -> str:
    """The first reason of each word, what makes it low before what is open."""
    firsts: dict[str, str] = {}
    for doubt in sorted(doubts, key=lambda doubt: doubt.word != "low"):
        firsts.setdefault(doubt.word, doubt.text)
    return "; ".join(firsts.values())


def _doubts(case: _Case, decision: Decision, verdict: Verdict) -> Iterator[_Doubt]:
    """All that keeps the answer from being high, what weighs most first."""
    can_race = could_go_on(decision)
    best = decision.best
    if verdict != "keep_eager" and best.sets < SETS[0]:
        text = f"confirmed in {best.sets} of {SETS[0]} fresh processes"
        if best.slow_sets:
            text += f" ({best.slow_sets} more left out: the machine was slower)"
        yield _Doubt("low", text, can_race)
    if first := case.unchecked:
        yield _Doubt("low", _not_checked(first), can_race)
    if _plain_was_rounded(case):
        yield _Doubt("low", _REFUSED, False)
    little = list(_little_tried(case, verdict))
    yield from little
    for setting, above in [pair for pair in decision.open if pair[0] is not first][:1]:
        yield _Doubt("open", _may_be_faster(setting, above), can_race)
    if not little:
        yield from _not_reached(case)
    if case.outlook.state == "running":
        yield _Doubt("open", "the run has not ended yet", False)
    if case.outlook.state == "stopped":
        yield _Doubt("open", "the run was stopped before its end", True)
    for setting, above in decision.doubtful[:1]:
        text = _may_be_faster(setting, above)
        text += ": beside it eager mode ran slower than alone"
        # Eager mode slows down beside it in a race as well.
        yield _Doubt("open", text, False)


def _may_be_faster(setting: Candidate, above: float) -> str:
    """What is open of a setting that was tried, whose possible gain is a fraction."""
    name = setting.record.config.label()
    known = setting.speedup
    if known.high <= _ROUGH * known.low:
        return f"{name} may be up to {100 * above:.0f} % faster"
    return f"how fast {name} is cannot be told: its times scatter around {known.value:.2f}x"


_REFUSED = (
    "plain torch.compile() was refused as wrong; if the difference is only rounding, a higher "
    "--tolerance accepts it and settings like it"
)
_ROUNDED = re.compile(r"^\['.* is off by (?!inf).*\(call ")
"""How a check begins that --tolerance is about."""


def _plain_was_rounded(case: _Case) -> bool:
    """Whether plain ``torch.compile()`` was refused for what a tolerance may accept."""
    return any(
        r.outcome is Outcome.WRONG_OUTPUT and _ROUNDED.search(r.message)
        for r in case.records
        if r.config == DEFAULT_INDUCTOR and r.role == "search"
    )


def _little_tried(case: _Case, verdict: Verdict) -> Iterator[_Doubt]:
    """Where eager is kept and nothing else works, how much was tried counts."""
    searched = case.outlook.searched
    if verdict != "keep_eager" or case.allowed or not searched.untried:
        return
    tried = {r.config for r in case.ended if r.wall_s > 0}
    text = f"{len(tried)} of {searched.configs} settings tried{case.there}"
    yield _Doubt("low", text, True)


def _not_reached(case: _Case) -> Iterator[_Doubt]:
    """What was not tried and may be faster, or may be for all that is known."""
    rest, left = case.outlook.searched.rest, case.untried_compiled
    if case.is_leading and rest:
        first = rest[0]
        likely, most = round(100 * first.likely), round(100 * first.most)
        gain = f"{likely} to {most}" if likely > 0 else f"up to {most}"
        text = f"{first.config.label()} was not reached and may be {gain} % faster"
        yield _Doubt("open", text, True)
    if case.is_leading and (unseen := case.outlook.searched.unseen):
        names = ", ".join(unseen[:_NAMED])
        more = f" and {len(unseen) - _NAMED} more" if len(unseen) > _NAMED else ""
        was = "was" if len(unseen) == 1 else "were"
        yield _Doubt("open", f"{names}{more} {was} not tried yet", True)
    is_told = case.is_leading and rest is not None
    if not is_told and left != 0:
        count = "some" if left is None else str(left)
        what = "setting was" if left == 1 else "settings were"
        yield _Doubt("open", f"{count} compiled {what} not tried{case.there}", True)
