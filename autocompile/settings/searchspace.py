"""The settings that a user asks for: the values of each dimension that are to be tried."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from autocompile.errors import UsageError
from autocompile.settings.config import CompileConfig
from autocompile.settings.dimensions import SEARCHED, Dimension
from autocompile.settings.option import (
    COMMON,
    TRIED,
    Kind,
    demand_known,
    integers,
    option,
    words,
)

Asked = tuple[Any, ...] | None
BY_NAME = {d.asked: d for d in SEARCHED}
"""The dimensions by their names in a SearchSpace."""
_NAMED_IN_A_SUITE = ("backends", "modes", "batch_sizes")


def _read(d: Dimension, flag: str, texts: Sequence[str]) -> tuple[Any, ...]:
    """The values of a dimension from comma lists; each text of options is one value."""
    if tuple in d.kinds:
        return tuple(_read_pairs(flag, text) for text in texts)
    if int in d.kinds:
        return integers(flag, texts)
    if bool not in d.kinds:
        return words(texts)
    known: dict[str, bool | None] = {"true": True, "false": False}
    if type(None) in d.kinds:
        known["none"] = None
    found = [text.lower() for text in words(texts)]
    for text in found:
        demand_known(flag, text, known, f"{flag} {{}}")
    return tuple(known[text] for text in found)


def _read_pairs(flag: str, text: str) -> tuple[tuple[str, Any], ...]:
    """``cpp_wrapper=true,cpp.simdlen=256`` as pairs; ``none`` for no options."""
    if text.strip().lower() == "none":
        return ()
    pairs = []
    for part in words((text,)):
        name, equals, value = part.partition("=")
        if not equals:
            raise UsageError(
                f"{flag} {part!r} has no value", hint=f"{flag} {part}=true"
            )
        read: Any = value.strip()
        with contextlib.suppress(ValueError):
            read = json.loads(read.lower())
        if isinstance(read, (list, dict)):
            raise UsageError(
                f"{flag} {part!r} is a list or a table, and an option has one value"
            )
        pairs.append((name.strip(), read))
    return tuple(pairs)


def values_of(name: str) -> Any:
    """A field of a SearchSpace: what the table of dimensions says of it is its option."""
    d = BY_NAME[name]
    kind = Kind("LIST", functools.partial(_read, d), repeats=True)
    panel = COMMON if name == "batch_sizes" else TRIED
    return option(None, kind, d.help, panel, d.flag)


@dataclass(frozen=True)
class SearchSpace:
    """The values of each dimension to try, or None for those that make sense here.

    Eager mode is always in. ``options`` are tuples of pairs or mappings, ``()`` for none.
    """

    backends: Asked = values_of("backends")
    modes: Asked = values_of("modes")
    batch_sizes: Asked = values_of("batch_sizes")
    options: Asked = values_of("options")
    fullgraph: Asked = values_of("fullgraph")
    dynamic: Asked = values_of("dynamic")
    recompile_limit: Asked = values_of("recompile_limit")
    scope: Asked = values_of("scope")
    freezing: Asked = values_of("freezing")
    memory_format: Asked = values_of("memory_format")
    optimizer: Asked = values_of("optimizer")
    ddp: Asked = values_of("ddp")
    fsdp: Asked = values_of("fsdp")
    threads: Asked = values_of("threads")
    precision: Asked = values_of("precision")
    autocast: Asked = values_of("autocast")

    def __post_init__(self) -> None:
        for d in SEARCHED:
            if (values := getattr(self, d.asked)) is not None:
                object.__setattr__(self, d.asked, _checked(d, values))
        if any(self.options or ()) and set(self.modes or ()) - {"default"}:
            raise UsageError(
                "modes and options are asked for, and torch takes either",
                hint="a run with --mode, and another with --option",
            )
        for size in self.batch_sizes or ():
            if size < 1:
                raise UsageError(
                    f"batch size {size} is below 1", hint="--batch-size 1,4,16"
                )

    def without_a_search(self) -> SearchSpace:
        """One value of each dimension that is not named, but all backends and modes."""
        usual = {
            d.asked: (d.default,) for d in SEARCHED if d.asked not in _NAMED_IN_A_SUITE
        }
        return SearchSpace(**{**usual, **self.named})

    @property
    def named(self) -> dict[str, tuple[Any, ...]]:
        """The dimensions that are narrowed, with their values."""
        return {n: v for n, v in asdict(self).items() if v is not None}

    def to_dict(self) -> dict[str, Any]:
        """The named dimensions, as JSON."""
        return {name: list(values) for name, values in self.named.items()}

    def __str__(self) -> str:
        named = ", ".join(f"{name}={values!r}" for name, values in self.named.items())
        return named or "no dimension narrowed"


def _checked(d: Dimension, values: Any) -> tuple[Any, ...]:
    if not isinstance(values, (tuple, list)) or not values:
        hint = f"{d.asked}=({values!r},)" if values else None
        raise UsageError(
            f"{d.asked}: {values!r} is not some values, one after another", hint=hint
        )
    if tuple in d.kinds:  # mappings will do
        pairs = (v.items() if isinstance(v, Mapping) else v for v in values)
        values = [tuple(map(tuple, each)) for each in pairs]
    for value in values:
        if type(value) not in d.kinds:
            raise UsageError(
                f"{d.asked}: {value!r} is not of type {d.kinds[0].__name__}"
            )
        if d.is_listed:
            CompileConfig(**{d.name: value})  # raises where there is no such value
    return tuple(values)
