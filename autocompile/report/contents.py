"""From the report to the document: what is said, in which order and in which words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from autocompile.report import text as show
from autocompile.report.document import Document, Line, Section, Span, Table, Text
from autocompile.settings.config import DEFAULT_INDUCTOR
from autocompile.settings.phases import phase_of
from autocompile.store import runs
from autocompile.store.record import Outcome
from autocompile.store.report import (
    Answer,
    Best,
    GivenBack,
    OfRanks,
    OtherNumbers,
    PhaseResult,
    Report,
    Trial,
)

METHOD = (
    "Blocks of eager and compiled calls alternate in one process, so that drift of the machine"
    " cancels; the speed-up in a process is the median of their ratios."
)
RACED = (
    " The best settings were timed again side by side in fresh processes: the speed-up is"
    " their mean over processes. The interval is where another run on this machine, on another"
    " day, lies: so it was in 93 of 100 recorded runs or more."
)
RULE = (
    " A setting counts as faster if it is so beyond what the sets of this run, and runs of the same"
    " hour, differ by; the interval that is shown is wider."
)
_SHAPES = 12  # of a workload that a table names
_NAMES = 2  # settings that a short document names side by side


def document(
    report: Report,
    full: bool = True,
    code: Mapping[str, str] | None = None,
    run: str = "",
) -> Document:
    """A report as a document; ``full``: also what failed and what was left out.

    ``code``: the setting of each phase as code; without it, its name stands there.
    """
    phases, code = report.phases, code or {}
    best = [phase.answer.best for phase in phases.values()]
    raced = any(one and one.confirmed_processes for one in best)
    answer = tuple(
        _answer(name, phase, code.get(name, "")) for name, phase in phases.items()
    )
    facts = tuple((show.plain(k), _code(v)) for k, v in _circumstances(report))
    run = run or runs.name_of(report.run_dir)
    own = report.target.own_size
    return Document(
        title=("autocompile: ", _code(report.target.spec)),
        status=_status(report),
        answer=Table("", ("", "speed-up", "confidence", ""), answer),
        sections=tuple(_section(n, phase, own(n), full) for n, phase in phases.items()),
        whole=tuple(_whole(report, full, run)),
        method=METHOD + RACED * raced + RULE,
        circumstances=Table("Circumstances", ("", ""), facts),
        exports={show.plain(n): text for n, text in report.exports.items()},
    )


def _status(report: Report) -> str:
    """Why the results may change; empty once a run is over."""
    if report.running:
        return "Still running: these are the results so far."
    if report.interrupted:
        return "Interrupted: these are the results so far."
    return ""


def _code(text: object) -> Span:
    return Span(show.plain(text), "code")


def _circumstances(report: Report) -> Iterator[tuple[str, object]]:
    yield "target", show.target_name(vars(report.target))
    yield "run", report.run_dir
    yield from (report.target.choices or {}).items()
    yield from (
        ("effort", report.effort),
        ("objective", report.objective),
        ("seed", report.seed),
    )
    if report.tolerance is not None:
        yield "tolerance", report.tolerance
    yield "duration", show.seconds(report.wall_s)
    yield from ((k, v) for k, v in report.environment.items() if v is not None)


# --- the answer ---------------------------------------------------------------------------------


def _reason(answer: Answer) -> str:
    return show.plain(answer.reason).rstrip(".")


def _answer(name: str, phase: PhaseResult, code: str) -> tuple[Text, ...]:
    answer = phase.answer
    best, word = answer.best, answer.confidence
    title = Span(show.plain(name), "strong")
    if best is None:
        is_unknown = answer.verdict == "unknown"
        outcome = Span("no result yet") if is_unknown else Span("failed", "error")
        return title, outcome, show.NONE, _reason(answer)
    sure = Span(word, "" if word == "high" else "warning")
    if not answer.changes_something:
        return title, "keep eager", sure, _reason(answer)
    kind = "good" if answer.is_faster else "warning"
    gain = Span(show.speedup(best.speedup), kind), f" {show.interval(best.speedup)}"
    return title, gain, sure, Span(show.plain(code) or show.label(best.config), "paste")


# --- a phase ------------------------------------------------------------------------------------


def _section(name: str, phase: PhaseResult, own: int | None, full: bool) -> Section:
    blocks: list[Line | Table] = [
        *_batch_sizes(phase, own),
        *_failed_sizes(phase),
        *_shapes(phase),
        *_known(phase),
    ]
    blocks += _details(phase) if full else ()
    blocks += _failures(phase) if full or not phase.answer.best else ()
    about = tuple(_about(phase))
    return Section(show.plain(name), about, tuple(blocks), tuple(trial_tables(phase)))


def _about(phase: PhaseResult) -> Iterator[Text]:
    answer = phase.answer
    best = answer.best
    if phase.role:
        yield show.plain(phase.role)
    if work := phase.workload:
        yield f"{show.many(work.calls, 'call')} of {show.many(work.kinds, 'shape')}"
    elif best and answer.batch_size is not None:
        yield answer.size
    if phase.horizon:
        yield f"compile time counts, over {show.thousands(phase.horizon)} calls"
    if best and answer.changes_something:
        if answer.confidence != "low":
            yield f"confirmed in {show.many(best.confirmed_processes, 'fresh process')}"
        yield f"outputs match eager{_follow(best.weights_live)}"


def _follow(weights_live: bool | None) -> str:
    """Whether outputs follow weight updates; empty where nobody looked."""
    if weights_live is None:
        return ""
    follow = "and follow" if weights_live else "but do not follow"
    return f" {follow} weight updates"


def _batch_sizes(phase: PhaseResult, own: int | None) -> Iterator[Table]:
    """The best setting of each batch size beside eager; not where only eager was measured."""
    listed = [
        (answer, answer.best)
        for answer in phase.answers
        if answer.best and (answer.changes_something or answer.next)
    ]
    if not listed:
        return
    leading = phase.answer.batch_size
    rows = []
    for answer, best in listed:
        remarks = list(_size_remarks(answer, best))
        if len(listed) > 1 and answer.batch_size == leading:
            remarks.append("← this config's own" if leading == own else "← above")
        setting: str | Span = "eager"
        if answer.changes_something:
            setting = _code(show.label(best.config))
        name = (setting, *(Span(f"  {remark}", "dim") for remark in remarks))
        gain = Span(show.speedup(best.speedup), "strong")
        size = show.or_dash(answer.batch_size)
        rows.append((size, *_rates(best), gain, name))
    titles = (
        "samples" if phase.workload else "batch size",
        "eager",
        "best",
        "speed-up",
        "setting",
    )
    first = int(all(answer.batch_size is None for answer, _ in listed))
    shown = tuple(tuple(row[first:]) for row in rows)
    yield Table("", titles[first:], shown, right=range(4 - first))


def _failed_sizes(phase: PhaseResult) -> Iterator[Line]:
    """The other batch sizes at which nothing works, which are in no table."""
    for answer in phase.other_sizes:
        if answer.verdict == "failed":
            text = f"at {answer.size}: {show.plain(answer.reason)}"
            yield Line("Failed", (text,), "warning")


def _size_remarks(answer: Answer, best: Best) -> Iterator[str]:
    if other := answer.next:
        yield f"next: {show.label(other.config)}, {show.speedup(other.speedup)}"
    elif answer.changes_something and not best.confirmed_processes:
        yield "not confirmed"


def _rates(best: Best) -> tuple[str, str]:
    """Eager mode's throughput and the setting's."""
    unit = best.throughput.unit
    per = unit.removeprefix("samples") if unit.startswith("samples") else f" {unit}"
    eager = show.quantity(best.eager_throughput.value)
    return f"{eager}{per}", f"{show.quantity(best.throughput.value)}{per}"


def _shapes(phase: PhaseResult) -> Iterator[Table]:
    """A row for each shape of a workload, then what a call takes that is slower than most."""
    if not phase.calls:
        return
    rows = [
        (str(kind.calls), show.plain(kind.shape), *_times(kind.eager_s, kind.call_s))
        for kind in phase.calls[:_SHAPES]
    ]
    if rest := phase.calls[_SHAPES:]:
        count = sum(kind.calls for kind in rest)
        eager_s = sum(kind.calls * kind.eager_s for kind in rest) / count
        call_s = sum(kind.calls * kind.call_s for kind in rest) / count
        rows.append((str(count), f"{len(rest)} more shapes", *_times(eager_s, call_s)))
    percentiles = phase.workload.percentiles if phase.workload else ()
    for one in percentiles:
        name = f"p{one.percent} of all calls"
        rows.append(("", name, *_times(one.eager_s, one.call_s)))
    titles = ("calls", "shape", "eager", "best", "ratio")
    yield Table("Calls by shape", titles, tuple(rows), right=(0, 2, 3, 4))


def _times(eager_s: float, call_s: float) -> tuple[str, str, str]:
    return show.seconds(eager_s), show.seconds(call_s), show.speedup(eager_s / call_s)


def _known(phase: PhaseResult) -> Iterator[Line]:
    """Why it is the best, what it costs, and how sure that is."""
    answer = phase.answer
    best = answer.best if answer.changes_something else None
    if best:
        yield _calls(phase, best)
        ratio = best.speedup_against_default
        if ratio and best.config != DEFAULT_INDUCTOR:
            against = f"{show.estimate(ratio)} against plain torch.compile()"
            yield Line("Why", (against,))
    yield from (Line("Why", (show.plain(why),)) for why in phase.explanation if why)
    if best:
        yield from _ties(phase, best)
        if cost := tuple(_cost(best)):
            yield Line("Cost", cost)
        if best.given_back:
            yield Line("Memory", (_kept_memory(best.given_back),))
    if phase.ranks:
        yield Line("Ranks", tuple(_ranks(phase.ranks)))
    if phase.as_calls_grow:
        yield Line("Calls", (_as_calls_grow(phase),))
    yield from map(_in_other_numbers, phase.other_numbers)
    yield from _sure(phase)
    if answer.best:
        yield from (Line("Note", (note,)) for note in exported_warning(answer.best))
        caution = answer.best.config.caution
        # The loops of a library write new weights in a way that is seen.
        if caution and not phase.role:
            yield Line("Note", (caution,))
        if wrapping := answer.best.config.wrapping:
            yield Line("Note", (("wrap the model by ", _code(wrapping)),))
        yield from (Line("Note", (show.plain(note),)) for note in answer.best.notes)


def _ranks(ranks: OfRanks) -> Iterator[str]:
    """How many processes there are, and whether they are worth it."""
    how = "by your own code" if ranks.strategy == "own" else ranks.strategy.upper()
    yield f"{ranks.count} ({how}), each with its own batch; samples/s are of all"
    if ranks.alone_s and ranks.scaling:
        alone = f"by itself one takes {show.seconds(ranks.alone_s)} for an eager step"
        yield f"{alone}; all together have {show.speedup(ranks.scaling)} its samples/s"


def _calls(phase: PhaseResult, best: Best) -> Line:
    """Seconds of a call: of the best setting, of eager mode, of plain torch.compile()."""
    calls = [show.seconds(best.call_s), f"eager {show.seconds(best.eager_call_s)}"]
    if best.speedup_against_default and best.default_call_s:
        calls.append(f"plain torch.compile() {show.seconds(best.default_call_s)}")
    return Line("Pass" if phase.workload else "Call", tuple(calls))


def _sure(phase: PhaseResult) -> Iterator[Line]:
    """How sure the answer is: what speaks for it, or what is open and what goes on."""
    answer = phase.answer
    action = ("   → ", _code(answer.command)) if answer.command else ()
    if answer.verdict == "unknown":
        if action:
            known = "what compiling brings: going on tells"
            yield Line("Unknown", ((known, *action),), "warning")
    elif answer.confidence == "high" and answer.changes_something:
        yield Line("Sure", tuple(_grounds(phase)))
    elif answer.confidence in ("open", "low"):
        facts = ((show.plain(answer.why), *action),)
        yield Line(answer.confidence.capitalize(), facts, "warning")


def _grounds(phase: PhaseResult) -> Iterator[str]:
    yield _reason(phase.answer)
    if phase.compiled_listed:
        count = f"{phase.compiled_tried} of {phase.compiled_listed}"
        yield f"{count} compiled settings tried, and little is expected of the rest"
    elif phase.listed is not None:
        yield f"{phase.tried} of {phase.listed} settings tried"


def _as_calls_grow(phase: PhaseResult) -> Text:
    """``eager up to 5 400 calls, then inductor · dynamic=true``."""
    parts: list[str | Span] = []
    for turn in phase.as_calls_grow:
        parts += [f" up to {show.thousands(turn.calls)} calls, then "] if parts else []
        parts.append(_code(show.label(turn.config)))
    return (*parts, " for any number of calls" if len(phase.as_calls_grow) == 1 else "")


def _in_other_numbers(other: OtherNumbers) -> Line:
    """What an option that changes numbers would bring."""
    gain = f"eager mode alone is {other.speedup:.1f}× as fast with "
    change = f", and its results are {_percent(other.change)} off: "
    unasked = "nothing changes numbers unasked"
    return Line("Numbers", ((gain, _code(other.option), change, unasked),))


def _percent(share: float) -> str:
    """``0.02 %`` or ``120 %``: small ones with one figure."""
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1g} %"


def _ties(phase: PhaseResult, best: Best) -> Iterator[Line]:
    """Settings as fast as the best one, and the reason for that one: see ``decision.plainness``."""
    configs = {t.number: t.config for t in phase.trials}
    ties = [number for number in best.ties if number in configs]
    if not ties:
        return
    names = list(dict.fromkeys(show.label(configs[number]) for number in ties))
    some = _code(", ".join(names[:_NAMES]))
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    because = f"{more}; chosen since it compiles faster or is simpler"
    yield Line("Ties", (("as fast within 1 %: ", some, because),))


def _cost(best: Best) -> Iterator[str]:
    """What the best setting costs: to compile, at new weights, and in memory."""
    if best.compile_s and not best.is_eager:
        compiles = f"compiles in {show.seconds(best.compile_s)}"
        if others := best.beside:
            compiles += f" beside {others} other{'s' if others > 1 else ''}"
        if best.warm_compile_s is not None:
            compiles += f" ({show.seconds(best.warm_compile_s)} warm)"
        if calls := best.break_even_calls:
            unit = "call" if calls == 1 else "calls"
            compiles += f", repaid after {show.thousands(calls)} {unit}"
        yield compiles
    if best.refresh_s:
        apart, least = best.calls_per_update, best.calls_to_repay_refresh
        new = f"new weights cost {show.seconds(best.refresh_s)}"
        if apart:
            yield f"{new} every {show.thousands(apart)} calls, which is included"
        elif least:
            unit = "call" if least == 1 else "calls"
            yield f"{new}: this pays if they stay the same for {show.thousands(least)} {unit}"
    if mine := best.peak_memory_bytes:
        eager = best.eager_peak_memory_bytes
        against = f" (eager {show.size(eager)})" if eager and not best.is_eager else ""
        yield f"peak memory {show.size(mine)}{against}"


def _kept_memory(cost: GivenBack) -> str:
    """That freed memory is kept, and what it would cost if it were not."""
    return (
        f"freed memory is kept, as autocompile.apply does: where glibc gives it back, eager mode "
        f"takes {cost.times:.1f} times as long ({cost.faults:.0f} page faults a call)"
    )


def exported_warning(best: Best) -> Iterator[str]:
    """A warning where exported code did worse in a fresh interpreter than was confirmed."""
    ran = best.exported
    if not ran or ran.agrees:
        return
    if ran.speedup is None:
        said = f"{ran.outcome.value} ({show.plain(ran.message)})"
        yield f"the exported code did not work in a fresh interpreter: {said}"
    else:
        yield (
            f"the exported code gave {show.estimate(ran.speedup)} in a fresh interpreter: its "
            f"outputs are right, but it is slower than confirmed, {show.estimate(best.speedup)}"
        )


def _details(phase: PhaseResult) -> Iterator[Line]:
    """Notes, and what was left out."""
    best = phase.answer.best
    if best and best.exported and best.exported.agrees:
        right = "the exported code is as fast in a fresh interpreter, and right"
        yield Line("Note", (right,))
    yield from (Line("Note", (show.plain(note),)) for note in phase.notes)

    def place(item: tuple[str, int]) -> tuple[bool, int]:
        reason, count = item
        # What only a flag would bring comes last.
        return reason.startswith("--"), -count

    order = sorted(phase.dropped.items(), key=place)
    if facts := tuple(f"{show.plain(reason)} ({count})" for reason, count in order):
        yield Line("Skipped", facts, "dim")


def _failures(phase: PhaseResult) -> Iterator[Table]:
    """What failed, and what was not tried since other trials showed how it ends."""
    rows = []
    for group in sorted(phase.failures, key=lambda group: group.answered):
        message: list[str | Span] = [_code(group.message)]
        if group.outcome is Outcome.UNSUPPORTED and not group.answered:
            message += [" → ", _code(f"autocompile doctor {group.backend}")]
        if group.log:
            message += [" · ", _code(group.log)]
        outcome = Span(group.outcome.value, "error")
        if group.answered:
            outcome = Span("not tried", "dim")
        rows.append((str(group.count), _code(group.backend), outcome, tuple(message)))
    if rows:
        titles = ("count", "backend", "outcome", "message")
        yield Table("What failed", titles, tuple(rows), (0,))


# --- all phases ---------------------------------------------------------------------------------


def _whole(report: Report, full: bool, run: str) -> Iterator[Line]:
    """What concerns all phases."""
    phases = report.phases
    used = [name for name, phase in phases.items() if phase.answer.changes_something]
    if report.target.algorithm and any(phase_of(name).library for name in used):
        yield Line("In the algorithm", tuple(_in_algorithm(report, run)))
    if found := _unusable(report, full):
        to_do = ("   → ", _code("autocompile doctor"))
        yield Line("Not on this machine", ((*found, *to_do),), "dim")
    if phases and not full:
        rest = "failures, what was left out, every trial   → "
        yield Line("More", ((rest, _code(f"autocompile show {run} -v")),), "dim")


def _unusable(report: Report, full: bool) -> list[str | Span]:
    """The backends that cannot be used here; ``full``: and why."""
    missing: dict[str, str] = {}
    for phase in report.phases.values():
        for name, why in phase.unusable.items():
            missing.setdefault(show.plain(name), show.plain(why))
    found: list[str | Span] = []
    for name, why in sorted(missing.items()):
        if found:
            found.append(", ")
        found.append(_code(name))
        found.append(f" ({why})" if full and why else "")
    return found


def _in_algorithm(report: Report, run: str) -> Iterator[Text]:
    """The gain in the algorithm's own loop where it was measured, else the command that measures it."""
    measured = report.in_algorithm
    gains = {"steps_per_s": "env steps/s of train()", "sampled_per_s": "sampling"}
    for name, what in gains.items():
        if gain := measured.get(name, {}).get("gain"):
            yield f"{what} {show.estimate(gain)}"
    if share := measured.get("forward_share", {}).get("untouched"):
        yield f"the forward pass is {share.value * 100:.0f} % of sampling"
    if not measured:
        command = _code(f"autocompile verify {run} --in-algorithm")
        yield ("the gain is not measured yet   → ", command)


