"""Creates and finds the folders of runs."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autocompile.errors import RunError
from autocompile.store.record import RunFolder

under = Path("runs")
"""Folder of all runs, below the current folder."""


def short_name(spec: str) -> str:
    """The common name of a target's runs, such as ``ppo`` for ``examples/ppo.py:config``."""
    place, _ = split_spec(spec)
    stem = Path(place).stem if place.endswith(".py") else place.rsplit(".", 1)[-1]
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", stem) or "run"


def is_same_target(one: str, other: str) -> bool:
    """Whether two specs name the same target, as ``./model.py`` and ``model.py`` do."""
    return _resolved(one) == _resolved(other)


def _resolved(spec: str) -> tuple[str, str]:
    place, name = split_spec(spec)
    return (str(Path(place).resolve()) if place.endswith(".py") else place, name)


def split_spec(spec: str) -> tuple[str, str]:
    """Split ``PATH``, ``PATH:NAME`` or ``package.module:NAME``; the name may be empty."""
    place, colon, name = spec.rpartition(":")
    return (place, name) if colon and name.isidentifier() else (spec, "")


def every(folder: Path = under) -> list[Path]:
    """Folders of runs, with those that a cluster's folder holds, the most recently changed last."""
    return _runs("*/run.json", "*/*/run.json", folder=folder)


def _runs(*patterns: str, folder: Path | None = None) -> list[Path]:
    found = [p for pattern in patterns for p in (folder or under).glob(pattern)]
    return [p.parent for p in sorted(found, key=lambda p: (p.stat().st_mtime, p))]


def new_folder(spec: str) -> RunFolder:
    """The next free folder, which is made: ``runs/<target>-0001`` and so on."""
    name = short_name(spec)
    numbers = [
        int(m[1]) for p in under.glob(f"{name}-*") if (m := re.search(r"-(\d{4,})$", p.name))
    ]
    for number in itertools.count(max(numbers, default=0) + 1):
        folder = RunFolder(under / f"{name}-{number:04d}")
        with contextlib.suppress(FileExistsError):
            folder.reserve()
            return folder
    raise AssertionError


def latest_of(spec: str) -> RunFolder:
    """The last run of a target on this machine, whatever its folder's name."""
    if (path := _of_target(spec, "*/run.json")) is not None:
        return RunFolder(path)
    name = rf"{re.escape(short_name(spec))}-\d+"
    similar = [p for p in reversed(_runs("*/run.json")) if re.fullmatch(name, p.name)][:3]
    told = [f"{p} is a run of {_target_of(p) or 'a target that cannot be read'}" for p in similar]
    elsewhere = _of_target(spec, "*/*/run.json")
    hint = f"the same command with --ray: {elsewhere} is a run on a cluster"
    raise _nothing_to_resume(f"{spec} on this machine", hint if elsewhere else "", *told)


def latest_on_cluster(spec: str) -> Path:
    """The folder of the last runs of a target on a cluster, which holds one for each type."""
    if (path := _of_target(spec, "*/*/run.json")) is not None:
        return path.parent
    elsewhere = _of_target(spec, "*/run.json")
    hint = f"the same command without --ray: {elsewhere} is a run on this machine"
    raise _nothing_to_resume(f"{spec} on a cluster", hint if elsewhere else "")


def _nothing_to_resume(what: str, hint: str, *details: str) -> RunError:
    words = f"there is no run of {what} under ./{under} to resume"
    return RunError(words, *details, hint=hint or "the same command without --resume")


def _of_target(spec: str, where: str) -> Path | None:
    """The last run of a target, of those whose ``run.json`` is there."""
    targets = ((path, _target_of(path)) for path in reversed(_runs(where)))
    return next((p for p, target in targets if target and is_same_target(target, spec)), None)


def _target_of(path: Path) -> str | None:
    """The target of a run; None if its ``run.json`` cannot be read."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads((path / "run.json").read_text("utf-8"))["plan"]["target"])
    return None


def name_of(path: str | Path, folder: Path = under) -> str:
    """A run's folder as it is called below the folder of all runs; elsewhere the path as it is."""
    whole, root = Path(os.path.abspath(path)), os.path.abspath(folder)
    return whole.relative_to(root).as_posix() if whole.is_relative_to(root) else str(path)


def tuning(target: str, options: Mapping[str, Any], *more: str) -> str:
    """The command that tunes a target, with options by parameter of :func:`autocompile.tune`."""
    words = ["autocompile", "tune", target, *more]
    for name, (flag, usual) in _FLAGS.items():
        value = options.get(name)
        if value not in (None, "", (), [], usual):
            given = value if isinstance(value, (list, tuple)) else [value]
            words += [
                flag,
                ",".join(f"{v:.15g}" if isinstance(v, float) else str(v) for v in given),
            ]
    return shlex.join(words)


_FLAGS: Mapping[str, tuple[str, Any]] = {
    "phases": ("--phase", None),
    "device": ("--device", None),
    "tolerance": ("--tolerance", None),
    "sampler": ("--sampler", "portfolio"),
    "timeout_s": ("--timeout", 300.0),
    "memory_limit_bytes": ("--memory-limit", None),
    "jobs": ("--jobs", None),
    "isolation": ("--isolation", "auto"),
    "storage": ("--storage", None),
    "ray": ("--ray", None),
    "accelerators": ("--accelerators", None),
    "run_dir": ("--run-dir", None),
}


def resuming(run: Mapping[str, Any], path: str | Path, *more: str) -> str:
    """The command that goes on with a run, by what ``run.json`` holds.

    One on a cluster is called as its kind of machine. The plan stays in the run; budget and number
    of trials are anew.
    """
    options, folder = dict(run.get("options", {})), Path(path)
    if options.get("ray"):
        options["accelerators"], folder = folder.name, folder.parent
    if options.get("ray") or folder.parent != under:  # --resume alone looks there
        options["run_dir"] = str(folder)
    return tuning(str(run["plan"]["target"]), options, "--resume", *more)


def shown(path: str) -> str:
    """The shortest name of a run that :func:`find` accepts: ``last``, its folder's name or path."""
    is_last = any(os.path.abspath(p) == os.path.abspath(path) for p in every()[-1:])
    return "last" if is_last else name_of(path)


def find(run: str | Path) -> RunFolder:
    """A run by its folder, its folder's name under ``runs``, or ``last``."""
    runs = every()
    if str(run) == "last":
        if not runs:
            raise RunError(f"there are no runs under ./{under}", hint="autocompile tune model.py")
        return RunFolder(runs[-1])
    for path in (Path(run), under / str(run)):
        if (path / "run.json").is_file():
            return RunFolder(path)
    inside = [p for p in runs if p.parent.name == Path(run).name]
    if len(inside) == 1:
        return RunFolder(inside[0])
    here = ", ".join(name_of(p) for p in inside or runs[-6:]) or "none"
    what = f"{run} holds several runs" if inside else f"there is no run {run}"
    raise RunError(what, f"{'they are' if inside else f'runs under ./{under}'}: {here}")
