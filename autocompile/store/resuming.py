"""The command that goes on with a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from autocompile.request import Request
from autocompile.settings.option import Kept, kept_names
from autocompile.store.run import Run


def resuming(run: Run, path: str | Path, *more: str) -> str:
    """The command that goes on with a run, by what ``run.json`` holds.

    It names the run's folder: ``--resume`` alone goes on with the newest run of the target, which
    may be another one by the time at which somebody reads a report.
    """
    request, folder = run.request, Path(path)
    options: dict[str, Any] = {
        name: getattr(request, name) for name in kept_names(Request, Kept.RESUME)
    }
    if request.ray is not None:  # the run is called as its type of machine
        options["accelerators"], folder = (folder.name,), folder.parent
    options["run_dir"] = folder
    if not isinstance(options.get("sampler", ""), str):
        del options["sampler"]  # an object of Python: no command can name it
    going_on = Request(request.target, **options)
    return going_on.command("--resume", *more, names=options)
