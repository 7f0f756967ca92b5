"""A suite as one document, as CSV and as Markdown, and what differs from an earlier one."""

from __future__ import annotations

import csv
import io
import math
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
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
from autocompile.store import runs
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


def suite_document(
    suite: Suite, earlier: Suite | None = None, folder: Path | None = None
) -> Document:
    """The rows of a suite by phase; with an ``earlier`` one also what differs from it.

    ``folder``: of the suite, which the command that goes on with it names.
    """
    phases = dict.fromkeys(row.phase for row in suite.rows)
    sections = [_section(phase, suite) for phase in phases]
    whole = list(_whole(suite))
    if earlier:
        whole += _changes(suite, earlier)
    about = [
        (show.plain(name), show.plain(value))
        for name, value in suite.environment.items()
        if value is not None
    ]
    return Document(
        title=("autocompile suite: ", Span(show.plain(suite.name), "code")),
        status=_status(suite, folder),
        answer=Table("", _ANSWER, tuple(_summary(suite)), right=(1, 2, 3)),
        sections=tuple(sections),
        whole=tuple(whole),
        method=_METHOD,
        circumstances=Table("Circumstances", ("", ""), tuple(about)),
    )


def _status(suite: Suite, folder: Path | None) -> str:
    """What is missing of a suite, and the command that goes on; empty if it is complete."""
    known = {row.run for row in suite.rows if row.is_known}
    missing = len({row.run for row in suite.rows} - known)
    if not missing and not suite.interrupted:
        return ""
    is_found = folder is None or folder.parent == runs.under
    place = "" if is_found else f" --run-dir {shlex.quote(str(folder))}"
    name = shlex.quote(suite.name)
    goes_on = f"autocompile suite {name} --resume --budget 1h{place} goes on with it."
    if not missing:
        return goes_on
    which = f"{show.many(missing, 'run')} of {len(suite.members)} models and phases"
    have = "has" if missing == 1 else "have"
    return f"{which} {have} no result yet. {goes_on}"


def _summary(suite: Suite) -> Iterator[tuple[Text, ...]]:
    """As dynamo's runner has it: pass rate and geometric mean."""
    for title, best in (("plain torch.compile()", False), ("the best of each", True)):
        share = suite.share_right(best)
        is_tried = best or any(row.plain for row in suite.rows)
        if share is None or not is_tried:
            continue
        mean = suite.geometric_mean(best)
        gain = show.NONE if mean is None else show.speedup(mean)
        count = str(len(suite.rows_with(best)))
        yield Span(title, "strong"), count, f"{share:.0%}", gain
    if (one := suite.best_for_all()) is not None:
        config, gain_for_all = one
        setting = ("one for all: ", Span(show.label(config), "code"))
        count = str(sum(bool(row.settings) for row in suite.rows))
        yield setting, count, "", show.speedup(gain_for_all)


def _whole(suite: Suite) -> Iterator[Line]:
    right = [row for row in suite.rows if row.plain and row.plain.is_right]
    # By more than the noise.
    slow = [row for row in right if row.gain(False).high < 1]
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
    if library.isalpha() and model:
        name = model
    if len(name) <= _LONG:
        return name
    return f"{name[: _LONG - 9]}…{name[-8:]}"


def _section(phase: str, suite: Suite) -> Section:
    rows = [row for row in suite.rows if row.phase == phase]
    table = Table("", _TITLES, tuple(map(_cells, rows)), right=_RIGHT)
    blocks = (table, *_by_setting(rows, suite))
    return Section(show.plain(phase) or "no result", (), blocks, ())


def _cells(row: Row) -> tuple[Text, ...]:
    size, eager = show.or_dash(row.batch_size), show.seconds(row.eager_call_s)
    head = _model(row), size, eager, _plain_cell(row)
    breaks = show.or_dash(row.plain.graph_breaks if row.plain else None)
    if row.best is None:
        # A row that is not known yet stays empty.
        none: Text = Span("no result", "error") if row.is_known else ""
        return (*head, none, show.plain(row.message), "", breaks, "")
    best, setting = _best_cells(row, row.best)
    needed, usual = row.best.peak_memory_bytes, row.eager_peak_memory_bytes
    memory = show.speedup(needed / usual) if needed and usual else ""
    return (*head, best, setting, show.seconds(row.best.compile_s), breaks, memory)