# --- trials -------------------------------------------------------------------------------------


def trial_tables(phase: PhaseResult) -> Iterator[Table]:
    """Every trial of the search: those with figures, best first, then the others."""
    ranked = [(t, t.throughput) for t in phase.searched if t.ok and t.throughput]
    repeats: dict[int, list[Trial]] = {}
    for trial in phase.trials:
        if trial.repeats is not None:
            repeats.setdefault(trial.repeats, []).append(trial)
    if ranked:
        unit = ranked[0][1].unit
        columns = ("#", "batch", unit, "against eager", "compile", "memory", "setting")
        ranked.sort(key=lambda each: (-each[1].value, each[0].number))
        rows = tuple(_measured(t, repeats.get(t.number, ())) for t, _ in ranked)
        yield Table("Measured trials", columns, rows, right=range(6))
    others = [t for t in phase.searched if not (t.ok and t.throughput)]
    if others:
        titles = ("#", "batch", "outcome", "setting and message")
        cells = tuple(map(_not_measured, others))
        yield Table("Other trials", titles, cells, right=(0, 1))


def _measured(trial: Trial, repeats: Sequence[Trial]) -> tuple[Text, ...]:
    told = ", ".join(remarks(trial, repeats))
    setting = Span(show.label(trial.config), "code")
    return (
        str(trial.number),
        show.or_dash(trial.batch_size),
        show.measured(trial.throughput),
        show.ratio(trial.speedup),
        show.seconds(trial.compile_s),
        show.size(trial.peak_memory_bytes),
        (setting, Span(f"  ({told})", "dim")) if told else setting,
    )


