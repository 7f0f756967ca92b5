"""What goes with what: why a value of a dimension makes no sense in a place or with a backend.

A function of a place says why only the default does; one of a setting, why this one is not tried.
Both give words, or an empty string.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autocompile.settings.backends import BACKENDS, Backend
from autocompile.settings.dimension import Place
from autocompile.settings.phases import OPTIMIZER_STEP, phase_of

if TYPE_CHECKING:
    from autocompile.settings.config import CompileConfig

__all__ = [
    "no_convolutions",
    "no_freezing",
    "no_numbers",
    "no_optimizer",
    "no_scope",
    "no_threads",
    "some_threads",
    "takes_freezing",
    "takes_memory_format",
    "takes_optimizer",
    "takes_scope",
]


def no_convolutions(place: Place) -> str:
    """Why what is about convolutions makes no difference in a place; empty if it may."""
    if place.phase == OPTIMIZER_STEP:
        return "an optimizer's step has no convolutions"
    return "" if place.has_convolutions else "the model has no convolutions"


def takes_memory_format(config: CompileConfig, place: Place) -> str:
    """Whether a backend leaves the layout of weights to torch."""
    lays_out = BACKENDS.get(config.backend, Backend()).lays_out
    return f"{config.backend} lays weights out as it likes" if lays_out else ""


def no_scope(place: Place) -> str:
    """Whether there are repeated blocks to compile by themselves."""
    if place.phase == OPTIMIZER_STEP:
        return "an optimizer has no blocks"
    return "" if place.regions else "the model repeats no block"


def takes_scope(config: CompileConfig, place: Place) -> str:
    """Whether blocks can be compiled by themselves under this setting."""
    if config.has_cuda_graphs and place.device == "cuda":
        return "with CUDA graphs a block overwrites what the one before it has given"
    return "frozen weights are those of a whole model" if config.freezing else ""


def no_freezing(place: Place) -> str:
    """Whether weights stay as they are in this phase."""
    trains = phase_of(place.phase).trains
    return "weights that are trained cannot be frozen" if trains else ""


def takes_freezing(config: CompileConfig, place: Place) -> str:
    """Whether the backend can freeze weights."""
    return "" if config.backend == "inductor" else "only Inductor freezes weights"


def no_optimizer(place: Place) -> str:
    """Whether an optimizer steps in this phase."""
    return "" if phase_of(place.phase).steps else "nothing steps in this phase"


def takes_optimizer(config: CompileConfig, place: Place) -> str:
    """Whether the optimizer has this implementation."""
    known = config.optimizer in place.optimizers
    return "" if known else f"the optimizer has no {config.optimizer} implementation here"


def no_threads(place: Place) -> str:
    """Whether threads matter on this device."""
    return "" if place.device == "cpu" else "threads are about CPUs"


def no_numbers(place: Place) -> str:
    """Whether matrices are multiplied in this phase."""
    is_step = place.phase == OPTIMIZER_STEP
    return "an optimizer's step multiplies no matrices" if is_step else ""


def some_threads(place: Place) -> tuple[int | None, ...]:
    """All, half of them, one: None is all."""
    fewer = {max(1, place.threads // 2), 1} - {place.threads}
    return (None, *sorted(fewer, reverse=True))
