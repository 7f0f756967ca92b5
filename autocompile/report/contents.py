"""From the report's dictionary to the document: what is said, in which order and in which words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autocompile.report import facts as said
from autocompile.report import text as show
from autocompile.report.document import Code, Document, Line, Section, Span, Table, Text
from autocompile.settings.phases import phase_of
from autocompile.settings.tuned import is_faster
from autocompile.store import runs

__all__ = ["FAILED", "document"]

_METHOD = (
    "Blocks of eager and compiled calls alternate in one process, so that drift of the machine"
    " cancels; the speed-up in a process is the median of their ratios."
)
_RACED = (
    " The best settings were timed again side by side in fresh processes: the speed-up is"
    " their mean over processes, with a 95 % t interval."
)
_RULE = " A setting counts as faster if its whole interval is, and its estimate by more than 1 %."
FAILED = "What failed"
_NAMES = 2  # settings that a short document names side by side


def document(
    report: Mapping[str, Any],
    full: bool = True,
    code: Mapping[str, str] | None = None,
    run: str = "",
) -> Document:
    """What ``report.json`` holds as a document.

    Args:
        report: the content of ``report.json``.
        full: also what lost, what failed and what was left out.
        code: the setting of each phase as code; without it, its name stands there.
        run: the run's name for commands.
    """
    phases, code = report["phases"], code or {}
    raced = any((p.get("best") or {}).get("confirmed_processes") for p in phases.values())
    titles = ("", "speed-up", "confidence", "")
    answer = tuple(_answer(name, phase, code.get(name, "")) for name, phase in phases.items())
    facts = tuple((show.plain(k), _code(v)) for k, v in _circumstances(report))
    return Document(
        title=("autocompile: ", _code(report["target"].get("spec", "?"))),
        status=_status(report),
        answer=Table("", titles, answer),
        sections=tuple(_section(name, phase, report, full) for name, phase in phases.items()),
        whole=tuple(_whole(report, full, run or _name(report))),
        method=_METHOD + _RACED * raced + _RULE,
        circumstances=Table("Circumstances", ("", ""), facts),
        exports=tuple(
            Code(show.plain(name), "json" if name == "json" else "python", str(text))
            for name, text in (report.get("exports") or {}).items()
        ),
    )


def _code(text: object) -> Span:
    return Span(show.plain(text), "code")


def _name(report: Mapping[str, Any]) -> str:
    path = Path(str(report.get("run_dir", "last")))
    return path.name if path.parent == runs.under else str(path)


def _status(report: Mapping[str, Any]) -> str:
    """What to know first of a run that is not complete; empty otherwise."""
    if report.get("running"):
        return "Still running: these are the results so far."
    return "Interrupted: these are the results so far." if report.get("interrupted") else ""


def _circumstances(report: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    target = report["target"]
    yield "target", show.target_name(target)
    yield "run", report.get("run_dir", "")
    yield from (target.get("choices") or {}).items()
    asked = ("effort", "objective", "seed", "tolerance")
    yield from ((key, report[key]) for key in asked if report.get(key) is not None)
    yield "duration", show.seconds(report.get("wall_s"))
    yield from ((k, v) for k, v in report["environment"].items() if v is not None)


# --- the answer ---------------------------------------------------------------------------------


def _best(phase: Mapping[str, Any]) -> Mapping[str, Any]:
    """The best setting, eager's where that is to be kept; empty where there is no result."""
    return phase.get("best") or {} if phase["verdict"] != "failed" else {}


def _reason(phase: Mapping[str, Any]) -> str:
    return show.plain(phase.get("reason") or "no trial finished").rstrip(".")


def _answer(name: str, phase: Mapping[str, Any], code: str) -> tuple[Text, ...]:
    best, (word, *_) = _best(phase), said.confidence(phase)
    sure = Span(word, "" if word == "high" else "warning")
    if not best:
        outcome = "no result yet" if phase.get("state") else "failed"
        kind = "" if phase.get("state") else "error"
        return Span(show.plain(name), "strong"), Span(outcome, kind), show.NONE, _reason(phase)
    if phase["verdict"] == "keep_eager":
        return Span(show.plain(name), "strong"), "keep eager", sure, _reason(phase)
    gain = best["speedup"]
    ratio = (Span(show.speedup(gain), "good"), f" {show.interval(gain)}")
    paste = Span(show.plain(code) or show.label(best["config"]), "paste")
    return Span(show.plain(name), "strong"), ratio, sure, paste


