"""``autocompile clean``: removes what finished runs need no more."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from autocompile.execute.job import is_held
from autocompile.store import runs
from autocompile.store.record import RunFolder


def cleaned(under: Path, dry_run: bool = False) -> list[dict[str, Any]]:
    """A row for each run in a folder that holds compiler caches, which are removed.

    ``bytes`` is what they took, ``removed`` whether they are gone: not with ``dry_run``, and not of
    a run that a process is at work on. Records, reports and logs stay; going on with the run
    compiles again what it needs.

    Raises:
        RunError: there is no such folder.
    """
    runs.demand_folder(under, "clean")
    rows = []
    for path in runs.every(under):
        folder = RunFolder(path)
        if not folder.cache.is_dir():
            continue
        files = [
            p for p in folder.cache.rglob("*") if p.is_file() and not p.is_symlink()
        ]
        removed = not dry_run and not is_held(folder)
        row = {
            "name": runs.name_of(path, under),
            "path": str(path),
            "bytes": sum(p.stat().st_size for p in files),
            "removed": removed,
        }
        if removed:
            shutil.rmtree(folder.cache)
        rows.append(row)
    return rows
