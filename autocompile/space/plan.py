"""What was asked for: kept in ``run.json``, so that a resumed run asks for the same."""

from __future__ import annotations

import inspect
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from autocompile.errors import RunError, TargetError, UsageError
from autocompile.estimate.candidates import Limits
from autocompile.protocol.requests import Header
from autocompile.settings.tuned import Tuned
from autocompile.space.space import SearchSpace
from autocompile.store.runs import is_same_target, split_spec

EFFORTS = {"quick": 90.0, "normal": 300.0, "full": None}
"""Seconds of a run; None: to the end of the list of settings."""
OBJECTIVES = ("throughput", "latency")


def budget_of(effort: str) -> float | None:
    """The budget of an effort, in seconds."""
    if effort not in EFFORTS:
        raise UsageError(f"effort {effort!r} is none of {', '.join(EFFORTS)}")
    return EFFORTS[effort]


@dataclass(frozen=True)
class Plan:
    """One request to tune, with the parameters of :func:`autocompile.tune`."""

    target: str  # as a spec: PATH, PATH:NAME or package.module:NAME
    phases: tuple[str, ...] | None = None
    space: SearchSpace = field(default_factory=SearchSpace)
    effort: str = "normal"
    objective: str = "throughput"
    limits: Limits = field(default_factory=Limits)
    device: str | None = None
    seed: int = 0
    tolerance: float | None = None
    calls_per_update: int | None = None
    # Name and interpreter of each environment beside the tuner's own.
    pythons: tuple[tuple[str, str], ...] = ()
    # Batch size and config of what is tried of each phase, beside eager mode and plain
    # torch.compile(); None for all that the space gives.
    only: Mapping[str, Sequence[tuple[int | None, Mapping[str, Any]]]] | None = None

    def __post_init__(self) -> None:
        budget_of(self.effort)
        if self.objective not in OBJECTIVES:
            raise UsageError(f"objective {self.objective!r} is none of {', '.join(OBJECTIVES)}")
        if self.phases is not None and len(set(self.phases)) != len(self.phases):
            raise UsageError("a phase is named twice")
        if self.calls_per_update is not None and self.calls_per_update < 1:
            raise UsageError(f"{self.calls_per_update} calls per update are fewer than one")
        if self.tolerance is not None and not 0 < self.tolerance < 1:
            raise UsageError(
                f"the tolerance {self.tolerance} is not between 0 and 1",
                "it is relative: at 0.01 outputs may differ from eager's by 1 % of their size",
            )

    @property
    def header(self) -> Header:
        return Header(self.target, self.device, self.seed, self.tolerance)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """Read what :meth:`to_dict` wrote; a RunError if this version does not know all of it."""
        fields: dict[str, Any] = {**data, "limits": limits_of(data)}
        fields["pythons"] = tuple((name, path) for name, path in data.get("pythons", ()))
        fields["phases"] = None if data["phases"] is None else tuple(data["phases"])
        try:
            return cls(**{**fields, "space": SearchSpace(**data["space"])})
        except TypeError as error:
            hint = "go on with it in the autocompile that it was made with"
            raise RunError(f"the run asks for something else: {error}", hint=hint) from None

    def demand_same(self, asked: Mapping[str, Any]) -> None:
        """Check that a run with this plan may go on, by the fields that are asked for now."""
        wanted = Plan(**asked)
        for name in asked:
            mine, theirs = getattr(wanted, name), getattr(self, name)
            if mine == theirs or (name == "target" and is_same_target(mine, theirs)):
                continue
            raise UsageError(
                f"the run was made with another {name}",
                f"it has {theirs}, now {mine} was asked for",
                hint="leave the option out, or start a new run without --resume",
            )


def asked_for(**given: Any) -> dict[str, Any]:
    """Without what nobody has asked for: of a new run the default, of a resumed one as it was."""
    nothing = (None, (), SearchSpace(), Limits())
    return {name: value for name, value in given.items() if value not in nothing}


def limits_of(data: Mapping[str, Any]) -> Limits:
    """The limits of a plan as ``run.json`` holds it, as far as this version knows them."""
    return Limits(**{n: data["limits"].get(n) for n in Limits.__dataclass_fields__})


def environments(pythons: Sequence[str], only: Tuned | None = None) -> tuple[tuple[str, str], ...]:
    """A name for each interpreter: ``NAME=PATH``, or that of the folder it is installed in.

    Settings that are tried ``only`` bring the interpreters that they are of; paths that are given
    go before those that the settings name.
    """
    if only is not None:
        given = dict(environments(pythons))
        theirs = {n: only.interpreters.get(n, n) for n in sorted(only.environments)}
        pythons = [f"{name}={path}" for name, path in {**theirs, **given}.items()]
    found: dict[str, str] = {}
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
        name = name or (folder.parent.name if folder.name in ("bin", "Scripts") else folder.name)
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-") or "other"
        if name == "default":
            raise UsageError(
                "default is the environment of autocompile's own interpreter",
                hint=f"--python other={path or text}",
            )
        if name in found:
            raise UsageError(
                f"two environments are called {name}", hint=f"--python {name}-2={path or text}"
            )
        found[name] = str(folder / Path(place).name)
    return tuple(found.items())


def target_spec(target: str | Path | Callable[..., Any]) -> str:
    """A target as text. A path must exist; an object must be importable by its name."""
    if isinstance(target, (str, Path)):
        return _checked(str(target))
    name = getattr(target, "__qualname__", None)
    module = getattr(target, "__module__", None)
    if not (inspect.isfunction(target) or inspect.isclass(target)) or not name or "." in name:
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


def _checked(spec: str) -> str:
    place, name = split_spec(spec)
    looks_like_path = place.endswith(".py") or "/" in place or "\\" in place
    if looks_like_path or not name:
        path = Path(place)
        if not path.exists():
            folder = path.parent if path.parent.is_dir() else Path(".")
            names = sorted(p.name for p in folder.glob("*.py"))[:8]
            raise TargetError(
                f"there is no file {place}",
                *([f"Python files in {folder}: {', '.join(names)}"] if names else []),
                hint="autocompile init model.py   (writes a file to start from)",
            )
        if path.is_dir() or path.suffix != ".py":
            raise TargetError(f"{place} is not a Python file", "a target is a file ending in .py")
    return spec
