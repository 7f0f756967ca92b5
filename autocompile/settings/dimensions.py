"""The table of dimensions: a new one is one field of :class:`Values`, and what applies it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from autocompile.settings.backends import OptionValue
from autocompile.settings.dimension import Dimension, Place
from autocompile.settings.phases import OPTIMIZER_STEP, phase_of

if TYPE_CHECKING:
    from autocompile.settings.config import CompileConfig

__all__ = ["DIMENSIONS", "GUARD_FILTERS", "OPTIMIZERS", "SEARCHED", "Values", "why_not"]

OPTIMIZERS: Mapping[str, Mapping[str, bool]] = {
    "default": {},  # as the target made it
    "for_loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True, "fused": False},
    "fused": {"fused": True, "foreach": False},
    "capturable": {"capturable": True, "fused": False},
    "tensor_lr": {},  # the learning rate is a tensor
    "compiled": {},  # plain torch.compile() of the step alone
}
"""How an optimizer steps: its arguments in ``torch.optim``, the one that it is named by first."""
GUARD_FILTERS = {
    "skip_inbuilt_modules": "skip_guard_on_inbuilt_nn_modules_unsafe",
    "skip_modules": "skip_guard_on_all_nn_modules_unsafe",
    "keep_tensors": "keep_tensor_guards_unsafe",
    "skip_all": "skip_all_guards_unsafe",
}
"""What is checked at each call before compiled code is taken: names in ``torch.compiler``."""


def no_convolutions(place: Place) -> str:
    """Why what is about convolutions makes no difference in a place; empty if it may."""
    if place.phase == OPTIMIZER_STEP:
        return "an optimizer's step has no convolutions"
    return "" if place.has_convolutions else "the model has no convolutions"


def _scopes(place: Place) -> tuple[str, ...]:
    return ("model", "regional", *(("step",) if phase_of(place.phase).whole else ()))


def _no_blocks(place: Place) -> str:
    if place.phase == OPTIMIZER_STEP:
        return "an optimizer has no blocks"
    return "" if place.regions else "the model repeats no block"


def _no_scope(place: Place) -> str:
    return "" if phase_of(place.phase).whole else _no_blocks(place)


def _takes_scope(config: CompileConfig, place: Place) -> str:
    if config.scope == "step":
        is_there = phase_of(place.phase).whole
        return "" if is_there else f"{place.phase} has no step around the model"
    if reason := _no_blocks(place):
        return reason
    if config.has_cuda_graphs and place.device == "cuda":
        return "with CUDA graphs a block overwrites what the one before it has given"
    return "frozen weights are those of a whole model" if config.freezing else ""


def _takes_memory_format(config: CompileConfig, place: Place) -> str:
    return f"{config.backend} lays weights out as it likes" if config.entry.lays_out else ""


def _optimizers(place: Place) -> tuple[str, ...]:
    """Other phases that step compile the optimizer's step by their backend."""
    offered = {*place.optimizers, *(("compiled",) if phase_of(place.phase).whole else ())}
    return ("default", *(o for o in OPTIMIZERS if o in offered))


def _takes_optimizer(config: CompileConfig, place: Place) -> str:
    if config.optimizer == "compiled" and config.scope == "step":
        return "the whole step holds the optimizer's"
    known = config.optimizer in _optimizers(place)
    return "" if known else f"the optimizer has no {config.optimizer} implementation here"


def _no_numbers(place: Place) -> str:
    is_step = place.phase == OPTIMIZER_STEP
    return "an optimizer's step multiplies no matrices" if is_step else ""


