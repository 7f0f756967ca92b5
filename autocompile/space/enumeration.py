"""The finite list of settings of one phase: what was asked for, crossed with what is offered here.

The catalogue comes from the installed torch, read by a probe in a trial's process; no mode is
written down here. Settings that cannot differ on this device are one.
"""

from __future__ import annotations

import difflib
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autocompile.errors import UsageError
from autocompile.settings.backends import BACKENDS, DENIED, Backend, OptionValue, own_options
from autocompile.settings.config import DEFAULT_INDUCTOR, EAGER, CompileConfig
from autocompile.settings.dimension import Dimension, Place
from autocompile.settings.dimensions import DIMENSIONS, no_convolutions, why_not
from autocompile.space.space import Catalogue, SearchSpace, Setting, Space

__all__ = ["build_space", "exact_space", "joined"]

_LISTED = tuple(d for d in DIMENSIONS if d.is_listed)


def build_space(
    wanted: SearchSpace,
    offered: Catalogue,
    place: Place,
    batch_sizes: Sequence[int | None],
    environment: str = "default",
) -> Space:
    """Enumerate the settings of a phase under one interpreter.

    Raises:
        UsageError: a backend or a mode that does not exist here.
    """
    merged = {
        f"mode {name}": f"{equal} (no other effect on {offered.device})"
        for name, equal in offered.modes.items()
        if name != equal and name in (wanted.modes or offered.modes)
    }
    if "inductor" not in (wanted.backends or offered.backends):
        merged = {}
    merged |= {
        f"{d.name} {value}": f"{d.name} as torch takes them by itself"
        for d in _LISTED
        for value in getattr(wanted, d.asked) or ()
        if d.is_plain(value, place)
    }
    modes = _modes(wanted, offered)
    _check_options(wanted, offered)
    here: dict[str, Any] = {"environment": environment}
    dropped: Counter[str] = Counter()
    around = [_values(dimension, wanted, place, dropped) for dimension in _LISTED]
    combinations = [
        {**here, **dict(zip((d.name for d in _LISTED), values, strict=True))}
        for values in itertools.product(*around)
    ]
    kept = {CompileConfig("eager", **here): None}  # the answer is compared with it, and with ...
    if "inductor" in (wanted.backends or offered.backends):
        kept[CompileConfig(**here)] = None
    unusable: dict[Setting, str] = {}
    counted: set[CompileConfig] = set()
    raw = 0
    for backend in dict.fromkeys(("eager", *(wanted.backends or offered.backends))):
        if backend != "eager":
            _check_backend(backend, offered)
        if reason := offered.backends.get(backend, ""):
            unusable[Setting(CompileConfig(backend, **here), batch_sizes[0], place.phase)] = reason
            continue
        options = _options(backend, wanted, offered, place, dropped)
        if backend != "eager" and not BACKENDS.get(backend, Backend()).has_modes:
            asked_modes = modes if wanted.modes else []
            dropped.update(f"{backend} has no modes" for mode in asked_modes if mode != "default")
        for config in _variants(backend, modes, options, combinations, dropped):
            raw += 1
            counted.add(config)
            if config in kept:
                continue
            if reason := why_not(config, place):
                dropped[reason] += 1
            else:
                kept[config] = None
    settings = [Setting(c, size, place.phase) for c in kept for size in batch_sizes]
    raw = (raw + len(kept.keys() - counted)) * len(batch_sizes) + len(unusable)
    return Space(place.phase, tuple(settings), unusable, merged, dict(dropped), raw)


def exact_space(phase: str, chosen: Sequence[tuple[int | None, Mapping[str, Any]]]) -> Space:
    """These settings, each beside eager mode and plain ``torch.compile()`` at its batch size."""
    settings = [
        Setting(config, size, phase)
        for size, data in chosen
        for config in (EAGER, DEFAULT_INDUCTOR, CompileConfig.from_dict(data))
    ]
    every = tuple(dict.fromkeys(settings))
    return Space(phase, every, {}, raw=len(every))


