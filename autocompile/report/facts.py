"""Facts about phases and trials, as sentences for every form of the report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from autocompile.report import text as show
from autocompile.settings.config import DEFAULT_INDUCTOR

__all__ = [
    "against_default",
    "best_facts",
    "exported_warning",
    "incomplete",
    "memory_facts",
    "not_here",
    "proof",
    "same_as",
    "sure",
    "ties",
    "trial_remarks",
    "unfinished",
]


def against_default(best: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The speed-up over plain ``torch.compile()``; None where that is the best setting itself."""
    ratio_: Mapping[str, Any] | None = best.get("speedup_against_default")
    return None if show.label(best["config"]) == DEFAULT_INDUCTOR.label() else ratio_


def unfinished(report: Mapping[str, Any]) -> str:
    """What to know first of a report of a run that is not complete; empty otherwise."""
    if report.get("running"):
        return "Still running: these are the results so far."
    if report.get("interrupted"):
        return "Interrupted: these are the results so far."
    return ""


def incomplete(report: Mapping[str, Any]) -> Iterator[str]:
    """What an interrupted run lacks, a sentence for each phase."""
    for name, phase in report["phases"].items():
        done = [t for t in phase["trials"] if t["outcome"] != "interrupted"]
        best = phase.get("best")
        if not done:
            yield f"{show.plain(name)}: no trial finished"
        elif best and not best.get("confirmed_processes"):
            yield (
                f"{show.plain(name)}: {show.many(len(done), 'trial')} finished, the best was not"
                " confirmed in fresh processes, so its speed-up may be overestimated"
            )


def sure(phase: Mapping[str, Any]) -> list[str]:
    """That nothing else is faster and how much was tried; nothing where the decision is open."""
    if not (phase.get("confidence") or {}).get("decided") or phase["verdict"] != "faster":
        return []
    reason = show.plain(phase.get("reason", "")).rstrip(".")
    tried = [f"{phase['tried']} of {phase['settings']} settings tried"] if "tried" in phase else []
    return [reason, *tried]


def not_here(report: Mapping[str, Any]) -> dict[str, str]:
    """Backends that cannot be used on this machine, each with the reason, of all phases."""
    found: dict[str, str] = {}
    for phase in report["phases"].values():
        for name, why in (phase.get("unusable") or {}).items():
            found.setdefault(show.plain(name), show.plain(why))
    return dict(sorted(found.items()))


def proof(best: Mapping[str, Any]) -> str:
    """In how many processes it was confirmed."""
    count = best.get("confirmed_processes") or 0
    return f"confirmed in {count} fresh process{'es' * (count > 1)}" if count else "not confirmed"


def best_facts(best: Mapping[str, Any]) -> Iterator[str]:
    """The facts about the best setting other than its speed-up."""
    batch = f" at batch size {best['batch_size']}" if best.get("batch_size") is not None else ""
    eager = best.get("eager_throughput")
    against = f" (eager {show.quantity(eager['value'])})" if eager else ""
    yield show.rate(best.get("throughput")) + batch + against
    if best.get("compile_s") and best["config"].get("backend") != "eager":
        warm, calls = best.get("warm_compile_s"), best.get("break_even_calls")
        compiles = f"compiles in {show.seconds(best['compile_s'])}"
        compiles += f" ({show.seconds(warm)} warm)" if warm is not None else ""
        repaid = f", repaid after {show.thousands(calls)} call{'s' * (calls != 1)}" if calls else ""
        yield compiles + repaid
    if refresh_s := best.get("refresh_s"):
        apart, least = best.get("calls_per_update"), best.get("calls_to_repay_refresh")
        cost = f"new weights cost {show.seconds(refresh_s)}"
        if apart:
            yield f"{cost} every {show.thousands(apart)} calls, which is included"
        elif least:
            yield f"{cost}: this pays if they stay the same for {show.thousands(least)} calls"
    if same := best.get("same_code"):
        yield f"{len(same)} other setting{'s have' if len(same) > 1 else ' has'} the same code"
    live = best.get("weights_live")
    follow = "" if live is None else " and follow" if live else " but do not follow"
    yield "outputs match eager" + (f"{follow} weight updates" if follow else "")
    if (ran := best.get("exported")) and ran["agrees"]:
        why = "; calls as fast, eager mode was faster in that process"
        yield f"exported code: {show.speedup(ran['speedup'])}, right{why * ran['eager_faster']}"
    yield from memory_facts(best)
    if spread := best.get("eager_call_s"):
        ends = dict.fromkeys(map(show.seconds, spread))
        yield f"eager took {' to '.join(ends)} a call, depending on the process"
    if slow := best.get("slow_sets"):
        yield f"{slow} process{'es' * (slow > 1)} left out: the machine was slower"


