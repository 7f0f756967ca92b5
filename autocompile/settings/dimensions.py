"""The table of dimensions: a new one is a row here and a field, and what applies it.

The fields are those of :class:`CompileConfig`, and of :class:`SearchSpace` if it is searched.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from autocompile.settings.phases import OPTIMIZER_STEP, phase_of

if TYPE_CHECKING:
    from autocompile.settings.config import CompileConfig


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


DDP: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "one_bucket": {"bucket_cap_mb": 1 << 20},  # more than any model has
    "unsplit": {},
    "bucket_views": {"gradient_as_bucket_view": True},
    "static_graph": {"static_graph": True},
}
"""What DistributedDataParallel is given beside the model, what is most likely to gain first.

``one_bucket`` averages all gradients at the end, so that graphs stay whole; ``unsplit`` has Dynamo
not split them at the buckets; the others are arguments. In which order a model is compiled and
wrapped makes no difference: Dynamo splits graphs in either (torch 2.13).
"""
FSDP: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "kept": {"reshard_after_forward": False},
}
"""What ``fully_shard`` is given beside the module: ``kept`` lets the backward pass find parameters
gathered, for memory."""
_LIMIT = 8  # of programs for one function: torch._dynamo.config.recompile_limit


@dataclass(frozen=True)
class Place:
    """Where a setting is to run, as far as constraints look at it."""

    phase: str
    device: str  # its type: cpu, cuda, ...
    threads: int = 1  # how many torch takes by itself where the phase will run
    has_convolutions: bool = False  # the model has weights of four dimensions
    # the blocks that the model repeats, in words; empty if there are none
    regions: str = ""
    # Implementations that the target's optimizer has beside its own.
    optimizers: tuple[str, ...] = ()
    # a call changes the model's own buffers, as of a static cache
    writes_buffers: bool = False
    kinds: int = 1  # how many of the calls differ in shapes or plain arguments
    strategy: str = ""  # how several ranks average gradients; empty for one process


@dataclass(frozen=True)
class Dimension:
    """What the table says of one field of a setting."""

    name: str
    default: Any  # the value that changes nothing
    help: str = ""  # of its option in the command line; without one it cannot be asked for there
    # Its values, where they can be listed; the default first.
    choices: tuple[Any, ...] = ()
    # Those to try in a place, the default first; None for ``choices``. Where neither is given the
    # values come from the installed torch.
    values: Callable[[Place], tuple[Any, ...]] | None = None
    kinds: tuple[type, ...] = (str,)  # types of its values
    # tried only where asked for: it changes numbers or drops a check
    by_name: bool = False
    # Why only the default makes sense in a place; or empty.
    missing: Callable[[Place], str] = lambda place: ""
    # Why a setting that has another value than the default is not tried; or empty.
    why_not: Callable[[CompileConfig, Place], str] = lambda config, place: ""
    needs_compiler: bool = False  # it means nothing in eager mode
    # On the speed: ``per kind`` is another one in eager mode than in compiled code; none where it
    # is known by other names, or there is none.
    effect: Literal["none", "same", "per kind"] = "same"
    label: Callable[[Any], str] = str  # of a value, in reports
    # To what; an ``argument`` is one of torch.compile(). ``runtime/applying.py`` applies values to
    # the model and the process.
    applied: Literal[
        "argument", "process", "model", "call", "optimizer", "interpreter"
    ] = "call"
    # Of plain torch, for exports: applies a value to the process or a ``model``.
    line: Callable[[Any], str] | None = None
    is_written: bool = False  # ``export/lines.py`` knows how to write it
    # its name in a SearchSpace and in TOML, where it is not that of the field
    plural: str = ""
    option: str = ""  # of the command line, where it is not the name of the field

    @property
    def asked(self) -> str:
        """Its name in a SearchSpace and in TOML."""
        return self.plural or self.name

    @property
    def parameter(self) -> str:
        return self.option or self.name

    @property
    def flag(self) -> str:
        return f"--{self.parameter.replace('_', '-')}"

    @property
    def needs_apply(self) -> bool:
        """Whether exports have no line of plain torch for it, and call ``autocompile.apply``."""
        written = self.is_written or self.applied in ("argument", "interpreter")
        return not written and self.line is None

    @property
    def is_listed(self) -> bool:
        return bool(self.choices or self.values)

    def tried(self, place: Place) -> tuple[Any, ...]:
        """All values that there are in a place, the default first."""
        return self.values(place) if self.values else self.choices


def no_convolutions(place: Place) -> str:
    """Why what is about convolutions makes no difference in a place; empty if it may."""
    if place.phase == OPTIMIZER_STEP:
        return "an optimizer's step has no convolutions"
    return "" if place.has_convolutions else "the model has no convolutions"


def _scopes(place: Place) -> tuple[str, ...]:
    has_whole = phase_of(place.phase).whole and not place.strategy
    return ("model", "regional", *(("step",) if has_whole else ()))


def _no_blocks(place: Place) -> str:
    if place.phase == OPTIMIZER_STEP:
        return "an optimizer has no blocks"
    return "" if place.regions else "the model repeats no block"


def _no_scope(place: Place) -> str:
    return "" if phase_of(place.phase).whole else _no_blocks(place)


def _takes_scope(config: CompileConfig, place: Place) -> str:
    if config.scope == "step" and place.strategy:
        return "what averages gradients is outside of what is compiled"
    if config.scope == "step":
        is_there = phase_of(place.phase).whole
        return "" if is_there else f"{place.phase} has no step around the model"
    if reason := _no_blocks(place):
        return reason
    if config.has_cuda_graphs and place.device == "cuda":
        return "with CUDA graphs a block overwrites what the one before it has given"
    return "frozen weights are those of a whole model" if config.freezing else ""


def _takes_memory_format(config: CompileConfig, place: Place) -> str:
    if place.strategy == "fsdp2":
        return "FSDP2 splits contiguous weights only"
    return (
        f"{config.backend} lays weights out as it likes"
        if config.entry.lays_out
        else ""
    )


def _optimizers(place: Place) -> tuple[str, ...]:
    """Other phases that step compile the optimizer's step by their backend."""
    offered = {
        *place.optimizers,
        *(("compiled",) if phase_of(place.phase).whole else ()),
    }
    return ("default", *(o for o in OPTIMIZERS if o in offered))


