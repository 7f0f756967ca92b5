"""What a space is made of: what is asked for, what is offered, a setting, and the list of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autocompile.errors import UsageError
from autocompile.settings.config import CompileConfig, OptionValue
from autocompile.settings.dimensions import DIMENSIONS
from autocompile.store.record import Record

__all__ = ["Catalogue", "SearchSpace", "Setting", "Space", "choices", "plainer_twins"]

DEFAULT_BATCH_SIZES = (1, 4, 16)


@dataclass(frozen=True)
class SearchSpace:
    """What a user asks for; None leaves a dimension to the effort and to what is here.

    Attributes:
        backends: names that Dynamo knows, or that the target registers; ``eager`` is always in.
        modes: Inductor's modes.
        batch_sizes: positive; not used by ``optimizer_step``.
        fullgraph, dynamic: the values to try.
        options: of Inductor, each a tuple of pairs; ``()`` for none.
        scope, memory_format, optimizer, freezing, threads: as in :class:`CompileConfig`.
        precision, autocast, guards: likewise; tried only where they are asked for, since they
            change numbers or drop checks.

    Raises:
        UsageError: an empty dimension, a batch size below 1, or a value that does not exist.
    """

    backends: tuple[str, ...] | None = None
    modes: tuple[str, ...] | None = None
    batch_sizes: tuple[int, ...] | None = None
    fullgraph: tuple[bool, ...] | None = None
    dynamic: tuple[bool | None, ...] | None = None
    options: tuple[tuple[tuple[str, OptionValue], ...], ...] | None = None
    scope: tuple[str, ...] | None = None
    memory_format: tuple[str, ...] | None = None
    optimizer: tuple[str, ...] | None = None
    freezing: tuple[bool, ...] | None = None
    threads: tuple[int | None, ...] | None = None
    precision: tuple[str, ...] | None = None
    autocast: tuple[str, ...] | None = None
    guards: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            values = getattr(self, name)
            if values is not None and not isinstance(values, (tuple, list)):
                raise UsageError(
                    f"{name}: {values!r} is no tuple of values", hint=f"{name}=({values!r},)"
                )
            object.__setattr__(self, name, None if values is None else tuple(values))
            if values is not None and not values:
                raise UsageError(f"the dimension {name} is empty")
        if self.options is not None:  # mappings will do
            pairs = (o.items() if isinstance(o, Mapping) else o for o in self.options)
            object.__setattr__(self, "options", tuple(tuple(each) for each in pairs))
        for name, kinds in _KINDS.items():
            for value in getattr(self, name) or ():
                if type(value) not in kinds:
                    raise UsageError(f"{name}: {value!r} is no {kinds[0].__name__}")
        if self.options and any(self.options) and set(self.modes or ()) - {"default"}:
            raise UsageError(
                "modes and options are asked for, and torch takes either",
                hint="a run with --mode, and another with --option",
            )
        plain = "default" in (self.modes or ("default",)) or "all" in (self.guards or ("all",))
        if not plain:
            raise UsageError(
                "modes and filters of guards are asked for, and torch takes either",
                hint="--mode default, or --guards all,... to try both beside one another",
            )
        for size in self.batch_sizes or ():
            if size < 1:
                raise UsageError(f"batch size {size} is below 1", hint="--batch-size 1,4,16")
        for dimension in DIMENSIONS:
            for value in getattr(self, dimension.field) or ():
                CompileConfig(**{dimension.field: value})  # raises where there is no such value


_KINDS: Mapping[str, tuple[type, ...]] = {
    "backends": (str,),
    "modes": (str,),
    "batch_sizes": (int,),
    "fullgraph": (bool,),
    "dynamic": (bool, type(None)),
    "freezing": (bool,),
    "threads": (int, type(None)),
}


@dataclass(frozen=True)
class Catalogue:
    """What the probe found.

    Attributes:
        backends: each backend to try, with the reason why it cannot be used here, or "".
        all_backends: every name that Dynamo knows, the target's own included.
        modes: Inductor's modes, each with the plainest mode that is equal to it on this device.
        device: as torch names it.
        options: the names of Inductor's options.
    """

    backends: Mapping[str, str]
    all_backends: Sequence[str]
    modes: Mapping[str, str]
    device: str
    options: Sequence[str] = ()

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Catalogue:
        """Read it from what the probe has sent."""
        return cls(
            backends=found["backends"],
            all_backends=found["all_backends"],
            modes=found["modes"],
            device=found["environment"]["device"].split(":")[0],
            options=found.get("options", ()),
        )


@dataclass(frozen=True)
class Setting:
    """One point of the space: a config at a batch size of a phase."""

    config: CompileConfig
    batch_size: int | None
    phase: str = "forward"

    @classmethod
    def of(cls, record: Record) -> Setting:
        """What a record is about."""
        return cls(record.config, record.batch_size, record.phase)

    @property
    def cell(self) -> tuple[str, int | None]:
        """Phase and batch size: speeds are compared within it."""
        return self.phase, self.batch_size

    def params(self) -> dict[str, Any]:
        """As Optuna stores it; ``None`` is spelled out, since dashboards drop it."""
        options = ",".join(f"{name}={value}" for name, value in self.config.options)
        return {
            "phase": self.phase,
            "backend": self.config.backend,
            "mode": self.config.mode,
            "options": options or "none",
            "fullgraph": self.config.fullgraph,
            "dynamic": str(self.config.dynamic).lower(),
            "batch_size": self.batch_size or 0,
            "environment": self.config.environment,
            **{d.field: str(getattr(self.config, d.field)).lower() for d in DIMENSIONS},
        }


def plainer_twins(setting: Setting) -> list[Setting]:
    """Settings whose result answers this one if nothing broke the graph and nothing recompiled.

    Under ``fullgraph`` that compiles there is one graph, as without it, and torch does a few
    microseconds more at each call: it is never the faster one. ``dynamic=False`` is no such twin of
    ``None``: to set it at each call costs twice as much again.
    """
    if not setting.config.fullgraph:
        return []
    plain = dataclasses.replace(setting.config, fullgraph=False)
    return [dataclasses.replace(setting, config=plain)]


def choices(settings: Sequence[Setting]) -> dict[str, list[Any]]:
    """The values of each Optuna parameter, in the order in which they come first."""
    every = [s.params() for s in settings]
    return {name: list(dict.fromkeys(p[name] for p in every)) for name in every[0]}


@dataclass(frozen=True)
class Space:
    """The settings of one phase.

    Attributes:
        settings: all that differ, in the order in which they were enumerated; baselines first.
        unusable: settings that are recorded without being run, with the reason.
        merged: pairs of words: what was left out, and what it equals here.
        dropped: why values and combinations were left out, and how many that are.
        raw: how many combinations there were before merging and dropping.
    """

    phase: str
    settings: tuple[Setting, ...]
    unusable: Mapping[Setting, str]
    merged: Mapping[str, str] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    raw: int = 0

    def summary(self) -> str:
        """One line for the screen."""
        values = choices((*self.settings, *self.unusable))
        words = {"backend": "backend", "mode": "mode", "batch_size": "batch size"}
        counted = {word: len(values[name]) for name, word in words.items()}
        parts = [f"{count} {word}s" for word, count in counted.items() if count > 1]
        plain = ("environment", "fullgraph", "dynamic", "options", *(d.field for d in DIMENSIONS))
        parts += [name.replace("_", " ") for name in plain if len(values[name]) > 1]
        kept = len(self.settings) + len(self.unusable)
        return f"{' × '.join(parts)} → {self.raw} settings, {kept} after merging equals"
