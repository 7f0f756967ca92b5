"""From the report's dictionary to the document: what is said, in which order and in which words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autocompile.report import facts as said
from autocompile.report import text as show
from autocompile.report.document import Code, Document, Line, Section, Span, Table, Text, Verdict

__all__ = ["document", "trial_tables"]

_METHOD = (
    "Blocks of eager and compiled calls alternate in one process, so that drift of the machine"
    " cancels; the speed-up in a process is the Hodges-Lehmann estimate of their log ratios."
)
_RACED = (
    " The best settings were timed again side by side in fresh processes: the speed-up is"
    " their mean over processes, with a 95 % t interval."
)
_RULE = " A setting counts as faster if its whole interval is, and its estimate by more than 1 %."
# What a short document shows; `show -v` and Markdown have all.
_KINDS_OF_FAILURE, _REASONS, _KINDS_SKIPPED, _NAMES, _MESSAGE = 8, 5, 3, 3, 160


def document(report: Mapping[str, Any], full: bool = True) -> Document:
    """What ``report.json`` holds as a document; ``full``: with every reason, message and log."""
    phases = report["phases"].items()
    summary = tuple(_summary(name, phase) for name, phase in phases)
    status = said.unfinished(report)
    raced = any((phase.get("best") or {}).get("confirmed_processes") for _, phase in phases)
    facts = tuple((show.plain(k), _code(v)) for k, v in _circumstances(report))
    return Document(
        title=("autocompile: ", _code(report["target"].get("spec", "?"))),
        status=status,
        incomplete=tuple(said.incomplete(report)) if status else (),
        summary=Table("Summary", ("phase", "result", "speed-up", "setting"), summary, (2,)),
        sections=tuple(_section(name, phase, full) for name, phase in phases),
        unusable=_unusable(report, full),
        method=_METHOD + _RACED * raced + _RULE,
        circumstances=Table("Circumstances", ("", ""), facts),
        exports=tuple(
            Code(show.plain(name), "json" if name == "json" else "python", str(code))
            for name, code in (report.get("exports") or {}).items()
        ),
    )


def _code(text: object) -> Span:
    return Span(show.plain(text), "code")


def _unusable(report: Mapping[str, Any], full: bool) -> Text:
    """Backends that are not on this machine: told once for all phases."""
    found: list[str | Span] = []
    for name, why in said.not_here(report).items():
        found += [", "] if found else []
        found += [Span(name, "code"), f" ({why})" if full and why else ""]
    return (*found, "   → ", Span("autocompile doctor", "code")) if found else ()


def _circumstances(report: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    target = report["target"]
    yield "target", show.target_name(target)
    yield "run", report.get("run_dir", "")
    yield from (target.get("choices") or {}).items()
    asked = ("effort", "objective", "seed", "tolerance")
    yield from ((key, report[key]) for key in asked if report.get(key) is not None)
    yield "duration", show.seconds(report.get("wall_s"))
    yield from ((k, v) for k, v in report["environment"].items() if v is not None)


def _outcome(phase: Mapping[str, Any]) -> str:
    """The result of a phase in a word or two."""
    if phase["verdict"] == "failed" or not phase.get("best"):
        return "no result yet" if phase.get("state") else "failed"
    return "keep eager" if phase["verdict"] == "keep_eager" else "faster"


def _summary(name: str, phase: Mapping[str, Any]) -> tuple[Text, ...]:
    outcome, best = _outcome(phase), phase.get("best")
    if outcome == "faster" and best:
        ratio = f"{show.speedup(best['speedup'])} {show.interval(best['speedup'])}"
        return _code(name), Span(outcome, "strong"), ratio, _code(show.label(best["config"]))
    if outcome == "keep eager":
        return _code(name), outcome, show.speedup(1.0), _code("eager")
    return _code(name), outcome, show.NONE, show.NONE


def _section(name: str, phase: Mapping[str, Any], full: bool) -> Section:
    verdict, *facts = _answer(phase)
    assert isinstance(verdict, Verdict)
    blocks = [*facts, *_explanation(phase, full), *_batch_sizes(phase), *_failures(phase, full)]
    role = show.plain(phase.get("role") or "")
    return Section(show.plain(name), role, verdict, tuple(blocks), tuple(trial_tables(phase)))


def _answer(phase: Mapping[str, Any]) -> Iterator[Any]:
    """The verdict and the facts that belong to it."""
    best, outcome = phase.get("best"), _outcome(phase)
    reason = show.plain(phase.get("reason", "")).rstrip(".")
    if outcome in ("failed", "no result yet") or not best:
        why = f"{reason or 'no trial finished'}."
        yield Verdict(outcome.capitalize(), why, is_error=outcome == "failed")
        return
    if outcome == "keep eager":
        yield Verdict("Keep eager", f"{reason}.")
        eager = f"eager runs at {show.rate(best.get('throughput'))}"
        yield Line("", (eager, *said.memory_facts(best)))
    else:
        origin = f"trial {best['number']}, {said.proof(best)}"
        yield Verdict("Best", _code(show.label(best["config"])), origin)
        yield Line("", tuple(_speed(best)))
        yield Line("", tuple(said.best_facts(best)))
        yield from (Line("Ties", (tie,)) for tie in said.ties(phase))
    if (found := phase.get("confidence")) and not found["decided"]:
        open_ = show.plain(found.get("open", ""))
        yield Line("Open", ((f"{open_}   → ", _code(found["command"])),), "warning")
    if sure := said.sure(phase):
        yield Line("Sure", tuple(sure))


def _speed(best: Mapping[str, Any]) -> Iterator[Text]:
    gain, default = best["speedup"], said.against_default(best)
    faster = gain["value"] >= 1
    yield _ratio(gain), f" {show.interval(gain)}{' faster than' if faster else ' against'} eager"
    if default:
        word = "than" if default["value"] >= 1 and faster else "against"
        yield _ratio(default), f" {show.interval(default)} {word} plain ", _code("torch.compile()")


def _ratio(value: Mapping[str, Any]) -> Span:
    kind = "good" if value["low"] > 1 else "bad" if value["high"] < 1 else "even"
    return Span(show.speedup(value), kind)


def _explanation(phase: Mapping[str, Any], full: bool) -> Iterator[Line]:
    """Why the best setting is it, what holds the others back, and notes."""
    yield from (Line("Why", (show.plain(why),)) for why in phase.get("explanation") or ())
    losers = phase.get("why_not") or ()
    shown = losers if full else losers[:_REASONS]
    for row in shown:
        names = [show.plain(name) for name in row["settings"]]
        few = names if full else names[:_NAMES]
        more = f" and {len(names) - len(few)} more" if len(names) > len(few) else ""
        yield Line("Others", ((_code(", ".join(few)), f"{more}: {show.plain(row['reason'])}"),))
    yield from (Line("Others", (more,)) for more in _more(len(losers) - len(shown)))
    best = (phase.get("best") if phase["verdict"] != "failed" else None) or {}
    notes = (*said.exported_warning(best), *best.get("notes", ()), *phase.get("notes", ()))
    yield from (Line("Note", (show.plain(note),)) for note in notes)


def _more(count: int, noun: str = "") -> tuple[str, ...]:
    """That a short document leaves some out; nothing where it does not."""
    return (f"and {count} more{noun} (show -v has all)",) if count else ()


def _batch_sizes(phase: Mapping[str, Any]) -> Iterator[Table]:
    """The best setting of each batch size, in the form of RLlib's benchmark."""
    rows = []
    for row in phase.get("by_batch_size") or ():
        mark = "" if row.get("confirmed_processes", 1) else " †"
        cells = (
            show.or_dash(row.get("batch_size")),
            *(show.or_dash(row.get(f"{side}_throughput"), ".1f") for side in ("eager", "best")),
        )
        rows.append(
            (*cells, show.gain(row.get("speedup")), f"{show.or_dash(row.get('number'))}{mark}")
        )
    if rows:
        unit = ((phase.get("best") or {}).get("throughput") or {}).get("unit")
        titles = ("batch size", "no compile throughput", "compiled throughput", "speedup", "trial")
        yield Table(
            f"Throughput in {show.plain(unit)}" if unit else "Throughput",
            titles,
            tuple(rows),
            right=range(5),
            notes=("† one process, not confirmed",) * any("†" in row[-1] for row in rows),
        )