# --- a phase ------------------------------------------------------------------------------------


def _section(name: str, phase: Mapping[str, Any], report: Mapping[str, Any], full: bool) -> Section:
    own = (report["target"].get("own_batch_size") or {}).get(name)
    blocks: list[Line | Table] = [*_batch_sizes(phase, own), *_known(phase)]
    blocks += _details(phase) if full else ()
    blocks += _failures(phase) if full or not _best(phase) else ()
    about = tuple(_about(phase))
    return Section(show.plain(name), about, tuple(blocks), tuple(said.trial_tables(phase)))


def _about(phase: Mapping[str, Any]) -> Iterator[Text]:
    best, role = _best(phase), show.plain(phase.get("role") or "")
    yield from [role] if role else []
    if best.get("batch_size") is not None:
        yield f"batch size {best['batch_size']}"
    if best and phase["verdict"] == "faster":
        yield from [said.proof(best)] if said.confidence(phase)[0] != "low" else []
        yield said.weights(best)


def _batch_sizes(phase: Mapping[str, Any], own: int | None) -> Iterator[Table]:
    """The best setting of each batch size beside eager."""
    labels = {t["number"]: show.label(t["config"]) for t in phase["trials"]}
    listed, best, rows = phase.get("by_batch_size") or (), phase.get("best") or {}, []
    unit = show.plain((best.get("throughput") or {}).get("unit") or "samples/s")
    unit = unit.removeprefix("samples") if unit.startswith("samples") else f" {unit}"
    for row in listed:
        size, label = row.get("batch_size"), labels.get(row.get("number"), show.NONE)
        eager, top, gain = row.get("eager_throughput"), row.get("best_throughput"), row["speedup"]
        setting: str | Span = _code(label)
        remarks = [] if row.get("confirmed_processes", 1) else ["not confirmed"]
        if not is_faster(row):
            remarks = [f"next: {label}, {show.speedup(gain)}"]
            setting, top, gain = "eager", eager, 1.0
        if len(listed) > 1 and best and size == best.get("batch_size"):
            remarks.append("← this config's own" if size == own else "← above")
        name = (setting, *(Span(f"  {remark}", "dim") for remark in remarks))
        rates = (f"{show.quantity(eager)}{unit}", f"{show.quantity(top)}{unit}")
        rows.append((show.or_dash(size), *rates, Span(show.speedup(gain), "strong"), name))
    if rows:
        titles = ("batch size", "eager", "best", "speed-up", "setting")
        first = int(all(row.get("batch_size") is None for row in listed))
        shown = tuple(tuple(row[first:]) for row in rows)
        yield Table("", titles[first:], shown, right=range(4 - first))


def _known(phase: Mapping[str, Any]) -> Iterator[Line]:
    """Why it is the best, what it costs, and how sure that is."""
    best = _best(phase)
    is_it_faster = bool(best) and phase["verdict"] == "faster"
    default = [said.against_default(best)] if is_it_faster else []
    for why in filter(None, (*default, *(phase.get("explanation") or ()))):
        yield Line("Why", (show.plain(why),))
    if is_it_faster:
        for reason, names in said.ties(phase).items():
            named = _names(names)
            yield Line("Ties", (("as fast within 1 %: ", *named, f"; chosen since it {reason}"),))
        if cost := tuple(said.cost(best)):
            yield Line("Cost", cost)
    word, why, command = said.confidence(phase)
    if word == "high" and is_it_faster:
        tried = [f"{phase['tried']} of {phase['settings']} settings tried"]
        yield Line("Sure", (_reason(phase), *(tried if "tried" in phase else ())))
    elif word in ("open", "low"):
        action = ("   → ", _code(command)) if command else ()
        yield Line(word.capitalize(), ((why, *action),), "warning")
    for note in (*said.exported_warning(best), *best.get("notes", ())):
        yield Line("Note", (show.plain(note),))


def _names(names: Sequence[str], most: int = _NAMES) -> tuple[Span, str]:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return _code(", ".join(map(show.plain, names[:most]))), more