def remarks(trial: Trial, repeats: Sequence[Trial]) -> Iterable[str]:
    """What stands behind a setting's name: duplicates, repeats, graph breaks, doubts."""
    if trial.duplicate_of is not None:
        yield same_as(trial.duplicate_of, trial.ok)
        return
    if repeats:
        yield _repeated(repeats)
    if trial.graph_breaks:
        yield show.many(trial.graph_breaks, "graph break")
    yield from (show.plain(flag).replace("_", " ") for flag in trial.flags)


def _repeated(repeats: Sequence[Trial]) -> str:
    """How often a setting was timed again, and between which speed-ups."""
    text = f"repeated in {show.many(len(repeats), 'process')}"
    good = [t.speedup.value for t in repeats if t.ok and t.speedup]
    if good:
        # Once, where both ends look the same.
        ends = dict.fromkeys((f"{min(good):.2f}", f"{max(good):.2f}"))
        text += f": {' to '.join(ends)}×"
    if failed := len(repeats) - len(good):
        text += f", {failed} failed"
    return text


def same_as(number: int, is_timed: bool) -> str:
    """Which trial gave the result of one that was not timed."""
    return f"same code as trial {number}" if is_timed else f"as trial {number}"


def _not_measured(trial: Trial) -> tuple[Text, ...]:
    reason: str | Span = f"in step {trial.step.value}"
    if trial.duplicate_of is not None:
        reason = same_as(trial.duplicate_of, trial.ok)
    elif trial.message:
        reason = Span(show.plain(trial.message), "code")
    outcome = Span(trial.outcome.value, "error")
    return (
        str(trial.number),
        show.or_dash(trial.batch_size),
        Span("not tried", "dim") if trial.answered else outcome,
        (Span(show.label(trial.config), "code"), ": ", reason),
    )


def checks(found: Mapping[str, Any]) -> Table:
    """What ``verify`` found, a row for each setting."""
    rows = []
    for one in found["checks"]:
        size = "" if one["batch_size"] is None else str(one["batch_size"])
        then = show.speedup(one["was"]) if one["was"] else ""
        now = show.speedup(one["speedup"]) if one["speedup"] else ""
        verdict = one["verdict"]
        if one["message"]:
            verdict += f": {show.plain(one['message'])}"
        kind = {"fastest": "good", "failed": "error"}.get(one["verdict"], "warning")
        setting = show.plain(one["setting"])
        rows.append((one["phase"], size, setting, then, now, Span(verdict, kind)))
    titles = ("phase", "batch size", "setting", "then", "now", "verdict")
    return Table("", titles, tuple(rows), (1, 3, 4))