def _takes_optimizer(config: CompileConfig, place: Place) -> str:
    if config.optimizer == "compiled" and config.scope == "step":
        return "the whole step holds the optimizer's"
    known = config.optimizer in _optimizers(place)
    return (
        "" if known else f"the optimizer has no {config.optimizer} implementation here"
    )


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


def _ddp(place: Place) -> tuple[str, ...]:
    return tuple(DDP) if place.strategy == "ddp" else ("default",)


def _takes_ddp(config: CompileConfig, place: Place) -> str:
    if place.strategy != "ddp":
        return "nothing wraps the model in DistributedDataParallel"
    if config.is_eager:  # six seconds each on two GPUs, for a few per cent
        return "how DistributedDataParallel is made is tried with compiled models"
    if config.ddp == "unsplit" and config.scope == "regional":
        return "only graphs of a whole model are split at its buckets"
    return ""


def _fsdp(place: Place) -> tuple[str, ...]:
    return tuple(FSDP) if place.strategy == "fsdp2" else ("default",)


def _no_fsdp(place: Place) -> str:
    return "" if place.strategy == "fsdp2" else "nothing splits the model's parameters"


def _some_limits(place: Place) -> tuple[int | None, ...]:
    """A limit is needed where there are more shapes than torch makes programs for."""
    if place.kinds <= _LIMIT:
        return (None,)
    # A power of two, so that a few more fit.
    return (None, 1 << place.kinds.bit_length())


def _takes_static(config: CompileConfig, place: Place) -> str:
    if config.dynamic is not False:
        return ""
    if phase_of(place.phase).is_update and place.kinds > 1:
        return "the train batches of a learner have more sizes than a pass shows"
    if place.kinds <= _LIMIT or config.recompile_limit:
        return ""
    return f"{place.kinds} kinds of calls pass torch's limit of {_LIMIT} programs"


_argument = functools.partial(Dimension, needs_compiler=True, applied="argument")


