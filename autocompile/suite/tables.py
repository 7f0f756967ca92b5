"""A suite as one document, as CSV and as Markdown, and what differs from an earlier one."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator
from statistics import NormalDist

from autocompile.report import text as show
from autocompile.report.document import (
    Document,
    Line,
    Section,
    Span,
    Table,
    Text,
    spans,
)
from autocompile.store.report import Tried
from autocompile.suite.rows import Row, Suite

_TITLES = (
    "model",
    "batch",
    "eager",
    "compile()",
    "best",
    "setting",
    "compile",
    "breaks",
    "memory",
)
_RIGHT = (1, 2, 3, 4, 7)
_MARKS = re.compile(r"[\\`*_{}\[\]()<>#|!~]")  # of Markdown
_METHOD = "Each model has a run of its own; its report says how it was measured."
_ANSWER = ("", "rows", "right", "geometric mean")
_LONG = 48  # characters of a model's name with its options


def suite_document(suite: Suite, earlier: Suite | None = None) -> Document:
    """The rows of a suite by phase; with an ``earlier`` one also what differs from it."""
    phases = dict.fromkeys(row.phase for row in suite.rows)
    sections = [_section(phase, suite) for phase in phases]
    whole = [*_whole(suite), *(_changes(suite, earlier) if earlier else ())]
    missing = len(
        {r.run for r in suite.rows} - {r.run for r in suite.rows if r.is_known}
    )
    status = (
        f"{show.many(missing, 'run')} of {len(suite.members)} models and phases "
        if missing
        else ""
    )
    status += f"{'has' if missing == 1 else 'have'} no result yet. " if missing else ""
    goes_on = "autocompile suite --resume --budget 1h goes on with the last suite."
    about = [
        (show.plain(k), show.plain(v))
        for k, v in suite.environment.items()
        if v is not None
    ]
    return Document(
        title=("autocompile suite: ", Span(show.plain(suite.name), "code")),
        status=status + goes_on if missing or suite.interrupted else "",
        answer=Table("", _ANSWER, tuple(_summary(suite)), right=(1, 2, 3)),
        sections=tuple(sections),
        whole=tuple(whole),
        method=_METHOD,
        circumstances=Table("Circumstances", ("", ""), tuple(about)),
    )


def _summary(suite: Suite) -> Iterator[tuple[Text, ...]]:
    """As dynamo's runner has it: pass rate and geometric mean."""
    for title, best in (("plain torch.compile()", False), ("the best of each", True)):
        mean, share = suite.geometric_mean(best), suite.share_right(best)
        if share is not None and (best or any(row.plain for row in suite.rows)):
            gain = show.NONE if mean is None else show.speedup(mean)
            yield (
                Span(title, "strong"),
                str(len(suite.rows_with(best))),
                f"{share:.0%}",
                gain,
            )
    if (one := suite.best_for_all()) is not None:
        setting = ("one for all: ", Span(show.label(one[0]), "code"))
        yield (
            setting,
            str(sum(bool(row.settings) for row in suite.rows)),
            "",
            show.speedup(one[1]),
        )


def _whole(suite: Suite) -> Iterator[Line]:
    slow = [row for row in suite.rows if row.plain and row.plain.is_right]
    slow = [row for row in slow if row.gain(False).high < 1]
    if slow:
        names = ", ".join(dict.fromkeys(_model(row) for row in slow))
        yield Line("Slower than eager with plain torch.compile()", (names,))
    wrong = [row for row in suite.rows if row.plain and not row.plain.is_right]
    for row in wrong:
        assert row.plain
        facts = (f"{_model(row)}, {row.phase}: {_outcome(row.plain)}",)
        yield Line("Fails with plain torch.compile()", facts, "warning")


def _outcome(tried: Tried) -> str:
    message = show.shorten(show.plain(tried.message), 160)
    return f"{tried.outcome.value}: {message}" if message else tried.outcome.value


def _model(row: Row) -> str:
    """The model without its library; of long options the first, and how they differ at the end."""
    name = show.plain(row.target)
    library, _, model = name.partition(":")
    name = model if library.isalpha() and model else name
    return name if len(name) <= _LONG else f"{name[: _LONG - 9]}…{name[-8:]}"


def _section(phase: str, suite: Suite) -> Section:
    rows = [row for row in suite.rows if row.phase == phase]
    table = Table("", _TITLES, tuple(map(_cells, rows)), right=_RIGHT)
    return Section(
        show.plain(phase) or "no result", (), (table, *_by_setting(rows, suite)), ()
    )


