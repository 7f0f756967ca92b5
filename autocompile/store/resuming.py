"""The command that goes on with a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autocompile.request import Request
from autocompile.settings.option import Kept, kept_names
from autocompile.store import runs


def resuming(run: Mapping[str, Any], path: str | Path, *more: str) -> str:
    """The command that goes on with a run, by what ``run.json`` holds."""
    kept, folder = run["request"], Path(path)
    names = kept_names(Request, Kept.RESUME)
    options = {name: kept[name] for name in names if kept.get(name) is not None}
    if "ray" in options:  # the run is called as its type of machine
        options["accelerators"], folder = (folder.name,), folder.parent
    if "ray" in options or folder.parent != runs.under:  # --resume alone looks there
        options["run_dir"] = folder
    request = Request(str(kept["target"]), **options)
    return request.command("--resume", *more, names=(*options,))
