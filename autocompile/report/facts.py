"""Facts about phases, as sentences, and about trials, as tables, for every form of the report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from autocompile.estimate.decision import SETS, is_dearer
from autocompile.report import text as show
from autocompile.report.document import Span, Table, Text

Row = Mapping[str, Any]


def confidence(phase: Row) -> tuple[str, str, str]:
    """``high``, ``open`` or ``low``; what keeps it from being high; the command that raises it.

    All empty where nothing was decided.
    """
    best, found = phase.get("best"), phase.get("confidence")
    if not best or not found or phase["verdict"] == "failed":
        return "", "", ""
    count, why = best.get("confirmed_processes") or 0, show.plain(found.get("open") or "")
    word = found.get("word") or ("high" if found["decided"] else "open")
    if word == "high" and phase["verdict"] == "faster" and count < SETS[0]:  # an older report
        word, why = "low", f"confirmed in {count} of {SETS[0]} fresh processes"
    return word, why, show.plain(found.get("command") or "")


def weights(best: Row) -> str:
    """What was seen of the outputs, and of new weights where they were tried."""
    live = best.get("weights_live")
    follow = "" if live is None else " and follow" if live else " but do not follow"
    return "outputs match eager" + (f"{follow} weight updates" if follow else "")


def calls(best: Row) -> Iterator[str]:
    """Seconds of a call, and those of the baselines, as the ratios to them say."""
    call_s, against = best["call_s"], best.get("speedup_against_default")
    yield show.seconds(call_s)
    yield f"eager {show.seconds(call_s * best['speedup']['value'])}"
    if against:
        yield f"plain torch.compile() {show.seconds(call_s * against['value'])}"


def cost(best: Row) -> Iterator[str]:
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


def exported_warning(best: Row | None) -> list[str]:
    """A warning where exported code did worse in a fresh interpreter than was confirmed."""
    ran = (best or {}).get("exported")
    if not best or not ran or ran["agrees"]:
        return []
    if ran["speedup"] is None:
        said = f"{show.plain(ran['outcome'])} ({show.plain(ran['message'])})"
        return [f"the exported code did not work in a fresh interpreter: {said}"]
    return [
        f"the exported code gave {show.estimate(ran['speedup'])} in a fresh interpreter: its "
        f"outputs are right, but it is slower than confirmed, {show.estimate(best['speedup'])}"
    ]


def same_as(number: int, outcome: str) -> str:
    """Which trial gave the result of one that was not timed."""
    return f"same code as trial {number}" if outcome == "ok" else f"as trial {number}"


def repeats_of(trials: Iterable[Row]) -> dict[int, list[Row]]:
    """The trials that repeat another one, by its number."""
    found: dict[int, list[Row]] = {}
    for trial in trials:
        if (number := trial.get("repeats")) is not None:
            found.setdefault(number, []).append(trial)
    return found


def trial_remarks(trial: Row, repeats: Sequence[Row]) -> list[str]:
    """What a table says behind a trial's name: duplicates, repeats, graph breaks, doubts."""
    if trial.get("duplicate_of") is not None:
        return [same_as(trial["duplicate_of"], trial.get("outcome", "ok"))]
    remarks = []
    if repeats:
        good = [t["speedup"]["value"] for t in repeats if t["outcome"] == "ok" and t["speedup"]]
        ends = dict.fromkeys(f"{end(good):.2f}" for end in (min, max)) if good else ()
        text = f"repeated in {show.many(len(repeats), 'process')}"
        text += f": {' to '.join(ends)}×" if good else ""
        failed = len(repeats) - len(good)
        remarks.append(text + (f", {failed} failed" if failed else ""))
    if breaks := trial.get("graph_breaks"):
        remarks.append(show.many(breaks, "graph break"))
    return remarks + [show.plain(flag).replace("_", " ") for flag in trial.get("flags", ())]


def ties(phase: Row) -> dict[str, list[str]]:
    """Settings as fast as the best one, by the reason for that one: see ``decision.plainness``."""
    best, found = phase["best"], dict[str, list[str]]()
    by_number = {t["number"]: t for t in phase["trials"]}
    mine = best.get("compile_s")
    for number in phase.get("ties") or ():
        if number == best["number"] or not (other := by_number.get(number)):
            continue
        reason, theirs = "is simpler", other.get("compile_s")
        if mine is not None and theirs is not None and is_dearer(theirs, mine):
            reason = f"compiles faster ({show.seconds(mine)} against {show.seconds(theirs)})"
        found.setdefault(reason, []).append(show.label(other["config"]))
    return found


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


def trial_tables(phase: Row) -> Iterator[Table]:
    """Every trial of the search: those with figures, best first, then the others."""
    trials = phase["trials"]
    searched = [t for t in trials if t.get("role") == "search"]
    ranked = [t for t in searched if _is_ranked(t)]
    repeats = repeats_of(trials)
    if ranked:
        unit = show.plain(ranked[0]["throughput"].get("unit", ""))
        columns = ("#", "batch", unit, "against eager", "compile", "memory", "setting")
        rows = tuple(_measured(t, repeats.get(t["number"], ())) for t in sorted(ranked, key=_order))
        yield Table("Measured trials", columns, rows, right=range(6), wide=5)
    if others := tuple(_not_measured(t) for t in searched if not _is_ranked(t)):
        titles = ("#", "batch", "outcome", "setting and message")
        yield Table("Other trials", titles, others, right=(0, 1))


def _is_ranked(trial: Row) -> bool:
    return trial["outcome"] == "ok" and bool(trial.get("throughput"))


def _order(trial: Row) -> tuple[float, int, int]:
    """By throughput; a duplicate follows its original."""
    same, number = trial.get("duplicate_of"), trial["number"]
    return -trial["throughput"]["value"], number if same is None else same, number


def _measured(trial: Row, repeats: Sequence[Row]) -> tuple[Text, ...]:
    remarks = ", ".join(trial_remarks(trial, repeats))
    setting = Span(show.label(trial["config"]), "code")
    return (
        str(trial["number"]),
        show.or_dash(trial.get("batch_size")),
        show.measured(trial["throughput"]),
        show.ratio(trial.get("speedup")),
        show.seconds(trial.get("compile_s")),
        show.size(trial.get("peak_memory_bytes")),
        (setting, Span(f"  ({remarks})", "dim")) if remarks else setting,
    )


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
