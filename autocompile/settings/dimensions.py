"""The table of dimensions: what a setting is made of.

A new dimension is one field of :class:`Values` and the function that applies it. A backend is an
entry in :data:`autocompile.settings.backends.BACKENDS`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from autocompile.settings import constraints
from autocompile.settings.backends import BACKENDS, OptionValue
from autocompile.settings.dimension import Dimension, Place, entry
from autocompile.settings.phases import phase_of

if TYPE_CHECKING:
    from autocompile.settings.config import CompileConfig

__all__ = ["DIMENSIONS", "GUARD_FILTERS", "OPTIMIZERS", "SEARCHED", "Values", "why_not"]

OPTIMIZERS = ("default", "for_loop", "foreach", "fused", "capturable", "tensor_lr")
"""How an optimizer steps; ``default`` is as the target made it."""
GUARD_FILTERS = {
    "skip_inbuilt_modules": "skip_guard_on_inbuilt_nn_modules_unsafe",
    "skip_modules": "skip_guard_on_all_nn_modules_unsafe",
    "keep_tensors": "keep_tensor_guards_unsafe",
    "skip_all": "skip_all_guards_unsafe",
}
"""What is checked at each call before compiled code is taken: names in ``torch.compiler``."""


@dataclass(frozen=True)
class Values:
    """A value of each dimension: every field is an entry of the table, in the order of reports."""

    backend: str = entry(
        "inductor",
        Dimension(
            "comma list, e.g. inductor,cudagraphs",
            plural="backends",
            traces_alike=True,
            effect="none",
            applied="argument",
        ),
    )
    mode: str = entry(
        "default",
        Dimension(
            "comma list of Inductor modes",
            plural="modes",
            needs_compiler=True,
            in_source=True,
            traces_alike=True,
            effect="none",
            applied="argument",
        ),
    )
    options: tuple[tuple[str, OptionValue], ...] = entry(
        (),
        Dimension(
            "Inductor's, e.g. cpp_wrapper=true; repeatable, none for none",
            option="option",
            kinds=(tuple,),
            needs_compiler=True,
            in_source=True,
            traces_alike=True,
            effect="none",
            label=lambda pairs: " · ".join(f"{name}={value}" for name, value in pairs),
            applied="argument",
        ),
    )
    fullgraph: bool = entry(
        False,
        Dimension(
            "comma list of true, false",
            (False, True),
            kinds=(bool,),
            needs_compiler=True,
            in_source=True,
            traces_alike=True,
            effect="none",
            label=lambda value: "fullgraph",
            applied="argument",
        ),
    )
    dynamic: bool | None = entry(
        None,
        Dimension(
            "comma list of none, true, false",
            (None, True, False),
            lambda place: (None,),  # the others only where they are asked for
            kinds=(bool, type(None)),
            needs_compiler=True,
            in_source=True,
            traces_alike=True,
            label=lambda value: "dynamic" if value else "static",
            applied="argument",
        ),
    )
    scope: str = entry(
        "full",
        Dimension(
            "comma list of full, regional",
            ("full", "regional"),
            missing=constraints.no_scope,
            why_not=constraints.takes_scope,
            needs_compiler=True,
            is_written=True,
        ),
    )
    freezing: bool = entry(
        False,
        Dimension(
            "comma list of true, false",
            (False, True),
            kinds=(bool,),
            missing=constraints.no_freezing,
            why_not=constraints.takes_freezing,
            needs_compiler=True,
            traces_alike=True,
            label=lambda value: "frozen weights",
        ),
    )
    memory_format: str = entry(
        "default",
        Dimension(
            "comma list of default, channels_last",
            ("default", "channels_last"),
            missing=constraints.no_convolutions,
            why_not=constraints.takes_memory_format,
            traces_alike=True,
            effect="per kind",
            applied="model",
            line=lambda value: f"model = model.to(memory_format=torch.{value})",
        ),
    )
    optimizer: str = entry(
        "default",
        Dimension(
            "comma list, e.g. default,foreach,fused,tensor_lr",
            OPTIMIZERS,
            lambda place: ("default", *(o for o in OPTIMIZERS if o in place.optimizers)),
            missing=constraints.no_optimizer,
            why_not=constraints.takes_optimizer,
            effect="per kind",
            label=lambda value: f"{value} optimizer",
            applied="optimizer",
            is_written=True,
        ),
    )
    threads: int | None = entry(
        None,
        Dimension(
            "comma list, e.g. 1,2; all if left out",
            values=constraints.some_threads,
            kinds=(int, type(None)),
            missing=constraints.no_threads,
            is_plain=lambda value, place: bool(value == place.threads),
            traces_alike=True,
            effect="per kind",
            label=lambda count: f"{count} thread{'s' * (count != 1)}",
            applied="process",
            line=lambda count: f"torch.set_num_threads({count})",
        ),
    )
    precision: str = entry(
        "default",
        Dimension(
            "comma list of default, high, medium: changes numbers",
            ("default", "high", "medium"),
            by_name=True,
            missing=constraints.no_numbers,
            traces_alike=True,
            label=lambda value: f"{value} precision",
            applied="process",
            line=lambda value: f'torch.set_float32_matmul_precision("{value}")',
        ),
    )
    autocast: str = entry(
        "none",
        Dimension(
            "comma list of none, bfloat16, float16: changes numbers",
            ("none", "bfloat16", "float16"),
            by_name=True,
            missing=constraints.no_numbers,
            label=lambda value: f"autocast {value}",
            is_written=True,
        ),
    )
    guards: str = entry(
        "all",
        Dimension(
            "comma list, e.g. all,skip_inbuilt_modules: drops checks",
            ("all", *GUARD_FILTERS),
            by_name=True,
            needs_compiler=True,
            traces_alike=True,
            label=lambda value: f"guards {value}",
            is_written=True,
        ),
    )
    environment: str = entry("default", Dimension(applied="interpreter"))


DIMENSIONS = tuple(
    replace(f.metadata["dimension"], name=f.name, default=f.default) for f in fields(Values)
)
_BATCH_SIZE = Dimension(
    "comma list, e.g. 1,4,16", kinds=(int,), plural="batch_sizes", name="batch_size"
)
SEARCHED = (*DIMENSIONS[:2], _BATCH_SIZE, *(d for d in DIMENSIONS[2:] if d.help))
"""What a search can be asked to try."""


def why_not(config: CompileConfig, place: Place) -> str:
    """Why a setting is not tried in a place, in words; empty if it is."""
    backend = BACKENDS.get(config.backend)
    if backend and not backend.trains and phase_of(place.phase).trains:
        return f"{config.backend} computes no gradients"
    reasons = (d.missing(place) or d.why_not(config, place) for d, _ in config.changed())
    return next(filter(None, reasons), "")