def _plain_cell(row: Row) -> Text:
    """What plain torch.compile() gains, or how it failed."""
    if row.plain is None:
        return show.NONE
    if row.plain.is_right:
        return _gain(row.plain)
    return Span(row.plain.outcome.value, "error")


def _best_cells(row: Row, best: Tried) -> tuple[Text, Text]:
    """What the best setting gains and how sure that is, and the setting."""
    sure = "" if row.confidence == "high" else f" {show.plain(row.confidence)}"
    if row.verdict == "keep_eager":
        return f"keep eager{sure}", "eager"
    kind = "good" if row.verdict == "faster" else "warning"
    gain = (Span(_gain(best), kind), sure)
    return gain, Span(show.label(best.config), "code")


def _gain(tried: Tried) -> str:
    return show.estimate(tried.speedup) if tried.speedup else show.NONE


def _by_setting(rows: list[Row], suite: Suite) -> Iterator[Table]:
    """Each setting by model and batch size; of given settings only."""
    if not suite.fixed:
        return
    titles = ("setting", "no compile throughput", "compiled throughput", "speedup")
    for row in rows:
        if not row.settings:
            continue
        title = f"{_model(row)}, {row.size}"
        cells = [_cells_of_setting(row, tried) for tried in row.settings]
        yield Table(title, titles, tuple(cells), right=(1, 2))


def _cells_of_setting(row: Row, tried: Tried) -> tuple[Text, ...]:
    """A setting with calls a second of eager mode and of itself."""
    # Eager mode in the same process, where it is known: a fair comparison.
    eager_s = tried.eager_call_s or row.eager_call_s
    eager = 1 / eager_s if eager_s else None
    rate = 1 / tried.call_s if tried.call_s else None
    change: Text = Span(_outcome(tried), "error")
    if tried.is_right and tried.speedup:
        change = f"{tried.speedup.value - 1:+.1%}"
    label = Span(show.label(tried.config), "code")
    return label, show.quantity(eager), show.quantity(rate), change


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
    # Intervals are of 95 % each. Bonferroni: of all pairs together as many have to hold.
    normal, each_end = NormalDist(), 0.025 / max(1, len(pairs))
    wide = normal.inv_cdf(1 - each_end) / normal.inv_cdf(1 - 0.025)
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
    # The end that is nearer to no change.
    end = change.high if change.value < 1 else change.low
    room = end / change.value
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
        where = f"{_model(old)}, {old.phase}, {old.size}"
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
        was = show.plain(earlier.environment.get(key, show.NONE))
        here = show.plain(now.environment.get(key, show.NONE))
        if was != here:
            yield Line("Differs", (f"{key}: {was} → {here}",))
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
        for setting, tried in _csv_settings(row, suite.fixed):
            writer.writerow((device, *_csv_line(row, setting, tried)))
    return out.getvalue()


def _csv_settings(row: Row, is_fixed: bool) -> list[tuple[str, Tried | None]]:
    """The settings of a row that have a line each, with what the line calls them."""
    if is_fixed and row.settings:
        return [(show.label(tried.config), tried) for tried in row.settings]
    return [("plain", row.plain), ("best", row.best)]


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
            lines += _table(block) if isinstance(block, Table) else [_line(block)]
            lines.append("")
    lines += [f"- {_line(line)}" for line in shown.whole]
    return "\n".join(lines).rstrip() + "\n"


def _table(table: Table) -> Iterator[str]:
    if table.title:
        yield from (f"**{_flat(table.title)}**", "")
    yield f"| {' | '.join(table.titles)} |"
    places = range(len(table.titles))
    rules = ["--:" if place in table.right else "---" for place in places]
    yield f"| {' | '.join(rules)} |"
    for row in table.rows:
        yield f"| {' | '.join(_flat(cell) for cell in row)} |"


def _line(line: Line) -> str:
    return f"{line.label}: {' · '.join(map(_flat, line.facts))}"


def _flat(text: Text) -> str:
    """A text in Markdown, in which nothing of a run is markup."""
    texts = [show.plain(span.text) for span in spans(text)]
    return "".join(_MARKS.sub(r"\\\g<0>", each) for each in texts)
