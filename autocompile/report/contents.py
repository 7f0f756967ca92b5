"""From the report's dictionary to the document: what is said, in which order and in which words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autocompile.report import facts as said
from autocompile.report import text as show
from autocompile.report.document import Document, Line, Section, Span, Table, Text
from autocompile.settings.config import DEFAULT_INDUCTOR
from autocompile.settings.phases import phase_of
from autocompile.settings.tuned import is_faster
from autocompile.store import runs

__all__ = ["FAILED", "METHOD", "RACED", "RULE", "document"]

METHOD = (
    "Blocks of eager and compiled calls alternate in one process, so that drift of the machine"
    " cancels; the speed-up in a process is the median of their ratios."
)
RACED = (
    " The best settings were timed again side by side in fresh processes: the speed-up is"
    " their mean over processes, with a 95 % t interval that also counts how far runs are apart."
)
RULE = (
    " A setting counts as faster if its whole interval within this run is, and its estimate by more"
    " than 1 %."
)
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
    answer = tuple(_answer(name, phase, code.get(name, "")) for name, phase in phases.items())
    facts = tuple((show.plain(k), _code(v)) for k, v in _circumstances(report))
    run = run or runs.name_of(str(report.get("run_dir", "last")))
    state = "Interrupted" if report.get("interrupted") else ""
    state = "Still running" if report.get("running") else state
    return Document(
        title=("autocompile: ", _code(report["target"].get("spec", "?"))),
        status=f"{state}: these are the results so far." if state else "",
        answer=Table("", ("", "speed-up", "confidence", ""), answer),
        sections=tuple(_section(name, phase, report, full) for name, phase in phases.items()),
        whole=tuple(_whole(report, full, run)),
        method=METHOD + RACED * raced + RULE,
        circumstances=Table("Circumstances", ("", ""), facts),
        exports={show.plain(n): str(text) for n, text in (report.get("exports") or {}).items()},
    )


def _code(text: object) -> Span:
    return Span(show.plain(text), "code")


def _circumstances(report: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    target = report["target"]
    yield "target", show.target_name(target)
    yield "run", report.get("run_dir", "")
    yield from (target.get("choices") or {}).items()
    asked = ("effort", "objective", "seed", "tolerance")
    yield from ((key, report[key]) for key in asked if report.get(key) is not None)
    yield "duration", show.seconds(report.get("wall_s"))
    yield from ((k, v) for k, v in report["environment"].items() if v is not None)


def _best(phase: Mapping[str, Any]) -> Mapping[str, Any]:
    """The best setting, eager's where that is to be kept; empty where there is no result."""
    return phase.get("best") or {} if phase["verdict"] != "failed" else {}


def _reason(phase: Mapping[str, Any]) -> str:
    return show.plain(phase.get("reason") or "no trial finished").rstrip(".")


def _answer(name: str, phase: Mapping[str, Any], code: str) -> tuple[Text, ...]:
    best, (word, *_) = _best(phase), said.confidence(phase)
    title, sure = Span(show.plain(name), "strong"), Span(word, "" if word == "high" else "warning")
    if not best:
        outcome = Span("no result yet") if phase.get("state") else Span("failed", "error")
        return title, outcome, show.NONE, _reason(phase)
    if phase["verdict"] == "keep_eager":
        return title, "keep eager", sure, _reason(phase)
    gain = best["speedup"]
    ratio = (Span(show.speedup(gain), "good"), f" {show.interval(gain)}")
    return title, ratio, sure, Span(show.plain(code) or show.label(best["config"]), "paste")


def _section(name: str, phase: Mapping[str, Any], report: Mapping[str, Any], full: bool) -> Section:
    own = (report["target"].get("own_batch_size") or {}).get(name)
    blocks: list[Line | Table] = [*_batch_sizes(phase, own), *_known(phase)]
    blocks += _details(phase) if full else ()
    blocks += _failures(phase) if full or not _best(phase) else ()
    about = tuple(_about(phase))
    return Section(show.plain(name), about, tuple(blocks), tuple(said.trial_tables(phase)))


