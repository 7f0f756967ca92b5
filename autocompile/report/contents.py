"""From the report's dictionary to the document: what is said, in which order and in which words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from autocompile.estimate.decision import SETS, is_dearer
from autocompile.report import text as show
from autocompile.report.document import Document, Line, Section, Span, Table, Text
from autocompile.settings.config import DEFAULT_INDUCTOR
from autocompile.settings.phases import phase_of
from autocompile.settings.tuned import is_faster
from autocompile.store import runs

__all__ = ["METHOD", "RACED", "RULE", "checks", "document", "figures", "same_as", "trial_tables"]

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
_NAMES = 2  # settings that a short document names side by side

Row = Mapping[str, Any]


def document(
    report: Row, full: bool = True, code: Mapping[str, str] | None = None, run: str = ""
) -> Document:
    """What ``report.json`` holds as a document; ``full``: also what failed and what was left out.

    ``code``: the setting of each phase as code; without it, its name stands there.
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


def _circumstances(report: Row) -> Iterator[tuple[str, object]]:
    target = report["target"]
    yield "target", show.target_name(target)
    yield "run", report.get("run_dir", "")
    yield from (target.get("choices") or {}).items()
    asked = ("effort", "objective", "seed", "tolerance")
    yield from ((key, report[key]) for key in asked if report.get(key) is not None)
    yield "duration", show.seconds(report.get("wall_s"))
    yield from ((k, v) for k, v in report["environment"].items() if v is not None)


# --- the answer ---------------------------------------------------------------------------------


def _best(phase: Row) -> Row:
    """The best setting, eager's where that is to be kept; empty where there is no result."""
    return phase.get("best") or {} if phase["verdict"] != "failed" else {}


def _reason(phase: Row) -> str:
    return show.plain(phase.get("reason") or "no trial finished").rstrip(".")


def _confidence(phase: Row) -> tuple[str, str, str]:
    """``high``, ``open`` or ``low``; what keeps it from being high; the command that raises it.

    All empty where nothing was decided.
    """
    best, found = _best(phase), phase.get("confidence")
    if not best or not found:
        return "", "", ""
    count, why = best.get("confirmed_processes") or 0, show.plain(found.get("open") or "")
    word = found.get("word") or ("high" if found["decided"] else "open")
    if word == "high" and phase["verdict"] == "faster" and count < SETS[0]:  # an older report
        word, why = "low", f"confirmed in {count} of {SETS[0]} fresh processes"
    return word, why, show.plain(found.get("command") or "")


def _answer(name: str, phase: Row, code: str) -> tuple[Text, ...]:
    best, (word, *_) = _best(phase), _confidence(phase)
    title, sure = Span(show.plain(name), "strong"), Span(word, "" if word == "high" else "warning")
    if not best:
        outcome = Span("no result yet") if phase.get("state") else Span("failed", "error")
        return title, outcome, show.NONE, _reason(phase)
    if phase["verdict"] == "keep_eager":
        return title, "keep eager", sure, _reason(phase)
    gain = best["speedup"]
    ratio = (Span(show.speedup(gain), "good"), f" {show.interval(gain)}")
    return title, ratio, sure, Span(show.plain(code) or show.label(best["config"]), "paste")


# --- a phase ------------------------------------------------------------------------------------


def _section(name: str, phase: Row, report: Row, full: bool) -> Section:
    own = (report["target"].get("own_batch_size") or {}).get(name)
    blocks: list[Line | Table] = [*_batch_sizes(phase, own), *_known(phase)]
    blocks += _details(phase) if full else ()
    blocks += _failures(phase) if full or not _best(phase) else ()
    about = tuple(_about(phase))
    return Section(show.plain(name), about, tuple(blocks), tuple(trial_tables(phase)))


def _about(phase: Row) -> Iterator[Text]:
    best, role = _best(phase), show.plain(phase.get("role") or "")
    if role:
        yield role
    if best.get("batch_size") is not None:
        yield f"batch size {best['batch_size']}"
    if best and phase["verdict"] == "faster":
        if _confidence(phase)[0] != "low":
            count = best.get("confirmed_processes")
            yield f"confirmed in {show.many(count, 'fresh process')}" if count else "not confirmed"
        live = best.get("weights_live")
        follow = "" if live is None else " and follow" if live else " but do not follow"
        yield "outputs match eager" + (f"{follow} weight updates" if follow else "")