def _details(phase: Mapping[str, Any]) -> Iterator[Line]:
    """Further figures and notes, what lost, and what was left out."""
    if best := _best(phase):
        yield Line("Figures", tuple(said.figures(best)))
    for row in phase.get("why_not") or ():
        names, more = _names(row["settings"], len(row["settings"]))
        yield Line("Others", ((names, f"{more}: {show.plain(row['reason'])}"),))
    yield from (Line("Note", (show.plain(note),)) for note in phase.get("notes", ()))
    # What only a flag would bring comes last.
    dropped = (phase.get("dropped") or {}).items()
    order = sorted(dropped, key=lambda item: (item[0].startswith("--"), -item[1]))
    if facts := tuple(f"{show.plain(reason)} ({count})" for reason, count in order):
        yield Line("Skipped", facts, "dim")


def _failures(phase: Mapping[str, Any]) -> Iterator[Table]:
    """What failed, and what was not tried since other trials showed how it ends."""
    titles = ("count", "backend", "outcome", "message")
    for is_answered, title, kind in (
        (False, FAILED, "error"),
        (True, "What was not tried", "dim"),
    ):
        groups = [g for g in phase.get("failures") or () if bool(g.get("answered")) == is_answered]
        rows = tuple(
            (str(g["count"]), _code(g["backend"]), Span(outcome, kind), _message(g))
            for g in groups
            for outcome in (show.plain(g["outcome"]),)
        )
        if rows:
            yield Table(title, titles, rows, (0,))


def _message(group: Mapping[str, Any]) -> Text:
    parts: list[str | Span] = [_code(group.get("message", ""))]
    if group["outcome"] == "unsupported" and not group.get("answered"):
        parts += [" → ", _code(f"autocompile doctor {group['backend']}")]
    return (*parts, " · ", _code(group["log"])) if group.get("log") else tuple(parts)


# --- all phases ---------------------------------------------------------------------------------


def _whole(report: Mapping[str, Any], full: bool, run: str) -> Iterator[Line]:
    phases = report["phases"]
    faster = [name for name, phase in phases.items() if phase["verdict"] == "faster"]
    if report["target"].get("algorithm") and any(phase_of(name).in_rllib for name in faster):
        yield Line("In the algorithm", tuple(_in_algorithm(report.get("in_algorithm") or {}, run)))
    missing: dict[str, str] = {}
    for phase in phases.values():
        for name, why in (phase.get("unusable") or {}).items():
            missing.setdefault(show.plain(name), show.plain(why))
    found: list[str | Span] = []
    for name, why in sorted(missing.items()):
        found += [", "] * bool(found) + [_code(name), f" ({why})" if full and why else ""]
    if found:
        to_do = ("   → ", _code("autocompile doctor"))
        yield Line("Not on this machine", ((*found, *to_do),), "dim")
    if phases and not full:
        yield Line("More", ((*_rest(phases), "   → ", _code(f"autocompile show {run} -v")),), "dim")


def _in_algorithm(figures: Mapping[str, Any], run: str) -> Iterator[Text]:
    """The gain in RLlib's own loop where it was measured, else the command that measures it."""
    for name, what in (("steps_per_s", "env steps/s of train()"), ("sampled_per_s", "sampling")):
        if gain := figures.get(name, {}).get("gain"):
            yield f"{what} {show.speedup(gain)} {show.interval(gain)}"
    if share := figures.get("forward_share"):
        yield f"the forward pass is {share['untouched']['value'] * 100:.0f} % of sampling"
    if not figures:
        yield (
            "the gain is not measured yet   → ",
            _code(f"autocompile verify {run} --in-algorithm"),
        )


def _rest(phases: Mapping[str, Any]) -> Iterator[str]:
    """What a short document leaves out."""
    groups = [g for phase in phases.values() for g in phase.get("failures") or ()]
    failed = sum(g["count"] for g in groups if not g.get("answered"))
    told = [show.many(failed, "failure")] if failed else []
    if any(p.get("why_not") for p in phases.values()):
        told.append("why others lose")
    if any(p.get("dropped") for p in phases.values()):
        told.append("what was left out")
    yield ", ".join([*told, "every trial"])