# fmt: off
DIMENSIONS = (
    Dimension(
        "backend", "inductor", "comma list, e.g. inductor,cudagraphs", plural="backends",
        effect="none", applied="argument",
    ),
    _argument(
        "mode", "default", "comma list of Inductor modes", plural="modes", effect="none",
    ),
    _argument(
        "options", (), "Inductor's, e.g. cpp_wrapper=true; repeatable, none for none",
        option="option", kinds=(tuple,), effect="none",
        label=lambda pairs: " · ".join(f"{name}={value}" for name, value in pairs),
    ),
    _argument(
        "fullgraph", False, "comma list of true, false", (False, True), kinds=(bool,),
        effect="none", label=lambda value: "fullgraph",
    ),
    _argument(
        "dynamic", None, "comma list of none, true, false", (None, True, False),
        # With one shape all are the same program; the others only where they are asked for.
        lambda place: (None, True, False) if place.kinds > 1 else (None,),
        kinds=(bool, type(None)), why_not=_takes_static,
        label=lambda value: "dynamic" if value else "static",
    ),
    _argument(
        "recompile_limit", None, "comma list of numbers: programs for one function, 8 if left out",
        values=_some_limits, kinds=(int, type(None)),
        why_not=lambda config, _: "" if config.dynamic is False else "it is for static shapes",
        label=lambda count: f"up to {count} programs",
    ),
    Dimension(
        "scope", "model", "comma list of model, regional, step", ("model", "regional", "step"),
        _scopes, missing=_no_scope, why_not=_takes_scope, needs_compiler=True, is_written=True,
        label=lambda value: "whole step" if value == "step" else value,
    ),
    Dimension(
        "freezing", False, "comma list of true, false", (False, True), kinds=(bool,),
        missing=_no_freezing,
        why_not=lambda c, _: "" if c.entry.by_inductor else "only Inductor freezes weights",
        needs_compiler=True, label=lambda value: "frozen weights",
    ),
    Dimension(
        "memory_format", "default", "comma list of default, channels_last",
        ("default", "channels_last"), missing=no_convolutions, why_not=_takes_memory_format,
        effect="per kind", applied="model",
        line=lambda value: f"model = model.to(memory_format=torch.{value})",
    ),
    Dimension(
        "optimizer", "default", "comma list, e.g. default,foreach,fused,tensor_lr",
        tuple(OPTIMIZERS), _optimizers,
        missing=lambda p: "" if phase_of(p.phase).steps else "nothing steps in this phase",
        why_not=_takes_optimizer, effect="per kind", applied="optimizer", is_written=True,
        label=lambda value: f"{value} optimizer",
    ),
    Dimension(
        "ddp", "default", "comma list, e.g. default,one_bucket,unsplit; of --ranks", tuple(DDP),
        _ddp, why_not=_takes_ddp, effect="per kind", label=lambda value: f"DDP {value}",
    ),
    Dimension(
        "fsdp", "default", "comma list of default, kept; of --strategy fsdp2", tuple(FSDP),
        _fsdp, missing=_no_fsdp, effect="per kind", label=lambda value: f"FSDP {value}",
    ),
    Dimension(
        "threads", None, "comma list, e.g. 1,2; all if left out",
        values=_some_threads, kinds=(int, type(None)),
        missing=lambda place: "" if place.device == "cpu" else "threads are about CPUs",
        effect="per kind", applied="process",
        label=lambda count: f"{count} thread{'s' * (count != 1)}",
        line=lambda count: f"torch.set_num_threads({count})",
    ),
    Dimension(
        "precision", "default", "comma list of default, high, medium: changes numbers",
        ("default", "high", "medium"), by_name=True, missing=_no_numbers,
        effect="per kind", applied="process", label=lambda value: f"{value} precision",
        line=lambda value: f'torch.set_float32_matmul_precision("{value}")',
    ),
    Dimension(
        "autocast", "none", "comma list of none, bfloat16, float16: changes numbers",
        ("none", "bfloat16", "float16"), by_name=True, missing=_no_numbers, effect="per kind",
        is_written=True, label=lambda value: f"autocast {value}",
    ),
    Dimension("environment", "default", applied="interpreter"),
)
"""In the order of reports. Each is a field of :class:`CompileConfig`."""
# fmt: on
_BATCH_SIZE = Dimension(
    "batch_size", None, "comma list, e.g. 1,4,16", kinds=(int,), plural="batch_sizes"
)
SEARCHED = (*DIMENSIONS[:2], _BATCH_SIZE, *(d for d in DIMENSIONS[2:] if d.help))
"""What a search can be asked to try."""


def why_not(config: CompileConfig, place: Place) -> str:
    """Why a setting is not tried in a place; empty if it is."""
    if not config.entry.trains and phase_of(place.phase).trains:
        return f"{config.backend} computes no gradients"
    reasons = (
        d.missing(place) or d.why_not(config, place) for d, _ in config.changed()
    )
    return next(filter(None, reasons), "")
