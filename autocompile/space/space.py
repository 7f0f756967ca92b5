"""What is asked for, and the list of settings that comes of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from autocompile.errors import UsageError
from autocompile.settings.config import CompileConfig
from autocompile.settings.dimension import Dimension
from autocompile.settings.dimensions import DIMENSIONS, SEARCHED
from autocompile.settings.setting import Setting, choices
from autocompile.store.record import Outcome, Record

__all__ = ["DEFAULT_BATCH_SIZES", "SearchSpace", "Space"]

DEFAULT_BATCH_SIZES = (1, 4, 16)
Asked = TypeVar("Asked")


def _of_the_table(cls: type[Asked]) -> type[Asked]:
    """A frozen dataclass with a field, None by default, for each dimension."""
    cls.__annotations__ = {d.asked: "tuple[Any, ...] | None" for d in SEARCHED}
    for d in SEARCHED:
        setattr(cls, d.asked, None)
    return dataclass(frozen=True)(cls)


@_of_the_table
class SearchSpace:
    """What a user asks for: values of a dimension, or None for those that make sense here.

    A dimension is named as in :class:`CompileConfig`, but for ``backends``, ``modes`` and
    ``batch_sizes``. Eager mode is always in. ``options`` are tuples of pairs or mappings, ``()``
    for none; ``precision``, ``autocast`` and ``guards`` are tried only where they are asked for,
    since they change numbers or drop checks.

    Raises:
        UsageError: an empty dimension, a batch size below 1, or an unknown value.
    """

    if TYPE_CHECKING:  # the fields are those of the table
        __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

        def __init__(self, *values: Sequence[Any] | None, **named: Sequence[Any] | None) -> None:
            """See the class."""

        def __getattr__(self, name: str) -> Any: ...

    def __post_init__(self) -> None:
        for d in SEARCHED:
            self._check(d, getattr(self, d.asked))
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

    def _check(self, d: Dimension, values: Any) -> None:
        if values is None:
            return
        if not isinstance(values, (tuple, list)):
            hint = f"{d.asked}=({values!r},)"
            raise UsageError(f"{d.asked}: {values!r} is not a tuple of values", hint=hint)
        if not values:
            raise UsageError(f"the dimension {d.asked} is empty")
        if tuple in d.kinds:  # mappings will do
            pairs = (v.items() if isinstance(v, Mapping) else v for v in values)
            values = [tuple(map(tuple, each)) for each in pairs]
        object.__setattr__(self, d.asked, tuple(values))
        for value in values:
            if type(value) not in d.kinds:
                raise UsageError(f"{d.asked}: {value!r} is not of type {d.kinds[0].__name__}")
            if d.is_listed:
                CompileConfig(**{d.name: value})  # raises where there is no such value


@dataclass(frozen=True)
class Space:
    """The settings of one phase.

    Attributes:
        settings: all that differ; baselines first.
        unusable: settings that are not run, with the reason.
        merged: what was left out, and what it equals here.
        dropped: why values and combinations were left out, and how many that are.
        raw: how many combinations there were before merging and dropping.
    """

    settings: tuple[Setting, ...]
    unusable: Mapping[Setting, str]
    merged: Mapping[str, str] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    raw: int = 0

    def summary(self) -> str:
        every = (*self.settings, *self.unusable)
        counts = {name: len(values) for name, values in choices(every).items()}
        counted = ("backend", "mode", "batch_size")
        parts = [f"{counts[name]} {name}s" for name in counted if counts[name] > 1]
        parts += [d.name for d in DIMENSIONS if d.name not in counted and counts[d.name] > 1]
        varied = " × ".join(parts).replace("_", " ")
        return f"{varied} → {self.raw} settings, {len(every)} after merging equals"

    def account(self, records: Iterable[Record]) -> dict[str, Any]:
        tried = {Setting.of(r) for r in records if r.outcome is not Outcome.INTERRUPTED}
        return {
            "summary": self.summary(),
            "merged": dict(self.merged),
            "dropped": dict(self.dropped),
            "unusable": {s.config.backend: reason for s, reason in self.unusable.items()},
            "configs": len({s.config for s in self.settings}),
            "compiled": len({s.config for s in self.settings if not s.config.is_eager}),
            "settings": len(self.settings),
            "untried": sum(s not in tried for s in self.settings),
        }
