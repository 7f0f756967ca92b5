"""What ``check``, ``doctor``, ``verify``, ``tune --dry-run`` and ``list`` show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from autocompile.report import text
from autocompile.report.contents import checks
from autocompile.report.document import Span, Table
from autocompile.report.terminal import Page

_Found = Mapping[str, Any]

_ANSWERS = {
    "keep_eager": "keep eager",
    "unknown": "no result yet",
    "failed": "no result",
}


def _begin(found: _Found, console: Console) -> Page:
    page = Page(console)
    if isinstance(found.get("target"), Mapping):
        page.line(f"target  {text.target_name(found['target'])}")
    page.line(f"torch   {text.machine(found['environment'])}")
    return page


def render_check(found: _Found, console: Console, verbose: bool = False) -> None:
    """For each phase: eager runs, compiled is right, and how fast it is."""
    page = _begin(found, console)
    for name, why in (found["target"].get("choices") or {}).items() if verbose else ():
        page.line(f"        {text.plain(name)}: {text.plain(why)}")
    for phase, row in found["phases"].items():
        page.line()
        page.line(phase, "bold")
        page.line("  eager      runs")
        label, style = "  compiled   ", "" if row["outcome"] == "ok" else "red"
        for line in _works_compiled(row):
            page.line(f"{label}{text.plain(line)}", style)
            label, style = " " * len(label), ""
        if row["outcome"] != "ok" and verbose:
            for line in (row["log_tail"] or "").splitlines():
                page.line(f"  | {text.plain(line)}")
    if all(row["outcome"] == "ok" for row in found["phases"].values()):
        page.line()
        page.line(f"Next    {text.plain(found['next'])}")


def _works_compiled(row: _Found) -> Iterator[str]:
    if row["outcome"] != "ok":
        yield f"{row['outcome']} in {row['step']}: {row['message']}"
        yield from [row["where"]] if row["where"] else []
        return
    counts = (row["graphs"], "graph"), (row["graph_breaks"], "graph break")
    yield f"same results as eager · {', '.join(text.many(*count) for count in counts)}"
    speed = f"{text.estimate(row['speedup'])} of eager's speed"
    yield f"{speed} · compiles in {text.seconds(row['compile_s'])}"
    yield from (f"graph break: {reason}" for reason in row["break_reasons"])
    yield from (
        f"Dynamo skipped a function: {reason}" for reason in row["skip_reasons"]
    )
    yield from row["notes"]


def render_verified(found: _Found, console: Console) -> None:
    """One line for each setting: its gain then and now, and whether it is still the best."""
    page = _begin(found, console)
    if found["differences"]:
        page.line(f"measured elsewhere: {'; '.join(found['differences'])}")
    page.table(checks(found), "")
    for line in found["unmet"]:
        page.line(f"gate: {text.plain(line)}", "red")


def render_doctor(found: _Found, console: Console, verbose: bool = False) -> None:
    """A table of backends: whether each works here; if not, why, and what to do."""
    page, rows = Page(console), []
    page.line(text.machine(found["environment"]))
    for name, row in found["backends"].items():
        modes: list[Span | str] = []
        works = Span("yes", "good") if row["works"] else Span("no", "error")
        for mode, tried in row["modes"].items():
            same = f" (= {tried['message']})" if tried["outcome"] == "same" else ""
            is_right = tried["outcome"] in ("ok", "same")
            if row["works"] and not is_right:
                works = Span("partly", "warning")
            modes += [", "] * bool(modes)
            modes.append(Span(mode + same, "" if is_right else "error"))
        why = [text.plain(row["reason"])] if row["reason"] else []
        if row["works"] and row.get("compile_s") is not None:
            why.append(f"{text.seconds(row['compile_s'])} for a first compile")
        why += [f"→ {row['todo']}"] if row["todo"] else []
        rows.append((text.plain(name), tuple(modes) or text.NONE, works, " ".join(why)))
    titles = ("backend", "modes", "works here", "why / what to do")
    page.table(Table("", titles, tuple(rows)), "")
    if verbose:
        page.line(f"torch also knows: {', '.join(map(text.plain, found['known']))}")


def render_preview(found: _Found, console: Console) -> None:
    """The settings of each phase, and what is left out and why."""
    page = _begin(found, console)
    for phase, row in found["phases"].items():
        page.line()
        page.line(phase, "bold")
        sizes: dict[str, list[str]] = {}
        for setting in row["settings"]:
            if not setting["may_equal"]:
                sizes.setdefault(setting["label"], []).append(
                    text.or_dash(setting["batch_size"])
                )
        rows = tuple(
            (text.plain(label), ", ".join(each)) for label, each in sizes.items()
        )
        page.table(Table("", ("setting", "batch sizes"), rows))
        likely = sum(bool(setting["may_equal"]) for setting in row["settings"])
        aside = (
            [f"{likely} more that may be the same as one of these"] if likely else []
        )
        aside += [
            f"{name} cannot be used: {why}" for name, why in row["unusable"].items()
        ]
        aside += [f"{name} is the same as {why}" for name, why in row["merged"].items()]
        aside += [f"left out: {why}" for why in row["dropped"]]
        for line in aside:
            page.line(f"  {text.plain(line)}", "dim")
        page.line(f"  {len(row['settings'])} settings to try")


def render_runs(rows: Sequence[_Found], console: Console) -> None:
    """One table of runs, with a row for each phase."""
    page, cells = Page(console), []
    if not rows:
        page.line("no runs yet")
        page.line("Next    autocompile tune model.py")
        return
    for row in rows:
        when = row["when"].replace("T", " ")[:16]
        head = (
            Span(row["name"], "strong"),
            when,
            text.plain(row["target"] or ""),
            row["state"],
        )
        phases = [
            (text.plain(name), _answer(own)) for name, own in row["phases"].items()
        ]
        for phase in phases or [("", text.plain(row["message"]))]:
            cells.append((*head, *phase))
            head = (Span(""), "", "", "")
    titles = ("run", "when", "target", "state", "phase", "speed-up")
    page.table(Table("", titles, tuple(cells)), "")


def _answer(phase: _Found) -> str:
    """The gain and how sure it is, or the verdict in words."""
    size, word = phase["batch_size"], phase["confidence"]
    sure = "" if word in ("high", "") else f" {word}"
    if phase["verdict"] in _ANSWERS:
        return _ANSWERS[phase["verdict"]] + sure
    at = "" if size is None else f" at batch size {size}"
    return f"{text.estimate(phase['speedup'])}{at}{sure}"