def joined(spaces: Sequence[Space]) -> Space:
    """The spaces of one phase under several interpreters as one."""
    first, *others = spaces
    merged, dropped = dict(first.merged), Counter(first.dropped)
    unusable, settings, raw = dict(first.unusable), list(first.settings), first.raw
    for space in others:
        name = space.settings[0].config.environment
        merged |= {f"{name}: {what}": equal for what, equal in space.merged.items()}
        dropped.update(space.dropped)
        unusable |= space.unusable
        settings += space.settings
        raw += space.raw
    return Space(first.phase, tuple(settings), unusable, merged, dict(dropped), raw)


def _values(
    dimension: Dimension,
    wanted: SearchSpace,
    place: Place,
    dropped: Counter[str],
) -> tuple[Any, ...]:
    """What is asked for, each value once, or what is tried by itself."""
    every = dimension.tried(place)
    if (asked := getattr(wanted, dimension.asked)) is not None:
        return tuple(dict.fromkeys(every[0] if dimension.is_plain(v, place) else v for v in asked))
    reason = dimension.missing(place)
    if not reason and dimension.by_name:
        reason = f"{dimension.flag} only by name, since it changes numbers or drops checks"
    if reason and len(every) > 1:
        dropped[reason] += len(every) - 1
    return every[:1] if reason else every


def _options(
    backend: str,
    wanted: SearchSpace,
    offered: Catalogue,
    place: Place,
    dropped: Counter[str],
) -> list[Mapping[str, OptionValue]]:
    """The options that a backend is tried with; none at all is one of them if none is asked for."""
    known = BACKENDS.get(backend, Backend())
    if wanted.options is not None and backend != "eager":
        there = set(offered.options) if known.has_modes else own_options(backend)
        wrong = [name for each in wanted.options for name, _ in each if name not in there]
        dropped.update(f"{backend} has no option {name}" for name in wrong)
        asked = [dict(each) for each in wanted.options]
        return [each for each in asked if set(each) <= there] or [{}]
    found: list[Mapping[str, OptionValue]] = [{}]
    for variant in known.variants:
        names = ", ".join(variant.options)
        if variant.device not in (None, offered.device):
            reason = f"{backend}'s options for {variant.device} are not for {offered.device}"
        elif known.has_modes and not set(variant.options) <= set(offered.options):
            reason = f"the {backend} of this torch has no option {names}"
        else:
            reason = no_convolutions(place) if variant.of_convolutions else ""
        if reason:
            dropped[reason] += 1
        else:
            found.append(variant.options)
    return found


def _check_options(wanted: SearchSpace, offered: Catalogue) -> None:
    others = {o for b in wanted.backends or offered.backends for o in own_options(b)}
    for name, _ in itertools.chain.from_iterable(wanted.options or ()):
        if why := DENIED.get(name):
            raise UsageError(f"the option {name} is not taken", why)
        if name not in offered.options and name not in others:
            close = difflib.get_close_matches(name, offered.options, 1)
            raise UsageError(
                f"Inductor's option {name!r} is unknown to this torch",
                hint=f"--option {close[0]}=..." if close else None,
            )


def _variants(
    backend: str,
    modes: Sequence[str],
    variants: Sequence[Mapping[str, OptionValue]],
    combinations: Sequence[Mapping[str, Any]],
    dropped: Counter[str],
) -> Iterator[CompileConfig]:
    """Every setting of a backend; some are equal to others in their canonical form."""
    known = BACKENDS.get(backend, Backend())
    takes = modes if known.has_modes else ["default"]
    for around in combinations:
        if backend == "eager":
            yield CompileConfig(backend, **around)
            continue
        for mode, options in itertools.product(takes, variants):
            if mode != "default" and around["guards"] != "all":
                dropped["torch takes a filter of guards or a mode"] += 1
                continue
            if mode != "default" and options:
                dropped["torch takes a mode or options"] += 1
                continue
            yield CompileConfig(backend, mode, tuple(options.items()), **around)


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
    if name in offered.all_backends or name in BACKENDS:
        return
    close = difflib.get_close_matches(name, [*offered.all_backends, "eager"], 1)
    raise UsageError(
        f"backend {name!r} is unknown to torch and is not registered by the target",
        f"known here: {', '.join(n for n in offered.all_backends if 'TESTING' not in n)}",
        hint=f"--backend {close[0]}" if close else "autocompile doctor",
    )
