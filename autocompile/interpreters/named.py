"""The names and paths of interpreters, as a user gives them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from autocompile.errors import UsageError

DEFAULT = "default"
"""The tuner's own."""


def paths_of(pythons: Iterable[str]) -> dict[str, str]:
    """The path of each interpreter by its name, of what :func:`found_interpreters` gives."""
    pairs = (text.partition("=") for text in pythons)
    return {name: path for name, _, path in pairs}


def found_interpreters(pythons: Sequence[str]) -> tuple[str, ...]:
    """Interpreters as ``NAME=PATH``, where each may be given as its path alone.

    A name that is not given is that of the folder it is installed in.
    """
    paths: dict[str, str] = {}
    for text in pythons:
        name, equals, path = text.rpartition("=")
        place = shutil.which(path if equals else text)
        if place is None:
            raise UsageError(
                f"there is no interpreter {path}, or it may not be run",
                hint=f"--python {name}{equals}.venv/bin/python",
            )
        # Not resolved: a virtual environment's interpreter is a link, and the link makes it one.
        folder = Path(place).absolute().parent
        name = name or (
            folder.parent.name if folder.name in ("bin", "Scripts") else folder.name
        )
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-") or "other"
        if name == DEFAULT or name in paths:  # the tuner's own is the default one
            raise UsageError(
                f"two environments are called {name}",
                hint=f"--python {name}-2={path or text}",
            )
        paths[name] = str(folder / Path(place).name)
    return tuple(f"{name}={path}" for name, path in paths.items())
