"""The source files of a target: its own, and what it imports from beside it."""

from __future__ import annotations

import ast
import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from autocompile.store.targets import library_model, split_spec


@dataclass(frozen=True)
class Sources:
    """What a target's files hold."""

    place: Path  # the folder that they are in, the current one or the target's
    files: dict[str, bytes]  # contents by path under it, in order
    file: Path  # the target's own
    name: str  # of the target in it, after a colon; may be empty


def sources_of(spec: str) -> Sources | None:
    """The files of a target, as far as they are here; None for an installed module.

    Local imports are found by reading the source, so data files and modules that are imported by a
    computed name are not among them.
    """
    if library_model(spec):
        return None
    here = Path.cwd()
    place, _ = split_spec(spec)
    if place.endswith(".py") or Path(place).is_file():
        file: Path | None = Path(os.path.abspath(place))
    else:
        file = _module(place, [here])
    if file is None:
        return None
    folder = here if here in file.parents else file.parent
    contents = sorted(_closure(file, folder).items())
    files = {str(p.relative_to(folder)): data for p, data in contents}
    return Sources(folder, files, file, spec.removeprefix(place))


def _module(name: str, folders: list[Path]) -> Path | None:
    for folder in folders:
        path = folder.joinpath(*name.split("."))
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return file
    return None


def _closure(file: Path, place: Path) -> dict[Path, bytes]:
    """The file and all that it imports under ``place``, with the packages they are in."""
    contents, todo = dict[Path, bytes](), [file]
    while todo:
        path = todo.pop()
        if path in contents or (place not in path.parents):
            continue
        with contextlib.suppress(OSError):  # the trial tells
            contents[path] = path.read_bytes()
        folders = [file.parent, path.parent, place]
        for name in _imports(path, contents.get(path, b""), place):
            parts = name.split(".")
            # A package's __init__ runs before its modules.
            for end in range(1, len(parts) + 1):
                if (each := _module(".".join(parts[:end]), folders)) is not None:
                    todo.append(each)
        todo += [
            p / "__init__.py" for p in path.parents if (p / "__init__.py").is_file()
        ]
    return contents


def _imports(path: Path, source: bytes, place: Path) -> list[str]:
    try:
        tree = ast.parse(source)
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
                base = ".".join(
                    [*package.relative_to(place).parts, *filter(None, [base])]
                )
            names += [base, *(f"{base}.{each.name}" for each in node.names)]
    return [name.strip(".") for name in names if name.strip(".")]
