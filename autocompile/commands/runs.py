"""``autocompile list`` and ``compare``: what runs left on disk, and what changed between two."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from autocompile.errors import RunError, UsageError
from autocompile.estimate.intervals import Interval, ratio
from autocompile.execute.job import is_held
from autocompile.report.text import label
from autocompile.settings.config import EAGER
from autocompile.settings.tuned import is_faster
from autocompile.store import runs
from autocompile.store.reading import demand_schema
from autocompile.store.record import SCHEMA, RunFolder

__all__ = ["by_machine", "compare", "demand_same_target", "listed", "read_report"]


def listed(under: Path) -> list[dict[str, Any]]:
    """A row for each run in a folder, the most recently changed last.

    ``state`` is ``done``, ``interrupted``, ``running`` or ``unreadable``, with the reason as
    ``message``. ``phases`` holds the ``verdict`` of each (None before there is a report), and of
    its best setting ``speedup`` and ``batch_size``.
    """
    if not under.is_dir():
        raise RunError(
            f"there is no folder {under}",
            "runs are kept in ./runs of the folder that tune was typed in",
            hint="autocompile list --run-dir FOLDER",
        )
    return [_run(RunFolder(path), runs.name_of(path, under)) for path in runs.every(under)]


def _run(folder: RunFolder, name: str) -> dict[str, Any]:
    changed = datetime.fromtimestamp(folder.run_json.stat().st_mtime).astimezone()
    row: dict[str, Any] = {
        "name": name,
        "path": str(folder.path),
        "target": None,
        "when": changed.isoformat(timespec="seconds"),
        "state": "unreadable",
        "message": "",
        "phases": {},
    }
    try:
        run = folder.read_run()
        row["target"] = run["plan"]["target"]
        row["phases"] = {name: _answer({}) for name in run["phases"]}
    except RunError as error:
        return {**row, "message": error.what}
    except (KeyError, TypeError):
        return {**row, "message": f"{folder.run_json} is damaged"}
    stopped = "interrupted" if run.get("interrupted", True) else "done"
    row["state"] = "running" if is_held(folder) else stopped
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        report = json.loads((folder.path / "report.json").read_text("utf-8"))
        row["phases"] = {name: _answer(phase) for name, phase in report["phases"].items()}
    return row


def _answer(phase: Mapping[str, Any]) -> dict[str, Any]:
    best = phase.get("best") or {}
    names = ("speedup", "batch_size")
    return {"verdict": phase.get("verdict"), **{name: best.get(name) for name in names}}


def read_report(path: Path) -> dict[str, Any]:
    """A ``report.json``, such as one of another machine."""
    try:
        report = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror or error}",
            hint="autocompile list   (shows the runs that there are)",
        ) from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from None
    if isinstance(report, dict) and "autocompile_settings" in report:
        raise UsageError(
            f"{path} holds settings, and this command reads reports",
            hint=f"autocompile verify {path}   (measures the settings here)",
        )
    demand_schema(path, report, SCHEMA)
    if lost := [name for name in ("target", "environment", "phases") if name not in report]:
        raise UsageError(f"{path} is not a report: it has no {lost[0]}")
    return dict(report)


def compare(
    before: Mapping[str, Any], after: Mapping[str, Any], names: tuple[str, str]
) -> dict[str, Any]:
    """What changed from one report to another.

    Returns:
        ``a`` and ``b``, what they are of; ``differences`` of machine and request; ``only_in``, the
        phases that one of them has alone; and by phase a row for each batch size: ``a`` and ``b``
        (None where one has no result), ``same_setting``, ``overlap`` of the two intervals,
        ``change`` (the second speed-up over the first).

    Raises:
        UsageError: they are of different targets or models, or have no phase in common.
    """
    demand_same_target(dict(zip(names, (before, after), strict=True)))
    a, b = _choices(before, names[0]), _choices(after, names[1])
    common = [phase for phase in a if phase in b]
    if not common:
        raise UsageError(
            f"{names[0]} and {names[1]} have no phase in common",
            *(f"{name}: {', '.join(side)}" for name, side in zip(names, (a, b), strict=True)),
            hint="autocompile tune TARGET --phase NAME   (with a phase of the other)",
        )
    about = [
        {"name": name, "target": report["target"], "environment": report["environment"]}
        for name, report in zip(names, (before, after), strict=True)
    ]
    return {
        "a": about[0],
        "b": about[1],
        "differences": _differences(before, after),
        "only_in": {"a": [p for p in a if p not in b], "b": [p for p in b if p not in a]},
        "phases": {
            phase: [
                _row(size, a[phase].get(size), b[phase].get(size))
                for size in sorted({*a[phase], *b[phase]}, key=lambda s: s or 0)
            ]
            for phase in common
        },
    }


def by_machine(reports: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Reports by the names of their devices, or by their own where two devices have one name."""
    demand_same_target(reports)
    devices = [str(report["environment"].get("device_name")) for report in reports.values()]
    names = devices if len(set(devices)) == len(devices) else list(reports)
    return dict(zip(names, reports.values(), strict=True))