def _cells(row: Row) -> tuple[Text, ...]:
    head = _model(row), show.or_dash(row.batch_size), show.seconds(row.eager_call_s)
    plain: Text = show.NONE
    if row.plain:
        is_right = row.plain.is_right
        plain = _gain(row.plain) if is_right else Span(row.plain.outcome.value, "error")
    breaks = show.or_dash(row.plain.graph_breaks if row.plain else None)
    if row.best is None:
        none: Text = Span("no result", "error") if row.is_known else ""
        return (*head, plain, none, show.plain(row.message), "", breaks, "")
    sure = "" if row.confidence == "high" else f" {show.plain(row.confidence)}"
    best: Text = f"keep eager{sure}"
    setting: Text = "eager"
    if row.verdict != "keep_eager":
        kind = "good" if row.verdict == "faster" else "warning"
        best = (Span(_gain(row.best), kind), sure)
        setting = Span(show.label(row.best.config), "code")
    saved = ""
    if row.best.peak_memory_bytes and row.eager_peak_memory_bytes:
        saved = show.speedup(row.best.peak_memory_bytes / row.eager_peak_memory_bytes)
    return (
        *head,
        plain,
        best,
        setting,
        show.seconds(row.best.compile_s),
        breaks,
        saved,
    )


def _gain(tried: Tried) -> str:
    return show.estimate(tried.speedup) if tried.speedup else show.NONE


def _by_setting(rows: list[Row], suite: Suite) -> Iterator[Table]:
    """Each setting by model and batch size; of given settings only."""
    if not suite.fixed:
        return
    for row in filter(lambda row: row.settings, rows):
        title = f"{_model(row)}, batch size {show.or_dash(row.batch_size)}"
        cells = []
        for tried in row.settings:
            beside = tried.eager_call_s or row.eager_call_s
            eager = 1 / beside if beside else None
            rate = 1 / tried.call_s if tried.call_s else None
            change: Text = Span(_outcome(tried), "error")
            if tried.is_right and tried.speedup:
                change = f"{tried.speedup.value - 1:+.1%}"
            label = Span(show.label(tried.config), "code")
            cells.append((label, show.quantity(eager), show.quantity(rate), change))
        titles = ("setting", "no compile throughput", "compiled throughput", "speedup")
        yield Table(title, titles, tuple(cells), right=(1, 2))


# --- against an earlier one ---------------------------------------------------------------------


def differences(now: Suite, earlier: Suite) -> dict[str, list[str]]:
    """What became slower or faster by more than the noise, what broke and what works now.

    Speed-ups over eager mode are compared, so that another machine is no difference by itself; the
    more there are, the larger a difference has to be. What the earlier one had and this one has
    not is missing: a setting of a backend that is not here, a row without a run.
    """
    words = ("slower", "broke", "missing", "faster", "works now")
    found: dict[str, list[str]] = {word: [] for word in words}
    pairs = list(_pairs(now, earlier))
    normal = NormalDist()
    wide = normal.inv_cdf(1 - 0.025 / max(1, len(pairs))) / normal.inv_cdf(0.975)
    for name, old, new in pairs:
        if isinstance(new, str):
            found["broke"].append(f"{name}: {new}" if new else name)
        elif new is None:
            found["missing"].append(name)
        elif not new.is_right:
            if old is not None and old.is_right:
                found["broke"].append(f"{name}: {_outcome(new)}")
        elif old is None or not old.is_right:
            found["works now"].append(name)
        elif word := _moved(old, new, wide):
            both = f"{show.speedup(old.speedup)} → {show.speedup(new.speedup)}"
            found[word].append(f"{name}: {both}")
    return found


def _moved(old: Tried, new: Tried, wide: float) -> str:
    """``slower`` or ``faster`` where a speed-up changed by more than ``wide`` intervals."""
    change = new.against(old)
    room = (change.high if change.value < 1 else change.low) / change.value
    if abs(math.log(change.value)) <= wide * abs(math.log(room)):
        return ""
    return "slower" if change.value < 1 else "faster"


def is_comparable(now: Suite, earlier: Suite) -> bool:
    """Whether anything of the earlier suite has a result that this one can be held against."""
    return any(old is not None for _, old, _ in _pairs(now, earlier))


_Pair = tuple[str, Tried | None, Tried | str | None]
"""A name, what the earlier suite had, and what this one has: None where it is missing, words
where it has none for a reason."""


def _pairs(now: Suite, earlier: Suite) -> Iterator[_Pair]:
    """What is compared: plain torch.compile(), the best, or each given setting."""
    rows = {row.name: row for row in now.rows if row.is_known}
    # A model of which nothing works has one row, without a phase.
    lost = {r.target: r for r in now.rows if r.verdict == "failed" and not r.phase}
    for old in earlier.rows:
        if not old.is_known:
            continue
        size = show.or_dash(old.batch_size)
        where = f"{_model(old)}, {old.phase}, batch size {size}"
        row = rows.get(old.name)
        if row is not None:
            yield from _pairs_of(where, old, row, now.fixed and earlier.fixed)
        elif old.best and (whole := lost.get(old.target)):
            yield where, old.best, show.plain(whole.message)
        elif old.best:
            yield where, old.best, None