def _batch_sizes(phase: Row, own: int | None) -> Iterator[Table]:
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


def _known(phase: Row) -> Iterator[Line]:
    """Why it is the best, what it costs, and how sure that is."""
    best, (word, open_, command) = _best(phase), _confidence(phase)
    is_it_faster = bool(best) and phase["verdict"] == "faster"
    ratio = best.get("speedup_against_default") if is_it_faster else None
    if is_it_faster and (call_s := best.get("call_s")):
        calls = [show.seconds(call_s), f"eager {show.seconds(call_s * best['speedup']['value'])}"]
        if ratio:
            calls.append(f"plain torch.compile() {show.seconds(call_s * ratio['value'])}")
        yield Line("Call", tuple(calls))
    if ratio and show.label(best["config"]) != DEFAULT_INDUCTOR.label():
        yield Line("Why", (f"{show.estimate(ratio)} against plain torch.compile()",))
    yield from (Line("Why", (show.plain(why),)) for why in phase.get("explanation") or () if why)
    if is_it_faster:
        yield from _ties(phase, best)
        if cost := tuple(_cost(best)):
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
    yield from (Line("Note", (note,)) for note in exported_warning(best))
    yield from (Line("Note", (show.plain(note),)) for note in best.get("notes", ()))


def _ties(phase: Row, best: Row) -> Iterator[Line]:
    """Settings as fast as the best one, by the reason for that one: see ``decision.plainness``."""
    found: dict[str, list[str]] = {}
    by_number = {t["number"]: t for t in phase["trials"]}
    mine = best.get("compile_s")
    for number in phase.get("ties") or ():
        if number == best["number"] or not (other := by_number.get(number)):
            continue
        reason, theirs = "is simpler", other.get("compile_s")
        if mine is not None and theirs is not None and is_dearer(theirs, mine):
            reason = f"compiles faster ({show.seconds(mine)} against {show.seconds(theirs)})"
        found.setdefault(reason, []).append(show.label(other["config"]))
    for reason, names in found.items():
        more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
        shown = _code(", ".join(names[:_NAMES]))
        yield Line("Ties", (("as fast within 1 %: ", shown, f"{more}; chosen since it {reason}"),))


def _cost(best: Row) -> Iterator[str]:
    """What the best setting costs: to compile, at new weights, and in memory."""
    is_eager = best["config"].get("backend") == "eager"
    if best.get("compile_s") and not is_eager:
        warm, calls = best.get("warm_compile_s"), best.get("break_even_calls")
        compiles = f"compiles in {show.seconds(best['compile_s'])}"
        compiles += f" ({show.seconds(warm)} warm)" if warm is not None else ""
        repaid = f", repaid after {show.thousands(calls)} call{'s' * (calls != 1)}" if calls else ""
        yield compiles + repaid
    if refresh_s := best.get("refresh_s"):
        apart, least = best.get("calls_per_update"), best.get("calls_to_repay_refresh")
        new = f"new weights cost {show.seconds(refresh_s)}"
        if apart:
            yield f"{new} every {show.thousands(apart)} calls, which is included"
        elif least:
            yield f"{new}: this pays if they stay the same for {show.thousands(least)} calls"
    if mine := best.get("peak_memory_bytes"):
        eager = best.get("eager_peak_memory_bytes")
        against = f" (eager {show.size(eager)})" if eager and not is_eager else ""
        yield f"peak memory {show.size(mine)}{against}"


def exported_warning(best: Row) -> Iterator[str]:
    """A warning where exported code did worse in a fresh interpreter than was confirmed."""
    ran = best.get("exported")
    if not ran or ran["agrees"]:
        return
    if ran["speedup"] is None:
        said = f"{show.plain(ran['outcome'])} ({show.plain(ran['message'])})"
        yield f"the exported code did not work in a fresh interpreter: {said}"
    else:
        yield (
            f"the exported code gave {show.estimate(ran['speedup'])} in a fresh interpreter: its "
            f"outputs are right, but it is slower than confirmed, {show.estimate(best['speedup'])}"
        )