def _about(phase: Mapping[str, Any]) -> Iterator[Text]:
    best, role = _best(phase), show.plain(phase.get("role") or "")
    if role:
        yield role
    if best.get("batch_size") is not None:
        yield f"batch size {best['batch_size']}"
    if best and phase["verdict"] == "faster":
        if said.confidence(phase)[0] != "low":
            count = best.get("confirmed_processes")
            yield f"confirmed in {show.many(count, 'fresh process')}" if count else "not confirmed"
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
    best, (word, open_, command) = _best(phase), said.confidence(phase)
    is_it_faster = bool(best) and phase["verdict"] == "faster"
    ratio = best.get("speedup_against_default") if is_it_faster else None
    if is_it_faster and best.get("call_s"):
        yield Line("Call", tuple(said.calls(best)))
    if ratio and show.label(best["config"]) != DEFAULT_INDUCTOR.label():
        yield Line("Why", (f"{show.estimate(ratio)} against plain torch.compile()",))
    yield from (Line("Why", (show.plain(why),)) for why in phase.get("explanation") or () if why)
    if is_it_faster:
        for reason, names in said.ties(phase).items():
            more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
            shown = _code(", ".join(names[:_NAMES]))
            told = f"{more}; chosen since it {reason}"
            yield Line("Ties", (("as fast within 1 %: ", shown, told),))
        if cost := tuple(said.cost(best)):
            yield Line("Cost", cost)
    if word == "high" and is_it_faster:
        sure = [_reason(phase)]
        if phase.get("compiled_settings"):
            count = f"{phase['compiled_tried']} of {phase['compiled_settings']}"
            sure.append(f"{count} compiled settings tried, and little is expected of the rest")
        elif "tried" in phase:
            sure.append(f"{phase['tried']} of {phase['settings']} settings tried")
        yield Line("Sure", tuple(sure))
    elif word in ("open", "low"):
        action = ("   → ", _code(command)) if command else ()
        yield Line(word.capitalize(), ((open_, *action),), "warning")
    for note in (*said.exported_warning(best), *best.get("notes", ())):
        yield Line("Note", (show.plain(note),))


def _details(phase: Mapping[str, Any]) -> Iterator[Line]:
    """Further figures and notes, what lost, and what was left out."""
    if best := _best(phase):
        yield Line("Figures", tuple(said.figures(best)))
    for row in phase.get("why_not") or ():
        names = _code(", ".join(map(show.plain, row["settings"])))
        yield Line("Others", ((names, f": {show.plain(row['reason'])}"),))
    yield from (Line("Note", (show.plain(note),)) for note in phase.get("notes", ()))
    # What only a flag would bring comes last.
    dropped = (phase.get("dropped") or {}).items()
    order = sorted(dropped, key=lambda item: (item[0].startswith("--"), -item[1]))
    if facts := tuple(f"{show.plain(reason)} ({count})" for reason, count in order):
        yield Line("Skipped", facts, "dim")


def _failures(phase: Mapping[str, Any]) -> Iterator[Table]:
    """What failed, and what was not tried since other trials showed how it ends."""
    titles = ("count", "backend", "outcome", "message")
    found: dict[str, list[tuple[Text, ...]]] = {FAILED: [], "What was not tried": []}
    for group in phase.get("failures") or ():
        title, kind = ("What was not tried", "dim") if group.get("answered") else (FAILED, "error")
        message: list[str | Span] = [_code(group.get("message", ""))]
        if group["outcome"] == "unsupported" and title == FAILED:
            message += [" → ", _code(f"autocompile doctor {group['backend']}")]
        if group.get("log"):
            message += [" · ", _code(group["log"])]
        outcome = Span(show.plain(group["outcome"]), kind)
        row = (str(group["count"]), _code(group["backend"]), outcome, tuple(message))
        found[title].append(row)
    yield from (Table(title, titles, tuple(rows), (0,)) for title, rows in found.items() if rows)


def _whole(report: Mapping[str, Any], full: bool, run: str) -> Iterator[Line]:
    """What concerns all phases."""
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
        yield Line("More", ((_rest(phases), "   → ", _code(f"autocompile show {run} -v")),), "dim")


def _in_algorithm(figures: Mapping[str, Any], run: str) -> Iterator[Text]:
    """The gain in RLlib's own loop where it was measured, else the command that measures it."""
    for name, what in (("steps_per_s", "env steps/s of train()"), ("sampled_per_s", "sampling")):
        if gain := figures.get(name, {}).get("gain"):
            yield f"{what} {show.estimate(gain)}"
    if share := figures.get("forward_share"):
        yield f"the forward pass is {share['untouched']['value'] * 100:.0f} % of sampling"
    if not figures:
        command = _code(f"autocompile verify {run} --in-algorithm")
        yield ("the gain is not measured yet   → ", command)


def _rest(phases: Mapping[str, Any]) -> str:
    """What a short document leaves out."""
    groups = [g for phase in phases.values() for g in phase.get("failures") or ()]
    failed = sum(g["count"] for g in groups if not g.get("answered"))
    told = [show.many(failed, "failure")] if failed else []
    if any(p.get("why_not") for p in phases.values()):
        told.append("why others lose")
    if any(p.get("dropped") for p in phases.values()):
        told.append("what was left out")
    return ", ".join([*told, "every trial"])