def demand_same_target(reports: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise a UsageError if reports, by name, are of different targets or models.

    The same file name is enough, for folders differ between machines, and a model of the same size.
    """
    (first, one), *others = ((name, report["target"]) for name, report in reports.items())
    for name, other in others:
        specs = str(one["spec"]), str(other["spec"])
        if Path(specs[0]).name != Path(specs[1]).name:
            what = f"{first} is of {specs[0]}, and {name} of {specs[1]}"
            raise UsageError(
                f"{what}: speeds of different targets say nothing about each other",
                hint="autocompile list   (shows the target of each run)",
            )
        counts = [target.get("parameters") for target in (one, other)]
        if None not in counts and counts[0] != counts[1]:
            raise UsageError(
                f"{specs[0]} has {counts[0]} parameters in {first}, and {counts[1]} in {name}",
                "it is another model: speeds of different models say nothing about each other",
            )


def _choices(report: Mapping[str, Any], run: str) -> dict[str, dict[int | None, Any]]:
    """By phase and batch size: what is best there."""
    found = {}
    try:
        for name, phase in report["phases"].items():
            if phase["verdict"] != "failed" and (best := phase["best"]):
                configs = {trial["number"]: trial["config"] for trial in phase["trials"]}
                # Without a row nothing but eager mode worked.
                whole = _side(best, best["config"], best["throughput"]["value"])
                sizes = {
                    row["batch_size"]: _of_size(row, configs) for row in phase["by_batch_size"]
                }
                found[name] = {best["batch_size"]: whole, **sizes}
    except (KeyError, TypeError) as error:
        raise UsageError(
            f"{run} is damaged, or was written by another version: {error} is missing or wrong",
            hint="autocompile show --schema   (prints what a report holds)",
        ) from None
    if not found:
        raise UsageError(
            f"{run} has no result in any phase, so there is nothing to compare",
            hint=f"autocompile show {run}   (says why)",
        )
    return found


def _of_size(row: Mapping[str, Any], configs: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    if is_faster(row):
        return _side(row, configs[row["number"]], row["best_throughput"])
    eager = {**row, "speedup": Interval(1.0, 1.0, 1.0).to_dict()}
    return _side(eager, EAGER.to_dict(), row["eager_throughput"])


def _side(row: Mapping[str, Any], config: Mapping[str, Any], throughput: float) -> dict[str, Any]:
    return {
        "setting": label(config),
        "speedup": row["speedup"],
        "throughput": throughput,
        "confirmed_processes": row.get("confirmed_processes"),
    }


def _row(
    size: int | None, one: Mapping[str, Any] | None, other: Mapping[str, Any] | None
) -> dict[str, Any]:
    row: dict[str, Any] = {"batch_size": size, "a": one, "b": other}
    if one is None or other is None:
        return {**row, "same_setting": None, "overlap": None, "change": None}
    a, b = (Interval(**side["speedup"]) for side in (one, other))
    return {
        **row,
        "same_setting": one["setting"] == other["setting"],
        "overlap": a.low <= b.high and b.low <= a.high,
        "change": ratio(b, a).to_dict(),
    }


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    a, b = (
        {
            **report["environment"],
            "target": report["target"]["spec"],
            **{name: report.get(name) for name in ("effort", "objective", "seed", "tolerance")},
        }
        for report in (before, after)
    )
    return [
        {"what": what, "a": a.get(what), "b": b.get(what)}
        for what in {**a, **b}
        if a.get(what) != b.get(what) and not what.startswith("busy_")  # of the moment
    ]