def _pairs_of(where: str, old: Row, row: Row, is_fixed: bool) -> Iterator[_Pair]:
    """The pairs of a row that both suites have."""
    if row.best is not None:
        yield f"{where}, the best", old.best, row.best
    elif old.best is not None:
        yield f"{where}, the best", old.best, show.plain(row.message)
    mine = {tried.config: tried for tried in row.settings}
    for one in old.settings if is_fixed else filter(None, (old.plain,)):
        new = mine.get(one.config)
        # Of a row without any result the best says it already.
        if row.best is not None or new is not None:
            yield f"{where}, {show.label(one.config)}", one, new


def _changes(now: Suite, earlier: Suite) -> Iterator[Line]:
    rows = {row.name for row in earlier.rows if row.is_known}
    both = [row for row in now.rows if row.name in rows and row.is_known]
    count = show.many(len(both), "row")
    yield Line("Compared", (f"{count} with the same in {show.plain(earlier.name)}",))
    for key in ("torch", "device_name", "cpu"):
        a, b = (
            show.plain(one.environment.get(key, show.NONE)) for one in (earlier, now)
        )
        if a != b:
            yield Line("Differs", (f"{key}: {a} → {b}",))
    kinds = dict.fromkeys(("slower", "broke", "missing"), "error")
    for word, names in differences(now, earlier).items():
        for name in names:
            yield Line(word.capitalize(), (name,), kinds.get(word, "good"))


# --- other forms --------------------------------------------------------------------------------

_COLUMNS = (
    *("dev", "name", "batch_size", "speedup", "abs_latency", "compilation_latency"),
    *("compression_ratio", "eager_peak_mem", "dynamo_peak_mem"),  # in GB
    *("accuracy", "graph_breaks", "phase", "setting", "confidence", "reason"),
)


def to_csv(suite: Suite) -> str:
    """Two lines for each row, plain ``torch.compile()`` and the best; of given settings each.

    In the columns of the performance files of dynamo's runner, latency in milliseconds; then its
    accuracy and four of our own.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    device = str(suite.environment.get("device", "")).partition(":")[0]
    for row in suite.rows:
        lines: list[tuple[str, Tried | None]] = [
            ("plain", row.plain),
            ("best", row.best),
        ]
        if suite.fixed and row.settings:
            lines = [(show.label(t.config), t) for t in row.settings]
        for setting, tried in lines:
            writer.writerow((device, *_csv_line(row, setting, tried)))
    return out.getvalue()


def _csv_line(row: Row, setting: str, tried: Tried | None) -> tuple[object, ...]:
    """One setting of a row, without the device."""
    is_right = tried is not None and tried.is_right
    gain = tried.speedup.value if is_right and tried and tried.speedup else None
    memory = tried.peak_memory_bytes if tried else None
    eager = row.eager_peak_memory_bytes
    accuracy = "fail_to_run" if row.verdict == "failed" else "not_run"
    if tried:
        accuracy = "pass" if is_right else f"fail_{tried.outcome.value}"
    is_best = setting == "best"
    message = row.message or (tried.message if tried and not is_right else "")
    return (
        _cell(row.target),
        row.batch_size,
        "0.0" if gain is None else f"{gain:.4f}",
        _number(tried.call_s if tried else None, 1e3),
        _number(tried.compile_s if tried else None),
        f"{eager / memory:.4f}" if eager and memory else "",
        _number(eager, 1e-9),
        _number(memory, 1e-9),
        accuracy,
        tried.graph_breaks if tried else None,
        row.phase,
        show.label(tried.config) if tried and is_best else setting,
        row.confidence if is_best else "",
        _cell(message),
    )


def _cell(text: str) -> str:
    """Text that no spreadsheet takes for a formula."""
    words = show.plain(text).encode("utf-8", "replace").decode("utf-8")
    return f"'{words}" if words[:1] in ("=", "+", "-", "@") else words


def _number(value: float | None, factor: float = 1.0) -> str:
    return "" if value is None else f"{value * factor:.4f}"


def to_markdown(shown: Document) -> str:
    """The tables and lines of a document."""
    lines = [f"# {_flat(shown.title)}", ""]
    lines += [shown.status, ""] if shown.status else []
    lines += [*_table(shown.answer), ""]
    for section in shown.sections:
        lines += [f"## {_flat(section.title)}", ""]
        for block in section.blocks:
            lines += (
                [*_table(block), ""] if isinstance(block, Table) else [_line(block), ""]
            )
    lines += [f"- {_line(line)}" for line in shown.whole]
    return "\n".join(lines).rstrip() + "\n"


def _table(table: Table) -> Iterator[str]:
    if table.title:
        yield from (f"**{_flat(table.title)}**", "")
    yield f"| {' | '.join(table.titles)} |"
    rules = ("--:" if n in table.right else "---" for n, _ in enumerate(table.titles))
    yield f"| {' | '.join(rules)} |"
    for row in table.rows:
        yield f"| {' | '.join(_flat(cell) for cell in row)} |"


def _line(line: Line) -> str:
    return f"{line.label}: {' · '.join(map(_flat, line.facts))}"


def _flat(text: Text) -> str:
    """A text in Markdown, in which nothing of a run is markup."""
    return "".join(
        _MARKS.sub(r"\\\g<0>", show.plain(span.text)) for span in spans(text)
    )
