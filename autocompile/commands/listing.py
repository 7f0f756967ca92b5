"""``autocompile list`` and ``show``: what runs left on disk, and which make one table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from autocompile import api
from autocompile.errors import AutocompileError, UsageError
from autocompile.store import runs
from autocompile.store.record import RunFolder
from autocompile.store.report import Answer, Report


def listed(under: Path) -> list[dict[str, Any]]:
    """A row for each run in a folder, the most recently changed last.

    ``state`` is ``done``, ``interrupted``, ``running`` or ``unreadable``, with the reason as
    ``message``. ``phases`` holds of each the ``verdict``, ``confidence``, ``speedup`` and
    ``batch_size`` of its answer, made of the records as ``show`` makes it.
    """
    runs.demand_folder(under, "list")
    return [
        _run(RunFolder(path), runs.name_of(path, under)) for path in runs.every(under)
    ]


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
        report = api.load(folder.path).report
    except AutocompileError as error:
        return {**row, "message": error.what}
    state = "interrupted" if report.interrupted else "done"
    return {
        **row,
        "target": report.target.spec,
        "state": "running" if report.running else state,
        "phases": {name: _row(phase.answer) for name, phase in report.phases.items()},
    }


def _row(answer: Answer) -> dict[str, Any]:
    return {
        "verdict": answer.verdict,
        "confidence": answer.confidence,
        "speedup": answer.gain.to_dict() if answer.gain else None,
        "batch_size": answer.batch_size,
        "size": answer.size,
    }


def read_report(path: Path) -> Report:
    """A ``report.json``, such as one of another machine."""
    try:
        report = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror or error}",
            hint="autocompile list   (shows the runs that there are)",
        ) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}") from None
    if isinstance(report, dict) and "autocompile_settings" in report:
        raise UsageError(
            f"{path} holds settings, and this command reads reports",
            hint=f"autocompile verify {path}   (measures the settings here)",
        )
    return Report.read(report, path)


def by_machine(reports: Mapping[str, Report]) -> dict[str, Report]:
    """Reports by the names of their devices, or by their own where two devices have one name."""
    demand_same_target(reports)
    devices = [
        str(report.environment.get("device_name")) for report in reports.values()
    ]
    names = devices if len(set(devices)) == len(devices) else list(reports)
    return dict(zip(names, reports.values(), strict=True))


def demand_same_target(reports: Mapping[str, Report]) -> None:
    """Raise a UsageError if reports, by name, are of different targets or models.

    The same file name is enough, for folders differ between machines, and a model of the same size.
    """
    (first, one), *others = ((name, report.target) for name, report in reports.items())
    for name, other in others:
        specs = one.spec, other.spec
        if Path(specs[0]).name != Path(specs[1]).name:
            what = f"{first} is of {specs[0]}, and {name} of {specs[1]}"
            raise UsageError(
                f"{what}: speeds of different targets say nothing about each other",
                hint="autocompile list   (shows the target of each run)",
            )
        counts = [target.parameters for target in (one, other)]
        if None not in counts and counts[0] != counts[1]:
            raise UsageError(
                f"{specs[0]} has {counts[0]} parameters in {first}, and {counts[1]} in {name}",
                "it is another model: speeds of different models say nothing about each other",
            )