def _some_threads(place: Place) -> tuple[int | None, ...]:
    """All, half of them, one: None is all."""
    fewer = {max(1, place.threads // 2), 1} - {place.threads}
    return (None, *sorted(fewer, reverse=True))


def _no_freezing(place: Place) -> str:
    if phase_of(place.phase).trains:
        return "weights that are trained cannot be frozen"
    return "the model writes to its own buffers" if place.writes_buffers else ""


# An argument of torch.compile() whose whole effect is in the code that comes out.
_argument = functools.partial(
    Dimension, needs_compiler=True, in_source=True, traces_alike=True, applied="argument"
)


@dataclass(frozen=True)
class Values:
    """A value of each dimension: every field is an entry of the table, in the order of reports."""

    backend: str = Dimension(
        "inductor",
        "comma list, e.g. inductor,cudagraphs",
        plural="backends",
        traces_alike=True,
        bakes=True,
        effect="none",
        applied="argument",
    ).field()
    mode: str = _argument(
        "default", "comma list of Inductor modes", plural="modes", bakes=True, effect="none"
    ).field()
    options: tuple[tuple[str, OptionValue], ...] = _argument(
        (),
        "Inductor's, e.g. cpp_wrapper=true; repeatable, none for none",
        option="option",
        kinds=(tuple,),
        bakes=True,
        effect="none",
        label=lambda pairs: " · ".join(f"{name}={value}" for name, value in pairs),
    ).field()
    fullgraph: bool = _argument(
        False,
        "comma list of true, false",
        (False, True),
        kinds=(bool,),
        effect="none",
        label=lambda value: "fullgraph",
    ).field()
    dynamic: bool | None = _argument(
        None,
        "comma list of none, true, false",
        (None, True, False),
        lambda place: (None,),  # the others only where they are asked for
        kinds=(bool, type(None)),
        label=lambda value: "dynamic" if value else "static",
    ).field()
    scope: str = Dimension(
        "model",
        "comma list of model, regional, step",
        ("model", "regional", "step"),
        _scopes,
        missing=_no_scope,
        why_not=_takes_scope,
        needs_compiler=True,
        label=lambda value: "whole step" if value == "step" else value,
        is_written=True,
    ).field()
    freezing: bool = Dimension(
        False,
        "comma list of true, false",
        (False, True),
        kinds=(bool,),
        missing=_no_freezing,
        why_not=lambda c, _: "" if c.entry.by_inductor else "only Inductor freezes weights",
        needs_compiler=True,
        traces_alike=True,
        bakes=True,
        label=lambda value: "frozen weights",
    ).field()
    memory_format: str = Dimension(
        "default",
        "comma list of default, channels_last",
        ("default", "channels_last"),
        missing=no_convolutions,
        why_not=_takes_memory_format,
        traces_alike=True,
        effect="per kind",
        applied="model",
        line=lambda value: f"model = model.to(memory_format=torch.{value})",
    ).field()
    optimizer: str = Dimension(
        "default",
        "comma list, e.g. default,foreach,fused,tensor_lr",
        tuple(OPTIMIZERS),
        _optimizers,
        missing=lambda p: "" if phase_of(p.phase).steps else "nothing steps in this phase",
        why_not=_takes_optimizer,
        effect="per kind",
        label=lambda value: f"{value} optimizer",
        applied="optimizer",
        is_written=True,
    ).field()
    threads: int | None = Dimension(
        None,
        "comma list, e.g. 1,2; all if left out",
        values=_some_threads,
        kinds=(int, type(None)),
        missing=lambda place: "" if place.device == "cpu" else "threads are about CPUs",
        is_plain=lambda value, place: bool(value == place.threads),
        traces_alike=True,
        effect="per kind",
        label=lambda count: f"{count} thread{'s' * (count != 1)}",
        applied="process",
        line=lambda count: f"torch.set_num_threads({count})",
    ).field()
    precision: str = Dimension(
        "default",
        "comma list of default, high, medium: changes numbers",
        ("default", "high", "medium"),
        by_name=True,
        missing=_no_numbers,
        traces_alike=True,
        label=lambda value: f"{value} precision",
        applied="process",
        line=lambda value: f'torch.set_float32_matmul_precision("{value}")',
    ).field()
    autocast: str = Dimension(
        "none",
        "comma list of none, bfloat16, float16: changes numbers",
        ("none", "bfloat16", "float16"),
        by_name=True,
        missing=_no_numbers,
        label=lambda value: f"autocast {value}",
        is_written=True,
    ).field()
    guards: str = Dimension(
        "all",
        "comma list, e.g. all,skip_inbuilt_modules: drops checks",
        ("all", *GUARD_FILTERS),
        by_name=True,
        needs_compiler=True,
        traces_alike=True,
        label=lambda value: f"guards {value}",
        is_written=True,
    ).field()
    environment: str = Dimension("default", applied="interpreter").field()


DIMENSIONS = tuple(replace(f.metadata["dimension"], name=f.name) for f in fields(Values))
_BATCH_SIZE = Dimension(
    None, "comma list, e.g. 1,4,16", kinds=(int,), plural="batch_sizes", name="batch_size"
)
SEARCHED = (*DIMENSIONS[:2], _BATCH_SIZE, *(d for d in DIMENSIONS[2:] if d.help))
"""What a search can be asked to try."""


def why_not(config: CompileConfig, place: Place) -> str:
    """Why a setting is not tried in a place; empty if it is."""
    if not config.entry.trains and phase_of(place.phase).trains:
        return f"{config.backend} computes no gradients"
    reasons = (d.missing(place) or d.why_not(config, place) for d, _ in config.changed())
    return next(filter(None, reasons), "")