def figures(best: Row) -> Iterator[str]:
    """Further figures of the best setting."""
    yield f"trial {best['number']}"
    rate = best.get("throughput") or {}
    value, low, high = (show.quantity(rate.get(k)) for k in ("value", "low", "high"))
    yield f"{value} {rate.get('unit', '')} [{low}, {high}]" if rate else show.NONE
    if same := best.get("same_code"):
        yield f"{len(same)} other setting{'s have' if len(same) > 1 else ' has'} the same code"
    if (ran := best.get("exported")) and ran["agrees"]:
        why = "; calls as fast, eager mode was faster in that process"
        yield f"exported code: {show.speedup(ran['speedup'])}, right{why * ran['eager_faster']}"
    if spread := best.get("eager_call_s"):
        ends = dict.fromkeys(map(show.seconds, spread))
        yield f"eager took {' to '.join(ends)} a call, depending on the process"
    if slow := best.get("slow_sets"):
        yield f"{show.many(slow, 'process')} left out: the machine was slower"


def _details(phase: Row) -> Iterator[Line]:
    """Further figures and notes, and what was left out."""
    if best := _best(phase):
        yield Line("Figures", tuple(figures(best)))
    yield from (Line("Note", (show.plain(note),)) for note in phase.get("notes", ()))
    # What only a flag would bring comes last.
    dropped = (phase.get("dropped") or {}).items()
    order = sorted(dropped, key=lambda item: (item[0].startswith("--"), -item[1]))
    if facts := tuple(f"{show.plain(reason)} ({count})" for reason, count in order):
        yield Line("Skipped", facts, "dim")


def _failures(phase: Row) -> Iterator[Table]:
    """What failed, and what was not tried since other trials showed how it ends."""
    failed, untried = "What failed", "What was not tried"
    found: dict[str, list[tuple[Text, ...]]] = {failed: [], untried: []}
    for group in phase.get("failures") or ():
        title, kind = (untried, "dim") if group.get("answered") else (failed, "error")
        message: list[str | Span] = [_code(group.get("message", ""))]
        if group["outcome"] == "unsupported" and title == failed:
            message += [" → ", _code(f"autocompile doctor {group['backend']}")]
        if group.get("log"):
            message += [" · ", _code(group["log"])]
        outcome = Span(show.plain(group["outcome"]), kind)
        row = (str(group["count"]), _code(group["backend"]), outcome, tuple(message))
        found[title].append(row)
    titles = ("count", "backend", "outcome", "message")
    yield from (Table(title, titles, tuple(rows), (0,)) for title, rows in found.items() if rows)


# --- all phases ---------------------------------------------------------------------------------


def _whole(report: Row, full: bool, run: str) -> Iterator[Line]:
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
        rest = "failures, what was left out, every trial   → "
        yield Line("More", ((rest, _code(f"autocompile show {run} -v")),), "dim")


def _in_algorithm(figures: Row, run: str) -> Iterator[Text]:
    """The gain in RLlib's own loop where it was measured, else the command that measures it."""
    for name, what in (("steps_per_s", "env steps/s of train()"), ("sampled_per_s", "sampling")):
        if gain := figures.get(name, {}).get("gain"):
            yield f"{what} {show.estimate(gain)}"
    if share := figures.get("forward_share"):
        yield f"the forward pass is {share['untouched']['value'] * 100:.0f} % of sampling"
    if not figures:
        command = _code(f"autocompile verify {run} --in-algorithm")
        yield ("the gain is not measured yet   → ", command)


# --- trials -------------------------------------------------------------------------------------