def _failures(phase: Mapping[str, Any], full: bool) -> Iterator[Line | Table]:
    """What failed, what was not tried since others showed how it ends, and what was left out."""
    titles = ("count", "backend", "outcome", "message")
    for is_answered, label, title, kind in (
        (False, "Failed", "What failed", "error"),
        (True, "Untried", "What was not tried", "dim"),
    ):
        groups = [g for g in phase.get("failures") or () if bool(g.get("answered")) == is_answered]
        shown = groups if full else groups[:_KINDS_OF_FAILURE]
        more = _more(len(groups) - len(shown), " kinds")
        rows = (
            (str(g["count"]), _code(g["backend"]), Span(show.plain(g["outcome"]), kind), message)
            for g in shown
            for message in (_message(g, full),)
        )
        if shown:
            yield Table(title, titles, tuple(rows), (0,), label, kind, notes=more)
    # What only a flag would bring comes last.
    dropped = (phase.get("dropped") or {}).items()
    order = sorted(dropped, key=lambda item: (item[0].startswith("--"), -item[1]))
    few = order if full else order[:_KINDS_SKIPPED]
    facts = [f"{show.plain(reason)} ({count})" for reason, count in few]
    if facts:
        yield Line("Skipped", (*facts, *_more(len(order) - len(few), " reasons")), "dim")


