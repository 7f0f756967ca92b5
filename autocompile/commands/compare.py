"""``autocompile compare``: what changed between two runs of one target."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autocompile.errors import UsageError
from autocompile.estimate.intervals import Interval, ratio
from autocompile.settings.config import EAGER, CompileConfig
from autocompile.settings.tuned import is_faster
from autocompile.store.reading import demand_schema
from autocompile.store.record import SCHEMA

__all__ = ["compare", "read_report"]

_SAID = ("effort", "objective", "seed", "tolerance")  # of a plan, where it differs


def read_report(path: Path) -> dict[str, Any]:
    """A ``report.json``, such as one of another machine.

    Raises:
        UsageError: there is no such file, or it is no report.
        RunError: a newer version wrote it.
    """
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
            f"{path} holds settings, and compare reads reports",
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

    Args:
        before, after: as ``report.json`` holds them.
        names: of the two, in errors and in the result.

    Returns:
        ``a`` and ``b`` (``name``, ``target``, ``environment``); ``differences`` of machine and
        request, each ``what``, ``a``, ``b``; ``only_in``, the phases that one of them has alone;
        and by phase a row for each batch size: ``a`` and ``b`` (``setting``, ``speedup`` over its
        own eager mode, ``throughput``; None where one has no result), ``same_setting``,
        ``overlap`` of the two intervals, ``change`` (the second speed-up over the first).

    Raises:
        UsageError: they are of different targets or models, or have no phase in common.
    """
    _demand_same_target(before["target"], after["target"], names)
    sides = [_choices(report, name) for report, name in zip((before, after), names, strict=True)]
    common = [phase for phase in sides[0] if phase in sides[1]]
    if not common:
        raise UsageError(
            f"{names[0]} and {names[1]} have no phase in common",
            *(f"{n}: {', '.join(side)}" for n, side in zip(names, sides, strict=True)),
            hint="autocompile tune TARGET --phase NAME   (with a phase of the other)",
        )
    reports = (before, after)
    return {
        **{
            key: {"name": name, "target": report["target"], "environment": report["environment"]}
            for key, name, report in zip("ab", names, reports, strict=True)
        },
        "differences": _differences(before, after),
        "only_in": {
            key: [phase for phase in side if phase not in common]
            for key, side in zip("ab", sides, strict=True)
        },
        "phases": {
            phase: [
                _row(size, *(side[phase].get(size) for side in sides))
                for size in sorted({*sides[0][phase], *sides[1][phase]}, key=lambda s: s or 0)
            ]
            for phase in common
        },
    }


def _demand_same_target(
    one: Mapping[str, Any], other: Mapping[str, Any], names: tuple[str, str]
) -> None:
    """The same file name, for folders differ between machines, and a model of the same size."""
    specs = [str(target["spec"]) for target in (one, other)]
    if len({Path(spec).name for spec in specs}) > 1:
        what = f"{names[0]} is of {specs[0]}, and {names[1]} of {specs[1]}"
        raise UsageError(
            f"{what}: speeds of different targets say nothing about each other",
            hint="autocompile list   (shows the target of each run)",
        )
    counts = [target.get("parameters") for target in (one, other)]
    if None not in counts and counts[0] != counts[1]:
        raise UsageError(
            f"{specs[0]} has {counts[0]} parameters in {names[0]}, and {counts[1]} in {names[1]}",
            "it is another model: speeds of different models say nothing about each other",
        )


def _choices(report: Mapping[str, Any], run: str) -> dict[str, dict[int | None, Any]]:
    """By phase and batch size: what is best there.

    Raises:
        UsageError: there is nothing, or the report is damaged.
    """
    try:
        return _read_choices(report, run)
    except (KeyError, TypeError) as error:
        raise UsageError(
            f"{run} is damaged, or was written by another version: {error} is missing or wrong",
            hint="autocompile show --schema   (prints what a report holds)",
        ) from None


def _read_choices(report: Mapping[str, Any], run: str) -> dict[str, dict[int | None, Any]]:
    found = {}
    for name, phase in report["phases"].items():
        if phase["best"] and phase["verdict"] != "failed":
            configs = {trial["number"]: trial["config"] for trial in phase["trials"]}
            sides = {row["batch_size"]: _side(row, configs) for row in phase["by_batch_size"]}
            # Without a row nothing but eager mode worked.
            found[name] = {phase["best"]["batch_size"]: _best(phase["best"]), **sides}
    if not found:
        raise UsageError(
            f"{run} has no result in any phase, so there is nothing to compare",
            hint=f"autocompile show {run}   (says why)",
        )
    return found


def _side(row: Mapping[str, Any], configs: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    faster = is_faster(row)
    config = CompileConfig.from_dict(configs[row["number"]]) if faster else EAGER
    return {
        "setting": config.label(),
        "speedup": row["speedup"] if faster else Interval(1.0, 1.0, 1.0).to_dict(),
        "throughput": row["best_throughput" if faster else "eager_throughput"],
        "confirmed_processes": row.get("confirmed_processes"),
    }


def _best(best: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "setting": CompileConfig.from_dict(best["config"]).label(),
        "speedup": best["speedup"],
        "throughput": best["throughput"]["value"],
        "confirmed_processes": best["confirmed_processes"],
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
    sides = [{**report["environment"], **_asked(report)} for report in (before, after)]
    return [
        {"what": what, "a": sides[0].get(what), "b": sides[1].get(what)}
        for what in dict.fromkeys((*sides[0], *sides[1]))
        if sides[0].get(what) != sides[1].get(what)
    ]


def _asked(report: Mapping[str, Any]) -> dict[str, Any]:
    return {"target": report["target"]["spec"], **{name: report.get(name) for name in _SAID}}
