"""``autocompile list``: the runs of a folder, from what they left on disk."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from autocompile.errors import RunError
from autocompile.execute.job import is_held
from autocompile.store.record import RunFolder

__all__ = ["listed"]


def listed(under: Path) -> list[dict[str, Any]]:
    """A row for each run in a folder, the most recently changed last.

    Returns:
        ``name``, ``path``, ``target``, ``when`` (ISO 8601, of the last change), ``state``
        (``done``, ``interrupted``, ``running`` or ``unreadable``), ``message`` (why it is
        unreadable) and ``phases``: by name the ``verdict`` (None before there is a report),
        ``speedup`` and ``batch_size`` of the best setting.

    Raises:
        RunError: there is no such folder.
    """
    if not under.is_dir():
        raise RunError(
            f"there is no folder {under}",
            "runs are kept in ./runs of the folder that tune was typed in",
            hint="autocompile list --run-dir FOLDER",
        )
    rows = [_row(RunFolder(path.parent)) for path in under.glob("*/run.json")]
    return sorted(rows, key=lambda row: (row["when"], row["name"]))


def _row(folder: RunFolder) -> dict[str, Any]:
    changed = datetime.fromtimestamp(folder.run_json.stat().st_mtime).astimezone()
    row: dict[str, Any] = {
        "name": folder.path.name,
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
