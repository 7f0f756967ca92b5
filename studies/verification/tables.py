"""The tables of the study, in Markdown, from the files of one or more folders."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from catalogue import CONTROL, HONEST, LIARS, PRECISIONS, SIZES

_NOTHING = "nothing to lie about"  # in bfloat16 rounding may undo a small change
_FOUND = ("wrong_output", "stale_weights")
Rows = Sequence[Mapping[str, Any]]


def show(folders: Sequence[Path]) -> None:
    """Print the tables, with a column for each folder."""
    for table in (_answer, _liars, _sizes, _honest, _refused):
        print("\n" + "\n".join(table(folders)))


def _answer(folders: Sequence[Path]) -> Iterator[str]:
    """A sentence for each folder: the lies that are found, the right settings refused."""
    for folder in folders:
        lies, honest = _rows(folder, "liars"), _rows(folder, "honest")
        named = {(t, lie) for t, each in LIARS.items() for lie in each.lies}
        told = [row for row in lies if (row["target"], row["lie"]) in named]
        ran = [row for row in told if row["outcome"] in (*_FOUND, "ok")]
        found = sum(row["outcome"] in _FOUND for row in ran)
        control = [r for r in lies if r["lie"] == CONTROL] + list(honest)
        judged = [row for row in control if row["outcome"] in (*_FOUND, "ok")]
        refused = sum(row["outcome"] in _FOUND for row in judged)
        yield (
            f"**{folder.name}**: {found} of {len(ran)} lies are found, and {refused} of "
            f"{len(judged)} right settings refused."
        )


def _rows(folder: Path, name: str) -> Rows:
    path = folder / f"{name}.json"
    return json.loads(path.read_text())["rows"] if path.exists() else []


def _columns(folders: Sequence[Path]) -> dict[str, dict[tuple[str, str, str], str]]:
    """Of each folder the outcome by target, lie and precision."""
    return {
        folder.name: {
            (row["target"], row["lie"], row["precision"]): (
                "no effect" if _NOTHING in row["message"] else row["outcome"]
            )
            for row in _rows(folder, "liars")
        }
        for folder in folders
    }


def _word(outcome: str | None, is_control: bool = False) -> str:
    if outcome in _FOUND:
        return "**refused**" if is_control else "found"
    if outcome == "ok":
        return "ok" if is_control else "**passed**"
    return outcome or ""


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _liars(folders: Sequence[Path]) -> Iterator[str]:
    columns = _columns(folders)
    seen = [
        p for p in PRECISIONS if any(p == k[2] for c in columns.values() for k in c)
    ]
    if not seen:
        return
    heads = [f"{p}, {name}" for p in seen for name in columns]
    yield _line(["lie", *heads])
    yield _line(["---"] * (1 + len(heads)))
    totals = Counter[str]()
    for target, each in LIARS.items():
        words = {CONTROL: f"(no lie: {each.phase}, {target})", **each.lies}
        for lie, text in words.items():
            cells = []
            for precision in seen:
                for name, outcomes in columns.items():
                    # Where there was no trial at all, the row has no lie.
                    outcome = outcomes.get((target, lie, precision)) or outcomes.get(
                        (target, "", precision)
                    )
                    cells.append(_word(outcome, lie == CONTROL))
                    if lie != CONTROL and outcome in (*_FOUND, "ok"):
                        totals[f"{precision}, {name}"] += 1
                        totals[f"{precision}, {name} found"] += outcome in _FOUND
            if any(cells):
                yield _line([text, *cells])
    sums = [f"{totals[f'{head} found']} of {totals[head]}" for head in heads]
    yield _line(["**found**", *sums])


def _sizes(folders: Sequence[Path]) -> Iterator[str]:
    """The smallest size from which on every error is found."""
    columns = _columns(folders)
    seen = [
        p for p in PRECISIONS if any(p == k[2] for c in columns.values() for k in c)
    ]
    if not seen:
        return
    heads = [f"{p}, {name}" for p in seen for name in columns]
    yield _line(["found from", *heads])
    yield _line(["---"] * (1 + len(heads)))
    for target, each in LIARS.items():
        for kind, text in each.scans.items():
            cells = []
            for precision in seen:
                for outcomes in columns.values():
                    tried = {
                        size: outcomes.get((target, f"{kind}_{size:g}", precision))
                        for size in SIZES
                    }
                    cells.append(_smallest(tried))
            yield _line([text, *cells])


def _smallest(tried: Mapping[float, str | None]) -> str:
    if not any(tried.values()):
        return ""
    missed = [size for size, outcome in tried.items() if outcome not in _FOUND]
    above = [size for size in tried if not missed or size > max(missed)]
    return f"{min(above):.2g}" if above else "none"


def _honest(folders: Sequence[Path]) -> Iterator[str]:
    rows = {folder.name: _rows(folder, "honest") for folder in folders}
    if not any(rows.values()):
        return
    heads = [f"{name}: right, refused, else" for name in rows]
    yield _line(["model", "phase", *heads])
    yield _line(["---"] * (2 + len(heads)))
    sums: dict[str, Counter[str]] = {name: Counter() for name in rows}
    for model, each in HONEST.items():
        for phase in each.phases:
            cells = []
            for name, found in rows.items():
                outcomes = [
                    r["outcome"]
                    for r in found
                    if (r["model"], r["phase"]) == (model, phase)
                ]
                counts = Counter(map(_kind, outcomes))
                sums[name].update(counts)
                sums[name].update({f"{kind} {phase}": n for kind, n in counts.items()})
                cells.append(_counts(counts) if outcomes else "")
            if any(cells):
                yield _line([each.words, phase, *cells])
    for phase in ("forward", "train_step", "step"):
        every = [
            _counts({k: c[f"{k} {phase}"] for k in ("right", "refused", "else")})
            for c in sums.values()
        ]
        yield _line(["**all**", phase, *every])
    yield _line(["**all**", "", *map(_counts, sums.values())])


def _kind(outcome: str) -> str:
    if outcome == "ok":
        return "right"
    return "refused" if outcome in _FOUND else "else"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(str(counts.get(kind, 0)) for kind in ("right", "refused", "else"))


def _refused(folders: Sequence[Path]) -> Iterator[str]:
    """Each setting without a verified result: refused, or ended otherwise."""
    for folder in folders:
        for row in _rows(folder, "honest"):
            if row["outcome"] != "ok":
                setting = _changed(row["config"] or {})
                message = row["message"].splitlines()[0] if row["message"] else ""
                place = f"{folder.name}: {row['model']} {row['phase']}"
                yield f"- {place}, {setting}: {row['outcome']}, {message[:200]}"


def _changed(config: Mapping[str, Any]) -> str:
    usual = (None, False, {}, [], "default", "none", "all", "model")
    return " ".join(f"{k}={v}" for k, v in config.items() if v not in usual) or "none"
