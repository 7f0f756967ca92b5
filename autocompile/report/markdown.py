"""The report as one Markdown document, and the tables that it shares with the terminal.

Text of a trial stands in code spans, where Markdown and HTML mean nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from autocompile.report import facts as said
from autocompile.report import text as show

__all__ = [
    "batch_note",
    "batch_rows",
    "by_throughput",
    "failure_reason",
    "incomplete",
    "or_dash",
    "to_markdown",
    "why_not_lines",
]

# An underscore between letters or digits is no emphasis, so names stay readable in the source.
_SPECIAL = re.compile(r"([\\`*\[\]<>|~&#$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
_ROW = Sequence[str]
_NAMES = 3  # of settings that share a line


def to_markdown(report: Mapping[str, Any]) -> str:
    """The report as ``report.md`` holds it.

    Args:
        report: the dictionary that ``report.json`` holds.
    """
    target = report["target"]
    lines = [f"# autocompile: {_code(target.get('spec', '?'))}", ""]
    if headline := said.unfinished(report):
        lines += [f"**{headline}**", ""]
        lines += [*(f"- {_escape(sentence)}" for sentence in incomplete(report)), ""]
    summary = [_summary(name, phase) for name, phase in report["phases"].items()]
    lines += _table(("phase", "result", "speed-up", "setting"), summary, right=(2,))
    if not_here := said.not_here(report):
        names = ", ".join(f"{_code(n)} ({_escape(why)})" for n, why in not_here.items())
        lines += [f"Not on this machine: {names} → `autocompile doctor`", ""]
    for name, phase in report["phases"].items():
        lines += _phase(name, phase)
    lines += _circumstances(report)
    for name, code in (report.get("exports") or {}).items():
        lines += [f"## For {_escape(name)}", "", *_fenced(str(code), name), ""]
    return "\n".join(lines).rstrip() + "\n"


def _code(text: object) -> str:
    """A code span that holds ``text`` whatever it is, also inside a table."""
    line = show.plain(text) or " "
    fence = "`" * (max(map(len, re.findall("`+", line)), default=0) + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def _escape(text: object) -> str:
    """Prose of which no character means anything to Markdown or HTML."""
    return _SPECIAL.sub(r"\\\1", show.plain(text))


def _fenced(code: str, name: str) -> list[str]:
    runs = [len(run) for run in re.findall("`+", code)]
    fence = "`" * max(3, max(runs, default=0) + 1)
    lines = [show.printable(line) for line in code.splitlines()]
    return [f"{fence}{'json' if name == 'json' else 'python'}", *lines, fence]


def _table(titles: _ROW, rows: Iterable[_ROW], right: Sequence[int] = ()) -> list[str]:
    """A table; a pipe inside a cell is escaped, which GFM asks for in code spans too."""
    rule = ["--:" if i in right else ":--" for i in range(len(titles))]
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (list(titles), rule, *cells)] + [""]


def _summary(name: str, phase: Mapping[str, Any]) -> _ROW:
    best = phase.get("best")
    if phase["verdict"] == "failed" or not best:
        word = "pending" if phase.get("state") else "failed"
        return (_code(name), word, show.NONE, show.NONE)
    if phase["verdict"] == "keep_eager":
        return (_code(name), "keep eager", show.speedup(1.0), _code("eager"))
    ratio = f"{show.speedup(best['speedup'])} {show.interval(best['speedup'])}"
    return (_code(name), "**faster**", ratio, _code(show.label(best["config"])))


def _phase(name: str, phase: Mapping[str, Any]) -> Iterator[str]:
    role = f" ({_escape(phase['role'])})" if phase.get("role") else ""
    yield f"## {_escape(name)}{role}"
    yield ""
    yield from _verdict(phase)
    yield from (f"- Why: {_escape(why)}" for why in phase.get("explanation") or ())
    for settings, reason in why_not_lines(phase, None):
        yield f"- Not {_code(settings)}: {_escape(reason)}"
    for note in (*((phase.get("best") or {}).get("notes") or ()), *(phase.get("notes") or ())):
        yield f"- Note: {_escape(note)}"
    yield ""
    if rows := batch_rows(phase):
        unit = ((phase.get("best") or {}).get("throughput") or {}).get("unit")
        yield from ([f"Throughput in {_escape(unit)}:", ""] if unit else [])
        yield from _table(rows[0], rows[1:], right=range(5))
        yield from ([batch_note(phase), ""] if batch_note(phase) else [])
    yield from _failures(phase)
    yield from _trials(phase)


def _verdict(phase: Mapping[str, Any]) -> Iterator[str]:
    best, reason = phase.get("best"), _escape(phase.get("reason", "")).rstrip(".")
    if phase["verdict"] == "failed" or not best:
        word = "Pending" if phase.get("state") else "Failed"
        yield f"**{word}:** {reason or 'no trial finished'}."
        return
    if phase["verdict"] == "keep_eager":
        yield f"**Keep eager:** {reason}."
        yield ""
        yield f"- eager runs at {_escape(show.rate(best.get('throughput')))}"
        yield from (f"- {fact}" for fact in said.memory_facts(best))
        yield from _open(phase)
        return
    proof = f"trial {best['number']}, {said.proof(best)}"
    yield f"**Best:** {_code(show.label(best['config']))} ({proof})"
    yield ""
    for value, other in (
        (best["speedup"], "eager"),
        (said.against_default(best), "plain `torch.compile()`"),
    ):
        if value:
            yield f"- {show.speedup(value)} {show.interval(value)} against {other}"
    yield from (f"- {_escape(fact)}" for fact in said.best_facts(best))
    yield from (f"- {_escape(tie)}" for tie in said.ties(phase))
    yield from _open(phase)
    if sure := said.sure(phase):
        yield f"- Sure: {_escape('; '.join(sure))}"


def _open(phase: Mapping[str, Any]) -> Iterator[str]:
    if doubt := said.confidence(phase):
        yield f"- Open: {_escape(doubt)}"


def _failures(phase: Mapping[str, Any]) -> Iterator[str]:
    """What failed, what was known beforehand and so not tried, and what was no setting to try."""
    groups = phase.get("failures") or ()
    rows: tuple[list[tuple[str, ...]], ...] = ([], [])
    for g in groups:
        log = _code(g["log"]) if g.get("log") else show.NONE
        message = _code(g["message"]) if g.get("message") else show.NONE
        row = (str(g["count"]), _code(g["backend"]), _escape(g["outcome"]), message, log)
        rows[bool(g.get("answered"))].append(row)
    titles = ("count", "backend", "outcome", "message", "log")
    for name, some in zip(("What failed", "What was not tried"), rows, strict=True):
        if some:
            yield from (f"### {name}", "", *_table(titles, some, right=(0,)))
    if dropped := phase.get("dropped"):
        yield from ("### What was left out", "")
        reasons = ((str(count), _escape(reason)) for reason, count in dropped.items())
        yield from _table(("settings", "why"), reasons, right=(0,))


def _trials(phase: Mapping[str, Any]) -> Iterator[str]:
    trials = phase["trials"]
    ranked = by_throughput(trials)
    yield "### All trials"
    yield ""
    unit = _escape(ranked[0]["throughput"].get("unit", "")) if ranked else "throughput"
    rows = []
    for t in [*ranked, *(t for t in trials if t.get("role") == "search" and t not in ranked)]:
        figures = (show.NONE,) * 4
        remarks = _escape(", ".join(said.trial_remarks(t, trials)))
        if t in ranked:
            value, ratio = (show.read_interval(t.get(k)) for k in ("throughput", "speedup"))
            memory = show.size(t.get("peak_memory_bytes"))
            compiled = show.seconds(t.get("compile_s"))
            figures = (show.measured(value), show.ratio(ratio), compiled, memory)
        else:
            remarks = f"{_escape(t['outcome'])}: {_code(failure_reason(t))}"
        name = _code(show.label(t["config"]))
        rows.append((str(t["number"]), or_dash(t.get("batch_size")), *figures, name, remarks))
    titles = ("#", "batch", unit, "against eager", "compile", "memory", "setting", "remarks")
    yield from _table(titles, rows, right=range(6))


def _circumstances(report: Mapping[str, Any]) -> Iterator[str]:
    target = report["target"]
    yield "## How it was measured"
    yield ""
    yield (
        "Blocks of eager and compiled calls alternate in one process, so that drift of the machine"
        " cancels; the speed-up in a process is the Hodges-Lehmann estimate of their log ratios."
    )
    best = [p["best"] for p in report["phases"].values() if p.get("best")]
    if any(b.get("confirmed_processes") for b in best):
        yield (
            "The best settings were timed again side by side in fresh processes: the speed-up is"
            " their mean over processes, with a 95 % t interval."
        )
    yield "A setting counts as faster if its whole interval is, and its estimate by more than 1 %."
    yield ""
    facts = [("target", show.target_name(target)), ("run", report.get("run_dir", ""))]
    facts += (target.get("choices") or {}).items()
    facts += [
        (k, report[k])
        for k in ("effort", "objective", "seed", "tolerance")
        if report.get(k) is not None
    ]
    facts += [("duration", show.seconds(report.get("wall_s")))]
    facts += [(k, v) for k, v in report["environment"].items() if v is not None]
    yield from _table(("", ""), ((_escape(k), _code(v)) for k, v in facts))


def by_throughput(trials: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The trials of a search that have a figure, best first; a duplicate follows its original."""
    found = [t for t in trials if t.get("role") == "search" and t["outcome"] == "ok"]
    found = [t for t in found if t.get("throughput")]
    return sorted(
        found,
        key=lambda t: (
            -t["throughput"]["value"],
            t["duplicate_of"] if t.get("duplicate_of") is not None else t["number"],
            t["number"],
        ),
    )


