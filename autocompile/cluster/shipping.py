"""The files of a target that stations need: its own, and what it imports from beside it."""

from __future__ import annotations

import ast
import base64
import os
from dataclasses import dataclass
from pathlib import Path

from autocompile.errors import TargetError

__all__ = ["Shipment", "shipment_of"]

_MOST_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Shipment:
    """Files, base64 by their path under ``place``."""

    files: dict[str, str]
    place: str
    target: str  # as jobs are to name it


def shipment_of(spec: str) -> Shipment:
    """The files of a target, as far as they are here; an installed module ships nothing.

    Local imports are found by reading the source, so data files and modules that are imported by a
    computed name are not among them.

    Raises:
        TargetError: together they are too large.
    """
    here = Path.cwd()
    file, name = _file_of(spec, here)
    if file is None:
        return Shipment({}, str(here), spec)
    is_inside = here in file.parents
    place = here if is_inside else file.parent
    found = {path.relative_to(place): path.read_bytes() for path in _closure(file, place)}
    if (total := sum(map(len, found.values()))) > _MOST_BYTES:
        raise TargetError(
            f"{spec} and what it needs from beside it are {total / 2**20:.0f} MiB",
            f"at most {_MOST_BYTES >> 20} MiB are sent to each station",
            hint="install large parts on every node, or load weights from a path they share",
        )
    files = {str(path): base64.b64encode(data).decode() for path, data in found.items()}
    target = spec if is_inside and not os.path.isabs(spec) and ".." not in spec else None
    return Shipment(files, str(place), target or f"{file}{name}")


def _file_of(spec: str, here: Path) -> tuple[Path | None, str]:
    """The file of a target and ``:NAME``; None for a module that is not in this folder."""
    place, colon, name = spec.rpartition(":")
    if not colon or not name.isidentifier():
        place, colon, name = spec, "", ""
    if place.endswith(".py") or Path(place).is_file():
        return Path(os.path.abspath(place)), colon + name
    return _module(place, [here]), colon + name


def _module(name: str, folders: list[Path]) -> Path | None:
    for folder in folders:
        path = folder.joinpath(*name.split("."))
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return file
    return None


def _closure(file: Path, place: Path) -> list[Path]:
    """The file and all that it imports under ``place``, with the packages they are in."""
    found, todo = set[Path](), [file]
    while todo:
        path = todo.pop()
        if path in found or (place not in path.parents):
            continue
        found.add(path)
        folders = [file.parent, path.parent, place]
        for name in _imports(path, place):
            parts = name.split(".")
            for end in range(1, len(parts) + 1):  # a package's __init__ runs before its modules
                if (each := _module(".".join(parts[:end]), folders)) is not None:
                    todo.append(each)
        todo += [p / "__init__.py" for p in path.parents if (p / "__init__.py").is_file()]
    return sorted(found)


def _imports(path: Path, place: Path) -> list[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # the trial tells
        return []
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = path.parents[node.level - 1]
                if package != place and place not in package.parents:
                    continue
                base = ".".join([*package.relative_to(place).parts, *filter(None, [base])])
            names += [base, *(f"{base}.{each.name}" for each in node.names)]
    return [name.strip(".") for name in names if name.strip(".")]
