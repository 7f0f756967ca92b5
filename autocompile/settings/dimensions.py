"""What goes with what: one entry for each dimension, and nothing elsewhere.

A new dimension is a field of :class:`autocompile.settings.config.CompileConfig`, a line where it
is applied, and an entry in :data:`DIMENSIONS`; a backend is an entry in
:data:`autocompile.settings.backends.BACKENDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from autocompile.settings.backends import BACKENDS, Backend
from autocompile.settings.config import (
    AUTOCASTS,
    GUARDS,
    MEMORY_FORMATS,
    OPTIMIZERS,
    PRECISIONS,
    SCOPES,
    CompileConfig,
)

__all__ = [
    "DENIED",
    "DIMENSIONS",
    "OTHERS_OPTIONS",
    "Dimension",
    "Place",
    "no_convolutions",
    "own_options",
    "why_not",
]

_TRAINING = ("forward_train", "optimizer_step", "train_step", "learner_update")
_STEPPING = ("optimizer_step", "train_step", "learner_update")


@dataclass(frozen=True)
class Place:
    """Where a setting is to run, as far as constraints look at it.

    Attributes:
        phase: what is timed.
        device: its type: ``cpu``, ``cuda``, ...
        threads: how many torch takes by itself.
        has_convolutions: whether the model has weights of four dimensions.
        regions: the blocks that the model repeats, in words; empty if there are none.
        optimizers: the implementations that the target's optimizer has beside its own.
    """

    phase: str
    device: str
    threads: int = 1
    has_convolutions: bool = False
    regions: str = ""
    optimizers: tuple[str, ...] = ()


def own_options(backend: str) -> set[str]:
    """The names of the options of a backend other than Inductor, which tells its own."""
    known = BACKENDS.get(backend, Backend())
    return set() if known.has_modes else {name for v in known.variants for name in v.options}


OTHERS_OPTIONS = frozenset(name for backend in BACKENDS for name in own_options(backend))

DENIED: Mapping[str, str] = {
    "freezing": "as an option it does nothing for a module's parameters: --freezing true",
    "compile_threads": "trials compile on one thread each",
    "fx_graph_cache": "a trial's compile time is that of an empty cache",
    "force_disable_caches": "a trial's compile time is that of an empty cache",
    "fallback_random": "it is for comparing a phase that draws random numbers with eager",
}
"""Options of Inductor that are not taken, and why."""


@dataclass(frozen=True)
class Dimension:
    """A field of a setting that is tried with several values.

    Attributes:
        field: of the setting.
        values: all that there are in a place, the plain one first.
        by_name: it is tried only where it is asked for, because it changes numbers or drops a
            check.
        missing: why nothing but the plain value makes sense in a place; or empty.
        why_not: why a setting that has another value than the plain one is not tried; or empty.
        is_plain: whether a value, in a place, is the plain one by another name.
    """

    field: str
    values: Callable[[Place], tuple[Any, ...]]
    by_name: bool
    missing: Callable[[Place], str]
    why_not: Callable[[CompileConfig, Place], str] = lambda config, place: ""
    is_plain: Callable[[Any, Place], bool] = lambda value, place: False


def no_convolutions(place: Place) -> str:
    """Why what is about convolutions makes no difference in a place; empty if it may."""
    if place.phase == "optimizer_step":
        return "an optimizer's step has no convolutions"
    return "" if place.has_convolutions else "the model has no convolutions"


def _takes_memory_format(config: CompileConfig, place: Place) -> str:
    lays_out = BACKENDS.get(config.backend, Backend()).lays_out
    return f"{config.backend} lays weights out as it likes" if lays_out else ""


def _no_scope(place: Place) -> str:
    if place.phase == "optimizer_step":
        return "an optimizer has no blocks"
    return "" if place.regions else "the model repeats no block"


def _takes_scope(config: CompileConfig, place: Place) -> str:
    if config.has_cuda_graphs and place.device == "cuda":
        return "with CUDA graphs a block overwrites what the one before it has given"
    return "frozen weights are those of a whole model" if config.freezing else ""


def _no_freezing(place: Place) -> str:
    return "weights that are trained cannot be frozen" if place.phase in _TRAINING else ""


def _takes_freezing(config: CompileConfig, place: Place) -> str:
    return "" if config.backend == "inductor" else "only Inductor freezes weights"


def _no_optimizer(place: Place) -> str:
    return "" if place.phase in _STEPPING else "nothing steps in this phase"


def _takes_optimizer(config: CompileConfig, place: Place) -> str:
    known = config.optimizer in place.optimizers
    return "" if known else f"the optimizer has no {config.optimizer} implementation here"


def _no_threads(place: Place) -> str:
    return "" if place.device == "cpu" else "threads are about CPUs"


def _no_numbers(place: Place) -> str:
    is_step = place.phase == "optimizer_step"
    return "an optimizer's step multiplies no matrices" if is_step else ""


def _some_threads(place: Place) -> tuple[int | None, ...]:
    """All, half of them, one: None is all."""
    fewer = {max(1, place.threads // 2), 1} - {place.threads}
    return (None, *sorted(fewer, reverse=True))


DIMENSIONS = (
    Dimension(
        "memory_format", lambda _: MEMORY_FORMATS, False, no_convolutions, _takes_memory_format
    ),
    Dimension(
        "optimizer",
        lambda place: ("default", *(o for o in OPTIMIZERS if o in place.optimizers)),
        False,
        _no_optimizer,
        _takes_optimizer,
    ),
    Dimension("freezing", lambda _: (False, True), False, _no_freezing, _takes_freezing),
    Dimension("scope", lambda _: SCOPES, False, _no_scope, _takes_scope),
    Dimension(
        "threads",
        _some_threads,
        False,
        _no_threads,
        is_plain=lambda value, place: bool(value == place.threads),
    ),
    Dimension("precision", lambda _: PRECISIONS, True, _no_numbers),
    Dimension("autocast", lambda _: AUTOCASTS, True, _no_numbers),
    Dimension("guards", lambda _: GUARDS, True, lambda place: ""),
)


def why_not(config: CompileConfig, place: Place) -> str:
    """Why a setting is not tried in a place, in words; empty if it is."""
    backend = BACKENDS.get(config.backend)
    if backend and not backend.trains and place.phase in _TRAINING:
        return f"{config.backend} computes no gradients"
    for dimension in DIMENSIONS:
        plain = CompileConfig.__dataclass_fields__[dimension.field].default
        if getattr(config, dimension.field) == plain:
            continue
        if reason := dimension.missing(place) or dimension.why_not(config, place):
            return reason
    return ""