def trial_tables(phase: Row) -> Iterator[Table]:
    """Every trial of the search: those with figures, best first, then the others."""
    searched = [t for t in phase["trials"] if t.get("role") == "search"]
    ranked = [t for t in searched if t["outcome"] == "ok" and t.get("throughput")]
    repeats: dict[int, list[Row]] = {}
    for trial in phase["trials"]:
        if (number := trial.get("repeats")) is not None:
            repeats.setdefault(number, []).append(trial)
    if ranked:
        unit = show.plain(ranked[0]["throughput"].get("unit", ""))
        columns = ("#", "batch", unit, "against eager", "compile", "memory", "setting")
        best_first = sorted(ranked, key=_order)
        rows = tuple(_measured(t, repeats.get(t["number"], ())) for t in best_first)
        yield Table("Measured trials", columns, rows, right=range(6), wide=5)
    if others := tuple(_not_measured(t) for t in searched if t not in ranked):
        titles = ("#", "batch", "outcome", "setting and message")
        yield Table("Other trials", titles, others, right=(0, 1))


def _order(trial: Row) -> tuple[float, int, int]:
    """By throughput; a duplicate follows its original."""
    same, number = trial.get("duplicate_of"), trial["number"]
    return -trial["throughput"]["value"], number if same is None else same, number


def _measured(trial: Row, repeats: Sequence[Row]) -> tuple[Text, ...]:
    told = ", ".join(remarks(trial, repeats))
    setting = Span(show.label(trial["config"]), "code")
    return (
        str(trial["number"]),
        show.or_dash(trial.get("batch_size")),
        show.measured(trial["throughput"]),
        show.ratio(trial.get("speedup")),
        show.seconds(trial.get("compile_s")),
        show.size(trial.get("peak_memory_bytes")),
        (setting, Span(f"  ({told})", "dim")) if told else setting,
    )


def remarks(trial: Row, repeats: Sequence[Row]) -> Iterable[str]:
    """What stands behind a setting's name: duplicates, repeats, graph breaks, doubts."""
    if trial.get("duplicate_of") is not None:
        yield same_as(trial["duplicate_of"], trial.get("outcome", "ok"))
        return
    if repeats:
        good = [t["speedup"]["value"] for t in repeats if t["outcome"] == "ok" and t["speedup"]]
        ends = dict.fromkeys(f"{end(good):.2f}" for end in (min, max)) if good else ()
        text = f"repeated in {show.many(len(repeats), 'process')}"
        text += f": {' to '.join(ends)}×" if good else ""
        failed = len(repeats) - len(good)
        yield text + (f", {failed} failed" if failed else "")
    if breaks := trial.get("graph_breaks"):
        yield show.many(breaks, "graph break")
    yield from (show.plain(flag).replace("_", " ") for flag in trial.get("flags", ()))


def same_as(number: int, outcome: str) -> str:
    """Which trial gave the result of one that was not timed."""
    return f"same code as trial {number}" if outcome == "ok" else f"as trial {number}"


def _not_measured(trial: Row) -> tuple[Text, ...]:
    reason: str | Span = f"in step {show.plain(trial.get('step', '?'))}"
    if (same := trial.get("duplicate_of")) is not None:
        reason = same_as(same, trial["outcome"])
    elif trial.get("message"):
        reason = Span(show.plain(trial["message"]), "code")
    outcome = Span(show.plain(trial["outcome"]), "error")
    return (
        str(trial["number"]),
        show.or_dash(trial.get("batch_size")),
        Span("not tried", "dim") if trial.get("answered") else outcome,
        (Span(show.label(trial["config"]), "code"), ": ", reason),
    )


def checks(found: Row) -> Table:
    """What ``verify`` found, a row for each setting."""
    rows = []
    for one in found["checks"]:
        size = "" if one["batch_size"] is None else str(one["batch_size"])
        then, now = (show.speedup(one[k]) if one[k] else "" for k in ("was", "speedup"))
        verdict = one["verdict"] + (f": {show.plain(one['message'])}" if one["message"] else "")
        kind = {"fastest": "good", "failed": "error"}.get(one["verdict"], "warning")
        setting = show.plain(one["setting"])
        rows.append((one["phase"], size, setting, then, now, Span(verdict, kind)))
    titles = ("phase", "batch size", "setting", "then", "now", "verdict")
    return Table("", titles, tuple(rows), (1, 3, 4))
