"""Creates and finds the folders of runs."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from autocompile.errors import RunError
from autocompile.store.record import RunFolder
from autocompile.store.targets import is_same_target, short_name

under = Path("runs")
"""Folder of all runs, below the current folder."""
HERE, ON_CLUSTER = "*/run.json", "*/*/run.json"
"""Where runs are below it; the folder of a cluster's holds one for each type of machine."""
_ALL = (HERE, ON_CLUSTER, "*/*/*/run.json")  # and those of a suite on a cluster


def demand_folder(under: Path, command: str) -> None:
    """Raise a RunError, with the command to type, if there is no such folder of runs."""
    if not under.is_dir():
        raise RunError(
            f"there is no folder {under}",
            "runs are kept in ./runs of the folder that tune was typed in",
            hint=f"autocompile {command} --run-dir FOLDER",
        )


def every(folder: Path = under, patterns: Sequence[str] = _ALL) -> list[Path]:
    """Folders of runs, the most recently changed last."""
    found = [p for pattern in patterns for p in folder.glob(pattern)]
    return [p.parent for p in sorted(found, key=lambda p: (p.stat().st_mtime, p))]


def new_folder(spec: str) -> RunFolder:
    """The next free folder, which is made: ``runs/<target>-0001`` and so on."""
    name = short_name(spec)
    numbers = [
        int(m[1])
        for p in under.glob(f"{name}-*")
        if (m := re.search(r"-(\d{4,})$", p.name))
    ]
    for number in itertools.count(max(numbers, default=0) + 1):
        folder = RunFolder(under / f"{name}-{number:04d}")
        with contextlib.suppress(FileExistsError):
            folder.reserve()
            return folder
    raise AssertionError


def latest_of(spec: str, pattern: str) -> Path:
    """The last run of a target, whatever its folder's name, of :data:`HERE` or :data:`ON_CLUSTER`.

    One whose ``run.json`` cannot be read is none.
    """
    for path in reversed(every(under, [pattern])):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            run = json.loads((path / "run.json").read_text("utf-8"))
            about = run.get("request") or run["plan"]  # runs of earlier versions
            is_of_a_suite = (path.parent / "suite.json").exists()
            if is_same_target(str(about["target"]), spec) and not is_of_a_suite:
                return path
    place = "on a cluster" if pattern == ON_CLUSTER else "on this machine"
    raise RunError(
        f"there is no run of {spec} {place} under ./{under} to resume",
        hint="the same command without --resume",
    )


def name_of(path: str | Path, folder: Path = under) -> str:
    """A run's folder as it is called below the folder of all runs; elsewhere the path as it is."""
    whole, root = Path(os.path.abspath(path)), os.path.abspath(folder)
    return (
        whole.relative_to(root).as_posix() if whole.is_relative_to(root) else str(path)
    )


def shown(path: str) -> str:
    """The shortest name of a run that :func:`find` accepts: ``last``, its folder's name or path."""
    is_last = any(os.path.abspath(p) == os.path.abspath(path) for p in every()[-1:])
    return "last" if is_last else name_of(path)


def find(run: str | Path) -> RunFolder:
    """A run by its folder, its folder's name under ``runs``, or ``last``."""
    runs = every()
    if str(run) == "last":
        if not runs:
            raise RunError(
                f"there are no runs under ./{under}", hint="autocompile tune model.py"
            )
        return RunFolder(runs[-1])
    for path in (Path(run), under / str(run)):
        if (path / "run.json").is_file():
            return RunFolder(path)
    names = ", ".join(name_of(p) for p in runs[-6:]) or "none"
    raise RunError(f"there is no run {run}", f"runs under ./{under}: {names}")