def exported_warning(best: Mapping[str, Any] | None) -> list[str]:
    """A warning where exported code did worse in a fresh interpreter than was confirmed."""
    ran = (best or {}).get("exported")
    if not best or not ran or ran["agrees"]:
        return []
    if ran["speedup"] is None:
        said = f"{show.plain(ran['outcome'])} ({show.plain(ran['message'])})"
        return [f"the exported code did not work in a fresh interpreter: {said}"]
    told = f"{show.speedup(ran['speedup'])} {show.interval(ran['speedup'])}"
    return [
        f"the exported code gave {told} in a fresh interpreter: its outputs are right, but it is "
        f"slower than confirmed, {show.speedup(best['speedup'])} {show.interval(best['speedup'])}"
    ]


def memory_facts(best: Mapping[str, Any]) -> Iterator[str]:
    """The peak memory of the best setting, against eager's where that is another."""
    mine, eager = best.get("peak_memory_bytes"), best.get("eager_peak_memory_bytes")
    if mine:
        is_eager = best["config"].get("backend") == "eager"
        against = f" (eager {show.size(eager)})" if eager and not is_eager else ""
        yield f"peak memory {show.size(mine)}{against}"


def same_as(number: int, outcome: str) -> str:
    """Which trial gave the result of one that was not timed."""
    return f"same code as trial {number}" if outcome == "ok" else f"as trial {number}"


def trial_remarks(trial: Mapping[str, Any], trials: Iterable[Mapping[str, Any]]) -> list[str]:
    """What a table says behind a trial's name: duplicates, repeats, graph breaks, doubts."""
    remarks = []
    if trial.get("duplicate_of") is not None:
        return [same_as(trial["duplicate_of"], trial.get("outcome", "ok"))]
    repeats = [t for t in trials if t.get("repeats") == trial["number"]]
    if repeats:
        good = [t["speedup"]["value"] for t in repeats if t["outcome"] == "ok" and t["speedup"]]
        text = f"repeated in {len(repeats)} process{'es' * (len(repeats) > 1)}"
        ends = dict.fromkeys(f"{end(good):.2f}" for end in (min, max)) if good else ()
        text += f": {' to '.join(ends)}×" if good else ""
        failed = len(repeats) - len(good)
        remarks.append(text + (f", {failed} failed" if failed else ""))
    if breaks := trial.get("graph_breaks"):
        remarks.append(show.many(breaks, "graph break"))
    return remarks + [show.plain(flag).replace("_", " ") for flag in trial.get("flags", ())]


def ties(phase: Mapping[str, Any]) -> list[str]:
    """Which trials are as fast as the best one, and why that one was chosen."""
    best, sentences = phase["best"], []
    by_number = {t["number"]: t for t in phase["trials"]}
    for number in phase.get("ties") or ():
        if number != best["number"]:
            other = by_number.get(number, {})
            setting = f" ({show.label(other['config'])})" if other else ""
            why = f"trial {best['number']} {_preferred(best, other)}"
            sentences.append(f"trial {number}{setting} is as fast, within 1 %; {why}")
    return sentences


def _preferred(best: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Why ``best`` is preferred to an equal: see ``decision.plainness``."""
    mine, theirs = best.get("compile_s"), other.get("compile_s")
    if mine is not None and theirs is not None and theirs > 1.25 * mine + 0.25:
        return f"compiles faster ({show.seconds(mine)} against {show.seconds(theirs)})"
    return "is simpler"
