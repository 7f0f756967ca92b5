"""How targets are named: by a file, by what a module defines, or by a library's model."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autocompile.errors import TargetError

LIBRARIES = ("timm", "torchvision", "transformers", "diffusers")
"""Those whose models are targets by their names, without a file."""


def is_same_target(one: str, other: str) -> bool:
    """Whether two specs name the same target, as ``./model.py`` and ``model.py`` do."""
    if library_model(one):
        return library_model(one) == library_model(other)
    (place, name), (other_place, other_name) = split_spec(one), split_spec(other)
    if place.endswith(".py") and other_place.endswith(".py"):
        return (Path(place).resolve(), name) == (
            Path(other_place).resolve(),
            other_name,
        )
    return (place, name) == (other_place, other_name)


def split_spec(spec: str) -> tuple[str, str]:
    """Split ``PATH``, ``PATH:NAME`` or ``package.module:NAME``; the name may be empty."""
    place, colon, name = spec.rpartition(":")
    return (place, name) if colon and name.isidentifier() else (spec, "")


def library_model(spec: str) -> tuple[str, str, dict[str, str]] | None:
    """Library, model and options of ``LIBRARY:MODEL?KEY=VALUE&KEY=VALUE``; None of other specs."""
    library, colon, rest = spec.partition(":")
    if library not in LIBRARIES or not colon:
        return None
    model, _, query = rest.partition("?")
    pairs = (each.partition("=") for each in query.split("&") if each)
    return library, model, {key: value for key, _, value in pairs}


def short_name(spec: str) -> str:
    """What a run's folder is called after: the file, module or model of a target."""
    place, _ = split_spec(spec)
    stem = Path(place).stem if place.endswith(".py") else place.rsplit(".", 1)[-1]
    if found := library_model(spec):
        stem = found[1]
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", stem) or "run"


def target_spec(target: str | Path | Callable[..., Any]) -> str:
    """A target as text. A path must exist; an object must be importable by its name."""
    if isinstance(target, (str, Path)):
        return _checked_spec(str(target))
    name = getattr(target, "__qualname__", None)
    module = getattr(target, "__module__", None)
    if (
        not (inspect.isfunction(target) or inspect.isclass(target))
        or not name
        or "." in name
    ):
        raise TargetError(
            f"a {type(target).__name__} alone is no target",
            "a live model comes with its inputs; else give a path or 'package.module:NAME'",
            hint="autocompile.tune(model, inputs)",
        )
    if module != "__main__":
        return f"{module}:{name}"
    file = getattr(sys.modules["__main__"], "__file__", None)
    if file is None:
        raise TargetError(
            f"{name} was typed in, and a trial's process needs it in a file",
            hint=f"autocompile.tune({name}, inputs)",
        )
    return f"{file}:{name}"


def _checked_spec(spec: str) -> str:
    if library_model(spec):
        return spec  # a trial's process knows whether there is such a model
    place, name = split_spec(spec)
    if not place.strip():
        raise TargetError(
            "no target is named",
            "a target is model.py, model.py:NAME, package.module:NAME or LIBRARY:MODEL",
        )
    looks_like_path = place.endswith(".py") or "/" in place or "\\" in place
    if looks_like_path or not name:
        path = Path(place)
        if not path.exists():
            if Path(file := place.rpartition(":")[0]).is_file():
                raise TargetError(f"{place!r} names nothing in {file}")
            hint = "autocompile init model.py   (writes a file to start from)"
            raise TargetError(f"there is no file {place}", hint=hint)
        if path.is_dir() or path.suffix != ".py":
            raise TargetError(
                f"{place} is not a Python file", "a target is a file ending in .py"
            )
    return spec