def incomplete(report: Mapping[str, Any]) -> list[str]:
    """What an interrupted run did not come to, a sentence for each phase."""
    sentences = []
    for name, phase in report["phases"].items():
        done = [t for t in phase["trials"] if t["outcome"] != "interrupted"]
        best = phase.get("best")
        if not done:
            sentences.append(f"{show.plain(name)}: no trial finished")
        elif best and not best.get("confirmed_processes"):
            count = f"{len(done)} trial{'s' if len(done) > 1 else ''}"
            sentences.append(
                f"{show.plain(name)}: {count} finished, the best was not confirmed in fresh"
                " processes, so its figures flatter it"
            )
    return sentences


def batch_rows(phase: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The table by batch size in the form of RLlib's benchmark, titles first; empty if none."""
    titles = ("batch size", "no compile throughput", "compiled throughput", "speedup", "trial")
    rows = [
        (
            or_dash(row.get("batch_size")),
            or_dash(row.get("eager_throughput"), ".1f"),
            or_dash(row.get("best_throughput"), ".1f"),
            show.gain(row.get("speedup")),
            f"{or_dash(row.get('number'))}{_mark(row)}",
        )
        for row in phase.get("by_batch_size") or ()
    ]
    return [titles, *rows] if rows else []


def batch_note(phase: Mapping[str, Any]) -> str:
    """What the mark in :func:`batch_rows` says; empty where no row has it."""
    is_marked = any(map(_mark, phase.get("by_batch_size") or ()))
    return "† one process, not confirmed" if is_marked else ""


def _mark(row: Mapping[str, Any]) -> str:
    return "" if row.get("confirmed_processes", 1) else " †"


def why_not_lines(phase: Mapping[str, Any], most: int | None) -> list[tuple[str, str]]:
    """Settings that lose and the reason that they share; ``most`` lines, with None all of them."""
    lines = []
    for row in (phase.get("why_not") or ())[:most]:
        names = [show.plain(name) for name in row["settings"]]
        more = "" if most is None or len(names) <= _NAMES else f" and {len(names) - _NAMES} more"
        shown = names if not more else names[:_NAMES]
        lines.append((f"{', '.join(shown)}{more}", show.plain(row["reason"])))
    return lines


def failure_reason(trial: Mapping[str, Any]) -> str:
    """What a trial without figures says for itself."""
    if (same := trial.get("duplicate_of")) is not None:
        return said.same_as(same, trial["outcome"])
    return show.plain(trial.get("message", "")) or f"in step {show.plain(trial.get('step', '?'))}"


def or_dash(value: float | None, form: str = "") -> str:
    """A number, or a dash where there is none."""
    return "-" if value is None else format(value, form)
