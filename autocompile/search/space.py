"""The finite list of settings of one phase: what was asked for, crossed with what is offered here.

The catalogue comes from the installed torch, read by a probe in a trial's process; nothing about
backends or modes is written down here. Settings that cannot differ on this device are one.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autocompile.config import EAGER, CompileConfig
from autocompile.errors import UsageError
from autocompile.search.effort import Effort

__all__ = ["Catalogue", "SearchSpace", "Setting", "Space", "build_space"]

DEFAULT_BATCH_SIZES = (1, 4, 16)


@dataclass(frozen=True)
class SearchSpace:
    """What a user asks for; None leaves a dimension to the effort and to what is here.

    Attributes:
        backends: names that Dynamo knows, or that the target registers; ``eager`` is always in.
        modes: Inductor's modes.
        batch_sizes: positive; not used by ``optimizer_step``.
        fullgraph, dynamic: the values to try.

    Raises:
        UsageError: an empty dimension, or a batch size below 1.
    """

    backends: tuple[str, ...] | None = None
    modes: tuple[str, ...] | None = None
    batch_sizes: tuple[int, ...] | None = None
    fullgraph: tuple[bool, ...] | None = None
    dynamic: tuple[bool | None, ...] | None = None

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) == ():
                raise UsageError(f"the dimension {name} is empty")
        for size in self.batch_sizes or ():
            if size < 1:
                raise UsageError(f"batch size {size} is below 1", hint="--batch-size 1,4,16")


@dataclass(frozen=True)
class Catalogue:
    """What the probe found.

    Attributes:
        backends: each backend to try, with the reason why it cannot be used here, or "".
        all_backends: every name that Dynamo knows, the target's own included.
        modes: Inductor's modes, each with the plainest mode that is equal to it on this device.
        device: as torch names it.
    """

    backends: Mapping[str, str]
    all_backends: Sequence[str]
    modes: Mapping[str, str]
    device: str


@dataclass(frozen=True)
class Setting:
    """One point of the space."""

    config: CompileConfig
    batch_size: int | None

    def params(self) -> dict[str, Any]:
        """As Optuna stores it; ``None`` is spelled out, since dashboards drop it."""
        return {
            "backend": self.config.backend,
            "mode": self.config.mode,
            "fullgraph": self.config.fullgraph,
            "dynamic": str(self.config.dynamic).lower(),
            "batch_size": self.batch_size or 0,
        }


@dataclass(frozen=True)
class Space:
    """The settings of one phase.

    Attributes:
        settings: all that differ, in the order in which they were enumerated; baselines first.
        unusable: settings that are recorded without being run, with the reason.
        merged: pairs of words: what was left out, and what it equals here.
        raw: how many combinations there were before merging.
    """

    phase: str
    settings: tuple[Setting, ...]
    unusable: Mapping[Setting, str]
    merged: Mapping[str, str] = field(default_factory=dict)
    raw: int = 0

    def choices(self) -> dict[str, list[Any]]:
        """The values of each Optuna parameter."""
        every = [s.params() for s in (*self.settings, *self.unusable)]
        return {name: list(dict.fromkeys(p[name] for p in every)) for name in every[0]}

    def baselines(self) -> list[Setting]:
        """Eager, default inductor, and the two modes that most often win, where they differ."""
        first = {EAGER: 0, CompileConfig(): 1}
        for mode in ("reduce-overhead", "max-autotune-no-cudagraphs"):
            first[CompileConfig(mode=mode)] = 2
        ours = [s for s in self.settings if s.config in first]
        return sorted(ours, key=lambda s: first[s.config])

    def summary(self) -> str:
        """One line for the screen."""
        values = self.choices()
        words = {"backend": "backend", "mode": "mode", "batch_size": "batch size"}
        parts = []
        for name, word in words.items():
            count = len(values[name])
            if count > 1:
                parts.append(f"{count} {word}s")
        parts += [name for name in ("fullgraph", "dynamic") if len(values[name]) > 1]
        kept = len(self.settings) + len(self.unusable)
        return f"{' × '.join(parts)} → {self.raw} settings, {kept} after merging equals"


def build_space(
    phase: str,
    wanted: SearchSpace,
    offered: Catalogue,
    effort: Effort,
    batch_sizes: Sequence[int | None],
) -> Space:
    """Enumerate the settings of a phase.

    Raises:
        UsageError: a backend or a mode that does not exist here.
    """
    modes = _modes(wanted, offered)
    merged = {
        f"mode {name}": f"{equal} (no other effect on {offered.device})"
        for name, equal in offered.modes.items()
        if name != equal and name in (wanted.modes or offered.modes)
    }
    if "inductor" not in (wanted.backends or offered.backends):
        merged = {}
    flags = list(
        itertools.product(wanted.fullgraph or effort.fullgraph, wanted.dynamic or effort.dynamic)
    )
    asked = [b for b in (wanted.backends or offered.backends) if b != "eager"]
    configs: list[CompileConfig] = [EAGER]
    unusable: dict[Setting, str] = {}
    raw = 1
    for backend in asked:
        _check_backend(backend, offered)
        names = modes if backend == "inductor" else ["default"]
        raw += len(wanted.modes or offered.modes) * len(flags)
        if reason := offered.backends.get(backend, ""):
            unusable[Setting(CompileConfig(backend), batch_sizes[0])] = reason
            continue
        configs += [
            CompileConfig(backend, mode, fullgraph=fullgraph, dynamic=dynamic)
            for mode in names
            for fullgraph, dynamic in flags
        ]
    plain = CompileConfig()
    if "inductor" in asked and plain not in configs:
        configs.insert(1, plain)  # always measured: the answer is compared with it
    settings = [Setting(c, size) for c in dict.fromkeys(configs) for size in batch_sizes]
    return Space(phase, tuple(settings), unusable, merged, raw * len(batch_sizes))


def _modes(wanted: SearchSpace, offered: Catalogue) -> list[str]:
    for mode in wanted.modes or ():
        if mode not in offered.modes:
            raise UsageError(
                f"mode {mode!r} is unknown to this torch",
                f"it knows: {', '.join(offered.modes)}",
            )
    names = wanted.modes or tuple(offered.modes)
    return list(dict.fromkeys(offered.modes[name] for name in names))


def _check_backend(name: str, offered: Catalogue) -> None:
    if name in offered.all_backends or name in ("onnxrt", "ipex", "openvino", "tensorrt"):
        return
    close = difflib.get_close_matches(name, [*offered.all_backends, "eager"], 1)
    raise UsageError(
        f"backend {name!r} is unknown to torch and is not registered by the target",
        f"known here: {', '.join(n for n in offered.all_backends if 'TESTING' not in n)}",
        hint=f"--backend {close[0]}" if close else "autocompile doctor",
    )
