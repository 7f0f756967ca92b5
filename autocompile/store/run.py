"""What ``run.json`` holds, typed: what was asked for, what was found, how far it has come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_type_hints

from autocompile.errors import NEWER, RunError, UsageError
from autocompile.request import Request
from autocompile.settings.config import CompileConfig
from autocompile.store.files import write_json
from autocompile.store.reading import Part, known, made, plain
from autocompile.store.record import SCHEMA, RunFolder

_BY_PHASE = dict[str, int | None]
TARGET: Mapping[str, Any] = {
    "kind": str,
    "description": str,
    "parameters": int | None,
    "phases": list[str],
    "own_batch_size": _BY_PHASE,
    "calls_per_update": _BY_PHASE,
    "samples_per_update": _BY_PHASE,
    "threads": _BY_PHASE,
    "operators": _BY_PHASE,
    "regions": dict[str, str],
    "optimizers": list[str],
    "optimizer": dict[str, Any] | None,
    "choices": dict[str, str],
    "has_convolutions": bool,
}
"""The types of facts about a target that reports and exports are made of."""


@dataclass(frozen=True, kw_only=True)
class Untried(Part):
    """A setting that was not tried, and how much faster than the best it may be.

    ``likely`` is expected, ``most`` is exceeded with a chance of one in ten, as fractions.
    """

    config: CompileConfig
    likely: float
    most: float


@dataclass(frozen=True, kw_only=True)
class Searched(Part):
    """What the search of a phase says of its settings: ``spaces`` in ``run.json``.

    Attributes:
        configs: settings that there are to try at each batch size; None: not known.
        compiled: those of them that are compiled.
        untried: pairs of a setting and a batch size that have no result.
        unusable: why, by backends that do not work here.
        dropped: how many were left out, by reason.
        merged: modes that are the same as others.
        rest: untried settings that may be faster at the batch size that the phase's answer
            is about, most promising first; None where the sampler cannot say.
        unseen: families that work here and of which nothing was tried there.
    """

    configs: int | None = None
    compiled: int | None = None
    untried: int | None = None
    unusable: Mapping[str, str] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    merged: Mapping[str, str] = field(default_factory=dict)
    rest: tuple[Untried, ...] | None = None
    unseen: tuple[str, ...] = ()


@dataclass(kw_only=True)
class Run:
    """A run, but for its trials.

    Attributes:
        request: what it was begun with; of the options of a session, those of the last.
        environment: torch and the machine, as the probe has found them.
        target: facts about the target, as the probe has found them.
        phases: that are timed.
        id: tells it from another one in a folder of the same name.
        environments: of other interpreters, by their names, each with its ``python_path``.
        sources: digests of the target's files, by path.
        batch_sizes: that each phase's answer is about; None for a phase without one.
        spaces: what the search says of each phase; empty before it has begun.
        toolchain_s: seconds of the first compile; None where it was not timed.
        interrupted: until it has finished.
        wall_s: seconds that it has taken, over all sessions.
        spent_trials: ``--trials`` of the last session, where that ended its search; else 0.
        running: whether a process is at work on it now; not kept.
    """

    request: Request
    environment: Mapping[str, Any]
    target: Mapping[str, Any]
    phases: tuple[str, ...]
    id: str = ""
    environments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    batch_sizes: dict[str, int | None] = field(default_factory=dict)
    spaces: Mapping[str, Searched] = field(default_factory=dict)
    toolchain_s: float | None = None
    interrupted: bool = True
    wall_s: float = 0.0
    spent_trials: int = 0
    running: bool = False

    @classmethod
    def read(cls, folder: RunFolder) -> Run:
        """The run of a folder; a RunError if there is none, or it cannot be read."""
        try:
            return cls.from_dict(folder.read_run())
        except (UsageError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(
                f"{folder.run_json} is damaged, or was written by a newer version: {error}",
                hint=f"{NEWER}   (if one wrote it)",
            ) from None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Run:
        """Read what :meth:`to_dict` gave; what a newer version has beside it is left out."""
        hints, values = get_type_hints(cls), known(cls, data)
        for name in values.keys() - {"request"}:
            values[name] = made(hints[name], values[name], name)
        target = values["target"]
        for name in target.keys() & TARGET.keys():
            made(TARGET[name], target[name], f"{name} of the target")
        values["request"] = Request.known(values["request"])
        return cls(**values)

    def write(self, folder: RunFolder) -> None:
        write_json(folder.run_json, self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """The content of ``run.json``."""
        kept = {f.name: getattr(self, f.name) for f in fields(self)}
        del kept["running"]
        request = self.request.to_dict()
        return {"schema": SCHEMA, **plain(kept), "request": request}