def _message(group: Mapping[str, Any], full: bool) -> Text:
    message = show.plain(group.get("message", ""))
    parts: list[str | Span] = [_code(message if full else show.shorten(message, _MESSAGE))]
    if group["outcome"] == "unsupported" and not group.get("answered"):
        parts += [" → ", _code(f"autocompile doctor {group['backend']}")]
    if full and group.get("log"):
        parts += [" · ", _code(group["log"])]
    return tuple(parts)


def trial_tables(phase: Mapping[str, Any]) -> Iterator[Table]:
    """Every trial of the search: those with figures, best first, then the others."""
    trials = phase["trials"]
    searched = [t for t in trials if t.get("role") == "search"]
    ranked = [t for t in searched if t["outcome"] == "ok" and t.get("throughput")]
    others = [t for t in searched if t not in ranked]
    if ranked:
        unit = show.plain(ranked[0]["throughput"].get("unit", ""))
        columns = ("#", "batch", unit, "against eager", "compile", "memory", "setting")
        figures = tuple(_measured(trial, trials) for trial in sorted(ranked, key=_order))
        yield Table("Measured trials", columns, figures, right=range(6), wide=5)
    if others:
        rows = tuple(map(_not_measured, others))
        titles = ("#", "batch", "outcome", "setting and message")
        yield Table("Other trials", titles, rows, right=(0, 1))


def _measured(trial: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> tuple[Text, ...]:
    remarks = ", ".join(said.trial_remarks(trial, trials))
    setting = _code(show.label(trial["config"]))
    return (
        str(trial["number"]),
        show.or_dash(trial.get("batch_size")),
        show.measured(show.read_interval(trial["throughput"])),
        show.ratio(show.read_interval(trial.get("speedup"))),
        show.seconds(trial.get("compile_s")),
        show.size(trial.get("peak_memory_bytes")),
        (setting, Span(f"  ({remarks})", "dim")) if remarks else setting,
    )


def _not_measured(trial: Mapping[str, Any]) -> tuple[Text, ...]:
    if (same := trial.get("duplicate_of")) is not None:
        reason: str | Span = said.same_as(same, trial["outcome"])
    elif trial.get("message"):
        reason = _code(trial["message"])
    else:
        reason = f"in step {show.plain(trial.get('step', '?'))}"
    answered = trial.get("answered")
    return (
        str(trial["number"]),
        show.or_dash(trial.get("batch_size")),
        Span("not tried", "dim") if answered else Span(show.plain(trial["outcome"]), "error"),
        (_code(show.label(trial["config"])), ": ", reason),
    )


def _order(trial: Mapping[str, Any]) -> tuple[float, int, int]:
    """By throughput; a duplicate follows its original."""
    same, number = trial.get("duplicate_of"), trial["number"]
    return -trial["throughput"]["value"], number if same is None else same, number
