"""Dimension: what the table says of one field of a setting."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from autocompile.settings.config import CompileConfig

__all__ = ["Dimension", "Place"]


@dataclass(frozen=True)
class Place:
    """Where a setting is to run, as far as constraints look at it.

    Attributes:
        device: its type: ``cpu``, ``cuda``, ...
        threads: how many torch takes by itself where the phase will run.
        has_convolutions: whether the model has weights of four dimensions.
        regions: the blocks that the model repeats, in words; empty if there are none.
        optimizers: the implementations that the target's optimizer has beside its own.
        best_optimizer: the fastest of them, timed alone; empty where none was timed.
        writes_buffers: whether a call of the model changes its own buffers, as of a static cache.
    """

    phase: str
    device: str
    threads: int = 1
    has_convolutions: bool = False
    regions: str = ""
    optimizers: tuple[str, ...] = ()
    best_optimizer: str = ""
    writes_buffers: bool = False


@dataclass(frozen=True)
class Dimension:
    """A field of a setting. By default it is tried with every value that it has.

    Attributes:
        default: the value that changes nothing.
        help: of its option in the command line; without one it cannot be asked for there.
        choices: its values, where they can be listed; the default first.
        values: those to try in a place, the default first; None for ``choices``. Where neither is
            given the values come from the installed torch.
        kinds: types of its values.
        by_name: it is tried only where it is asked for, because it changes numbers or drops a
            check.
        missing: why only the default makes sense in a place; or empty.
        why_not: why a setting that has another value than the default is not tried; or empty.
        is_plain: whether a value, in a place, is the default by another name.
        needs_compiler: it means nothing in eager mode.
        in_source: all that it does is in the code that Inductor writes.
        traces_alike: Dynamo sees the same program at each value.
        bakes: what new weights cost where they are constants depends on it.
        effect: on the speed: ``per kind`` is another one in eager mode than in compiled code; none
            where it is known by other names, or there is none.
        label: of a value, in reports.
        applied: to what; an ``argument`` is one of torch.compile().
            :mod:`autocompile.runtime.applying` applies values to the model and the process.
        line: of plain torch, for exports: applies a value to the process or a ``model``.
        is_written: :mod:`autocompile.export.python` knows how to write it.
        plural: its name in a SearchSpace and in TOML, where it is not that of the field.
        option: of the command line, where it is not the name of the field.
        name: that of the field.
    """

    default: Any
    help: str = ""
    choices: tuple[Any, ...] = ()
    values: Callable[[Place], tuple[Any, ...]] | None = None
    kinds: tuple[type, ...] = (str,)
    by_name: bool = False
    missing: Callable[[Place], str] = lambda place: ""
    why_not: Callable[[CompileConfig, Place], str] = lambda config, place: ""
    is_plain: Callable[[Any, Place], bool] = lambda value, place: False
    needs_compiler: bool = False
    in_source: bool = False
    traces_alike: bool = False
    bakes: bool = False
    effect: Literal["none", "same", "per kind"] = "same"
    label: Callable[[Any], str] = str
    applied: Literal["argument", "process", "model", "call", "optimizer", "interpreter"] = "call"
    line: Callable[[Any], str] | None = None
    is_written: bool = False
    plural: str = ""
    option: str = ""
    name: str = ""

    def field(self) -> Any:
        return dataclasses.field(default=self.default, metadata={"dimension": self})

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
