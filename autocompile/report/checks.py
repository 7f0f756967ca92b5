"""What ``check``, ``doctor``, ``verify``, ``tune --dry-run`` and ``list`` show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from autocompile.report import text
from autocompile.report.contents import checks
from autocompile.report.document import Span, Table, Text
from autocompile.report.terminal import Page

_Found = Mapping[str, Any]

_WORKS = ("ok", "same")  # outcomes of a mode; same: as another one
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
    choices = found["target"].get("choices") or {}
    if verbose:
        for name, why in choices.items():
            page.line(f"        {text.plain(name)}: {text.plain(why)}")
    for phase, row in found["phases"].items():
        page.line()
        page.line(phase, "bold")
        first, *others = ["runs", *_eager_call(row["eager_call"] or {})]
        page.line(f"  eager      {first}")
        for line in others:
            page.line(f"             {text.plain(line)}")
        _draw_compiled(page, row, verbose)
    if all(row["outcome"] == "ok" for row in found["phases"].values()):
        page.line()
        page.line(f"Next    {text.plain(found['next'])}")


def _eager_call(seen: _Found) -> Iterator[str]:
    """Where the time of an eager call goes, a sentence each."""
    if "operators" in seen and "longest" in seen:
        operators = text.many(seen["operators"], "operator")
        share = f"{seen['longest_share']:.0%}"
        yield f"a call is {operators}; on the CPU {share} of their time is in {seen['longest']}"
    if "busy_share" in seen:
        kernels = text.many(seen["kernels"], "kernel")
        share = f"{seen['busy_share']:.0%}"
        yield f"the GPU is busy for {share} of a call, with {kernels} and copies"
    if waits := seen.get("waits"):
        places = ", ".join(f"{place} ({count}x)" for place, count in waits.items())
        yield f"the host waits for the GPU at {places}"


def _draw_compiled(page: Page, row: _Found, verbose: bool) -> None:
    """What became of the compiled phase; ``verbose``: with the end of the log where it failed."""
    is_right = row["outcome"] == "ok"
    first, *others = _works_compiled(row)
    page.line(f"  compiled   {text.plain(first)}", "" if is_right else "red")
    for line in others:
        page.line(f"             {text.plain(line)}")
    if verbose and not is_right:
        for line in (row["log_tail"] or "").splitlines():
            page.line(f"  | {text.plain(line)}")


def _works_compiled(row: _Found) -> Iterator[str]:
    if row["outcome"] != "ok":
        yield f"{row['outcome']} in {row['step']}: {row['message']}"
        if row["where"]:
            yield row["where"]
        if row["outcome"] == "compile_error":
            yield "→ autocompile doctor   (what works on this machine)"
        return
    graphs = text.many(row["graphs"], "graph")
    breaks = text.many(row["graph_breaks"], "graph break")
    yield f"same results as eager · {graphs}, {breaks}"
    speed = f"{row['speedup']['value']:.2f}× of eager's speed, in one process"
    yield f"{speed} · compiles in {text.seconds(row['compile_s'])}"
    for each in row["breaks"]:
        code = f" `{each['code']}`" if each["code"] else ""
        # Without a place it is torch's own, as in an optimizer's step.
        if each["place"]:
            yield f"graph break at {each['place']}{code}: {each['reason']}"
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
    page = Page(console)
    page.line(text.machine(found["environment"]))
    rows = [_backend_cells(name, row) for name, row in found["backends"].items()]
    titles = ("backend", "modes", "works here", "why / what to do")
    page.table(Table("", titles, tuple(rows)), "")
    devices = {"gloo": "CPU core", "nccl": "GPU"}
    ways = [
        f"{name} ({text.many(count, devices[name])})"
        for name, count in found["collectives"].items()
        if name in devices
    ]
    if ways:
        page.line(f"several ranks (tune --ranks): {', '.join(ways)}")
    if verbose:
        page.line(f"torch also knows: {', '.join(map(text.plain, found['known']))}")


def _backend_cells(name: str, row: _Found) -> tuple[Text, ...]:
    modes: list[Span | str] = []
    works = Span("yes", "good") if row["works"] else Span("no", "error")
    for mode, tried in row["modes"].items():
        is_right = tried["outcome"] in _WORKS
        if row["works"] and not is_right:
            works = Span("partly", "warning")
        if modes:
            modes.append(", ")
        same = f" (= {tried['message']})" if tried["outcome"] == "same" else ""
        modes.append(Span(mode + same, "" if is_right else "error"))
    why: list[str] = []
    if row["reason"]:
        why.append(text.plain(row["reason"]))
    if row["works"] and row.get("compile_s") is not None:
        why.append(f"{text.seconds(row['compile_s'])} for a first compile")
    if row["todo"]:
        why.append(f"→ {row['todo']}")
    return text.plain(name), tuple(modes) or text.NONE, works, " ".join(why)


def render_preview(found: _Found, console: Console) -> None:
    """The settings of each phase, and what is left out and why."""
    page = _begin(found, console)
    for phase, row in found["phases"].items():
        page.line()
        page.line(phase, "bold")
        page.table(Table("", ("setting", "batch sizes"), _sizes_of_settings(row)))
        for line in _aside(row):
            page.line(f"  {text.plain(line)}", "dim")
        page.line(f"  {len(row['settings'])} settings to try")


def _sizes_of_settings(row: _Found) -> tuple[tuple[str, str], ...]:
    """Each setting that is sure to be another than the rest, with its batch sizes."""
    sizes: dict[str, list[str]] = {}
    for setting in row["settings"]:
        if setting["may_equal"]:
            continue
        size = text.or_dash(setting["batch_size"])
        sizes.setdefault(setting["label"], []).append(size)
    return tuple((text.plain(label), ", ".join(each)) for label, each in sizes.items())


def _aside(row: _Found) -> Iterator[str]:
    """What is not in the list of settings, and why."""
    likely = sum(bool(setting["may_equal"]) for setting in row["settings"])
    if likely:
        yield f"{likely} more that may be the same as one of these"
    for name, why in row["unusable"].items():
        yield f"{name} cannot be used: {why}"
    for name, other in row["merged"].items():
        yield f"{name} is the same as {other}"
    for why in row["dropped"]:
        yield f"left out: {why}"


def render_runs(rows: Sequence[_Found], console: Console) -> None:
    """One table of runs, with a row for each phase."""
    page = Page(console)
    if not rows:
        page.line("no runs yet")
        page.line("Next    autocompile tune model.py")
        return
    cells: list[tuple[Text, ...]] = []
    for row in rows:
        when = row["when"].replace("T", " ")[:16]  # to the minute
        name, target = Span(row["name"], "strong"), text.plain(row["target"] or "")
        head: tuple[Text, ...] = (name, when, target, row["state"])
        phases = [(text.plain(n), _answer(own)) for n, own in row["phases"].items()]
        for phase in phases or [("", text.plain(row["message"]))]:
            cells.append((*head, *phase))
            # Once: the phases below are of the same run.
            head = ("", "", "", "")
    titles = ("run", "when", "target", "state", "phase", "speed-up")
    page.table(Table("", titles, tuple(cells)), "")


def _answer(phase: _Found) -> str:
    """The gain and how sure it is, or the verdict in words."""
    size, word = phase["size"], phase["confidence"]
    sure = "" if word in ("high", "") else f" {word}"
    if phase["verdict"] in _ANSWERS:
        return _ANSWERS[phase["verdict"]] + sure
    at = f" at {size}" if size else ""
    return f"{text.estimate(phase['speedup'])}{at}{sure}"
