"""What ``check``, ``doctor``, ``verify``, ``tune --dry-run``, ``list`` and ``compare`` show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console

from autocompile.report import text
from autocompile.report.document import Document, Span, Table
from autocompile.report.facts import checks
from autocompile.report.terminal.answer import Page

Found = Mapping[str, Any]

_ANSWERS = {"keep_eager": "keep eager", "failed": "no result", None: "no report yet"}


def _begin(found: Found, console: Console) -> Page:
    page = Page(console)
    if isinstance(found.get("target"), Mapping):
        page.line(f"target  {text.target_name(found['target'])}")
    page.line(f"torch   {text.machine(found['environment'])}")
    return page


def render_check(found: Found, console: Console, verbose: bool = False) -> None:
    """One line for each phase: eager runs, compiled is right, and how fast it is."""
    page = _begin(found, console)
    for name, why in (found["target"].get("choices") or {}).items() if verbose else ():
        page.line(f"        {text.plain(name)}: {text.plain(why)}")
    for phase, row in found["phases"].items():
        page.line()
        page.line(phase, "bold")
        page.line("  eager      runs")
        if row["outcome"] == "ok":
            label = "  compiled   "
            for line in _works_compiled(row):
                page.line(f"{label}{text.plain(line)}")
                label = " " * len(label)
            continue
        seen = f"{row['outcome']} in {row['step']}: {text.plain(row['message'])}"
        page.line(f"  compiled   {seen}", "red")
        if row["where"]:
            page.line(f"             {text.plain(row['where'])}")
        for line in (row["log_tail"] or "").splitlines() if verbose else ():
            page.line(f"  | {text.plain(line)}")
    if all(row["outcome"] == "ok" for row in found["phases"].values()):
        page.line()
        page.line(f"Next    {text.plain(found['next'])}")


def _works_compiled(row: Found) -> Iterator[str]:
    counts = (row["graphs"], "graph"), (row["graph_breaks"], "graph break")
    yield f"same results as eager · {', '.join(text.many(*count) for count in counts)}"
    speed = f"{text.estimate(row['speedup'])} of eager's speed"
    yield f"{speed} · compiles in {text.seconds(row['compile_s'])}"
    yield from (f"graph break: {reason}" for reason in row["break_reasons"])
    yield from (f"Dynamo skipped a function: {reason}" for reason in row["skip_reasons"])
    yield from row["notes"]


def render_verified(found: Found, console: Console) -> None:
    """One line for each setting: its gain then and now, and whether it is still the best."""
    page = _begin(found, console)
    if found["differences"]:
        page.line(f"measured elsewhere: {'; '.join(found['differences'])}")
    page.table(checks(found), "")
    for line in found["unmet"]:
        page.line(f"gate: {text.plain(line)}", "red")


_IN_ALGORITHM: dict[str, tuple[str, Callable[[float], str]]] = {
    "steps_per_s": ("env steps/s of train()", text.quantity),
    "sampled_per_s": ("env steps/s of sampling", text.quantity),
    "update_s": ("a gradient update", text.seconds),
    "forward_share": ("forward in sampling", lambda share: f"{share * 100:.0f} %"),
}


def render_in_algorithm(found: Found, console: Console) -> None:
    """One line for each figure: without the settings, with them, and the gain."""
    page, rows = Page(console), []
    for name, row in found["figures"].items():
        label, show = _IN_ALGORITHM[name]
        sides = [text.read_interval(row[side]) for side in ("untouched", "tuned")]
        cells = [f"{show(one.value)} {text.percent(one.half_width)}" for one in sides if one]
        gain = row.get("gain")
        rows.append((label, *cells, text.estimate(gain) if gain else ""))
    page.line(f"target  {text.plain(found['target'])}")
    page.line(f"        {len(found['rounds'])} iterations of each, in turns")
    page.table(Table("", ("in the algorithm", "untouched", "tuned", "gain"), tuple(rows)), "")
    for note in found["notes"]:
        page.line(text.plain(note))


def render_table(shown: Document, console: Console, verbose: bool = False) -> None:
    """One table over machines: the answers, by batch size, and in full every setting."""
    page = Page(console)
    if shown.status:
        page.line(shown.status, "bold red")
    if verbose:
        page.table(shown.circumstances)
        page.line()
    page.table(shown.answer, "")
    for section in shown.sections:
        page.line()
        page.line(section.title, "bold")
        page.blocks((*section.blocks, *(section.trials if verbose else ())))


def render_doctor(found: Found, console: Console, verbose: bool = False) -> None:
    """A table of backends: whether each works here; if not, why, and what to do."""
    page = Page(console)
    page.line(text.machine(found["environment"]))
    titles = ("backend", "modes", "works here", "why / what to do")
    rows = []
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
    page.table(Table("", titles, tuple(rows)), "")
    if verbose:
        page.line(f"torch also knows: {', '.join(map(text.plain, found['known']))}")


def render_preview(found: Found, console: Console) -> None:
    """The settings of each phase, and what is left out and why."""
    page = _begin(found, console)
    for phase, row in found["phases"].items():
        page.line()
        page.line(phase, "bold")
        for line in _settings(row["settings"]):
            page.line(line)
        aside = [f"{name} cannot be used: {why}" for name, why in row["unusable"].items()]
        aside += [f"{name} is the same as {why}" for name, why in row["merged"].items()]
        aside += [f"left out: {why}" for why in row["dropped"]]
        for line in (*aside, _of_dynamo(row["dynamo"])):
            page.line(f"  {text.plain(line)}", "dim")
        until = " until the budget is spent" if row["ends_early"] else ""
        about = f"about {text.clock(row['predicted_s'])}, then the best is confirmed"
        page.line(f"  {len(row['settings'])} settings to try{until}, {about}")


def _of_dynamo(traced: Found) -> str:
    """What a trace of the phase says of graphs, and so of ``fullgraph``."""
    if error := traced.get("error"):
        return f"a trace by Dynamo alone failed: {error}"
    graphs, count = traced.get("graphs"), traced.get("graph_breaks")
    if not count:
        if graphs == 1 and not traced.get("skipped_frames"):
            return "Dynamo makes one graph of it: fullgraph will do"
        return f"Dynamo makes {graphs} graphs of it and skips some code: fullgraph will fail"
    places = [f"{b['place']} ({b['reason']})" for b in traced["breaks"] if b.get("place")][:1]
    often = "once" if count == 1 else f"{count} times"
    where = f", {'at' if count == 1 else 'first at'} {places[0]}" if places else ""
    return f"Dynamo breaks the graph {often}{where}: fullgraph will fail"


def _settings(settings: list[Found]) -> Iterator[str]:
    """A line for each setting, with the number of settings that are likely the same."""
    sizes: dict[str, list[str]] = {}
    answered: Counter[str] = Counter()
    twins = {s["label"]: s["may_equal"][0] for s in settings if s["may_equal"]}
    for setting in settings:
        if setting["label"] not in twins:
            size = setting["batch_size"]
            sizes.setdefault(setting["label"], []).append("" if size is None else str(size))
    for label in twins:
        while label in twins:
            label = twins[label]
        answered[label] += 1
    width = max(map(len, sizes), default=0)
    for label, each in sizes.items():
        batches = f"batch {', '.join(each)}" if any(each) else ""
        more = f"+ {answered[label]} likely the same" if answered[label] else ""
        yield f"  {label:<{width}}  {batches:<16}{more}"


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of as many cells each as lines, every column as wide as its widest cell."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    return [
        "   ".join(c + " " * (w - cell_len(c)) for c, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def render_runs(rows: Sequence[Found], console: Console) -> None:
    """A line for each run, and below it one for each of its phases."""
    page = Page(console)
    if not rows:
        page.line("no runs yet")
        page.line("Next    autocompile tune model.py")
    heads = _columns([(r["name"], *_when(r), text.plain(r["target"] or "")) for r in rows])
    phases = _columns([(text.plain(n), _answer(p)) for r in rows for n, p in r["phases"].items()])
    for row, head in zip(rows, heads, strict=True):
        why = f": {text.plain(row['message'])}" if row["message"] else ""
        state = "" if row["state"] == "done" else f"   {row['state']}{why}"
        page.line(head + state, "bold")
        for _ in row["phases"]:
            page.line(f"  {phases.pop(0)}")


def _when(row: Found) -> tuple[str, str]:
    date, _, clock = row["when"].partition("T")
    return date, clock[:5]


def _answer(phase: Found) -> str:
    if phase["verdict"] != "faster":
        return _ANSWERS.get(phase["verdict"], text.plain(phase["verdict"]))
    size = phase["batch_size"]
    return text.estimate(phase["speedup"]) + ("" if size is None else f" at batch size {size}")


def render_comparison(found: Found, console: Console) -> None:
    """The two runs, what differs around them, and a table for each phase."""
    page = Page(console)
    runs = [(key.upper(), found[key]) for key in "ab"]
    names = [(key, text.plain(r["name"]), text.machine(r["environment"])) for key, r in runs]
    for line in _columns(names):
        page.line(line)
    for row in found["differences"]:
        page.line(f"differs: {row['what']} {text.plain(row['a'])} → {text.plain(row['b'])}")
    rows = [row for phase in found["phases"].values() for row in phase]
    titles = ("  batch size", "A", "B", "B against A")
    head, *lines = _columns([titles, *(line for row in rows for line in _changes(row))])
    for phase, own in found["phases"].items():
        page.line()
        page.line(text.plain(phase), "bold")
        page.line(head, "dim")
        for _ in own:
            page.line(lines.pop(0))
            page.line(lines.pop(0), "dim")
    for key in "ab":
        if alone := found["only_in"][key]:
            page.line(f"only in {key.upper()}: {', '.join(map(text.plain, alone))}")
    page.line()
    page.line("Speed-ups are over the eager mode of the same run, with 95 % intervals;")
    page.line("where the intervals overlap there is no clear change.")


def _changes(row: Found) -> tuple[Sequence[str], Sequence[str]]:
    """Speed-ups and their change; below them what gets done in a second, and the settings."""
    sides = (row["a"], row["b"])
    size = text.NONE if row["batch_size"] is None else str(row["batch_size"])
    if row["change"] is None:
        change = "in one only"
    else:
        change = "no clear change" if row["overlap"] else text.estimate(row["change"])
    settings = dict.fromkeys(text.plain(side["setting"]) for side in sides if side)
    rates = (f"{text.quantity(s['throughput'])}/s" if s else "" for s in sides)
    speedups = (text.estimate(side["speedup"]) if side else text.NONE for side in sides)
    return (f"{size:>12}", *speedups, change), ("", *rates, " → ".join(settings))
