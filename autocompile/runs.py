"""Where runs are: making, finding and going on with their folders."""

from __future__ import annotations

import re
from pathlib import Path

from autocompile.errors import RunError
from autocompile.record import RunFolder

__all__ = ["find", "latest_of", "new_folder", "short_name", "shown", "under"]

under = Path("runs")
"""Where runs are made, below the current folder."""


def short_name(spec: str) -> str:
    """The name that runs of a target share: ``examples/ppo.py:config`` gives ``ppo``."""
    place, colon, name = spec.rpartition(":")
    if not colon or not name.isidentifier():
        place = spec
    stem = Path(place).stem if place.endswith(".py") else place.rsplit(".", 1)[-1]
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", stem) or "run"


def _all() -> list[Path]:
    """Folders of runs, the one that was worked on last at the end."""
    found = [p.parent for p in under.glob("*/run.json")]
    return sorted(found, key=lambda p: ((p / "run.json").stat().st_mtime, p.name))


def new_folder(spec: str) -> RunFolder:
    """A folder that does not exist yet: ``runs/<target>-0001`` and so on."""
    name = short_name(spec)
    numbers = [
        int(m[1]) for p in under.glob(f"{name}-*") if (m := re.search(r"-(\d{4,})$", p.name))
    ]
    return RunFolder(under / f"{name}-{max(numbers, default=0) + 1:04d}")


def latest_of(spec: str) -> RunFolder:
    """The last run of a target.

    Raises:
        RunError: there is none.
    """
    name = short_name(spec)
    ours = [p for p in _all() if re.fullmatch(rf"{re.escape(name)}-\d+", p.name)]
    if not ours:
        raise RunError(
            f"there is no run of {spec} under ./{under} to go on with",
            hint="the same command without --resume",
        )
    return RunFolder(ours[-1])


def shown(path: str) -> str:
    """A run as a user would type it: ``last`` where it is that, or its short name or folder."""
    everything = _all()
    if everything and everything[-1].resolve() == Path(path).resolve():
        return "last"
    inside = Path(path).parent.resolve() == under.resolve()
    return Path(path).name if inside else path


def find(run: str | Path) -> RunFolder:
    """A run by its folder, its short name, or ``last``.

    Raises:
        RunError: there is none; those that are there are listed.
    """
    runs = _all()
    if str(run) == "last":
        if not runs:
            raise RunError(f"there are no runs under ./{under}", hint="autocompile tune model.py")
        return RunFolder(runs[-1])
    for path in (Path(run), under / str(run)):
        if (path / "run.json").is_file():
            return RunFolder(path)
    here = ", ".join(p.name for p in runs[-6:]) or "none"
    raise RunError(f"there is no run {run}", f"runs under ./{under}: {here}")
