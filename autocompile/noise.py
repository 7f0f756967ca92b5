"""The noise floor that is usual on this machine: what eager against eager has shown here before.

Each run measures its own floor and claims nothing below it. The history says whether this run's
is unusual: then something else is using the machine.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autocompile.errors import AutocompileError
from autocompile.files import write_json
from autocompile.stats import median

__all__ = ["remember", "unusual", "usual"]

_KEPT = 64  # of each machine, the newest
_FEW = 3  # before so many nothing is usual
_UNUSUAL = 2.0  # times the usual floor, and at least ...
_NOTEWORTHY = 0.01  # ... this: below it nobody minds


def _path() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "autocompile" / "noise.json"


def _key(environment: Mapping[str, Any]) -> str:
    named = ("device_name", "cpu", "cores", "torch")
    return " · ".join(str(environment.get(name, "")) for name in named)


def _history() -> dict[str, list[float]]:
    with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
        read = json.loads(_path().read_text("utf-8"))
        return {str(k): [float(x) for x in v] for k, v in read.items()}
    return {}


def usual(environment: Mapping[str, Any]) -> float | None:
    """The median floor of earlier runs here, as a fraction; None while there are too few.

    Args:
        environment: of a run: machine and torch tell the histories apart.
    """
    floors = _history().get(_key(environment), [])
    return median(floors) if len(floors) >= _FEW else None


def remember(environment: Mapping[str, Any], floors: Sequence[float]) -> None:
    """Add a run's floors, one for each phase; a home that cannot be written costs nothing else."""
    history, key = _history(), _key(environment)
    history[key] = [*history.get(key, []), *floors][-_KEPT:]
    with contextlib.suppress(OSError, RuntimeError, AutocompileError):
        _path().parent.mkdir(parents=True, exist_ok=True)
        write_json(_path(), history)


def unusual(floor: float, usual_floor: float | None) -> str:
    """A sentence if a run's floor is well above the usual; empty if not."""
    if usual_floor is None or floor < max(_UNUSUAL * usual_floor, _NOTEWORTHY):
        return ""
    return (
        "this machine is noisier than usual: eager differs from itself by "
        f"±{100 * floor:.1f} % here, usually by ±{100 * usual_floor:.1f} %"
    )
