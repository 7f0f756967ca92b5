"""The finite list of settings of one phase: what was asked for, crossed with what a probe found.

No mode is written down here. Settings that cannot differ on this device are one.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autocompile.protocol.results import ProbeResult
from autocompile.settings.backends import BACKENDS, Backend, OptionValue, own_options
from autocompile.settings.config import DEFAULT_INDUCTOR, EAGER, CompileConfig
from autocompile.settings.dimension import Dimension, Place
from autocompile.settings.dimensions import DIMENSIONS, no_convolutions, why_not
from autocompile.settings.setting import Setting
from autocompile.space.space import SearchSpace, Space

__all__ = ["build_space", "exact_space", "joined"]

_LISTED = tuple(d for d in DIMENSIONS if d.is_listed)


def build_space(
    wanted: SearchSpace,
    offered: ProbeResult,
    place: Place,
    batch_sizes: Sequence[int | None],
    environment: str = "default",
) -> Space:
    """The settings of a phase under one interpreter, which offers all that is wanted."""
    backends = wanted.backends or tuple(offered.backends)
    dropped: Counter[str] = Counter()
    values = {d.name: _values(d, wanted, place, dropped) for d in _LISTED}
    around = [
        {"environment": environment, **dict(zip(values, each, strict=True))}
        for each in itertools.product(*values.values())
    ]
    baselines = {CompileConfig("eager", environment=environment): None}
    if "inductor" in backends:
        baselines[CompileConfig(environment=environment)] = None
    kept, unasked = dict(baselines), set(baselines)
    unusable: dict[Setting, str] = {}
    raw = 0
    for backend in dict.fromkeys(("eager", *backends)):
        if reason := offered.backends.get(backend, ""):
            config = CompileConfig(backend, environment=environment)
            unusable[Setting(config, batch_sizes[0], place.phase)] = reason
            continue
        for config in _configs(backend, wanted, offered, place, around, dropped):
            raw += 1
            unasked.discard(config)
            if config in kept:
                continue
            if reason := why_not(config, place) or _why_not_paired(config, wanted, place):
                dropped[reason] += 1
            else:
                kept[config] = None
    settings = tuple(Setting(c, size, place.phase) for c in kept for size in batch_sizes)
    raw = (raw + len(unasked)) * len(batch_sizes) + len(unusable)
    merged = _merged(wanted, offered, place, "inductor" in backends)
    if environment != "default":
        merged = {f"{environment}: {what}": equal for what, equal in merged.items()}
    return Space(settings, unusable, merged, dropped, raw)


def _why_not_paired(config: CompileConfig, wanted: SearchSpace, place: Place) -> str:
    """Why an implementation of the optimizer is not tried with what is compiled; or empty.

    Beside a model that is compiled, the optimizer's seconds only add up: its fastest implementation
    alone is the fastest with each. A step that is compiled as a whole may fuse the others better.
    """
    best = place.best_optimizer
    if not best or wanted.optimizer is not None or config.optimizer == best:
        return ""
    if config.optimizer == "compiled":
        # A fused step is a few kernels already, and compiling it takes as long as the model.
        return "a fused step needs no compiler" if "fused" in (best, *place.optimizers) else ""
    # What is compiled as a whole does not call the optimizer's own kernels.
    if config.optimizer == "default" and (config.is_eager or config.scope == "step"):
        return ""
    return f"the {best} optimizer was the fastest one alone"


def exact_space(phase: str, chosen: Sequence[tuple[int | None, Mapping[str, Any]]]) -> Space:
    """These settings, each beside eager mode and plain ``torch.compile()`` at its batch size."""
    settings = [
        Setting(config, size, phase)
        for size, data in chosen
        for config in (EAGER, DEFAULT_INDUCTOR, CompileConfig.from_dict(data))
    ]
    every = tuple(dict.fromkeys(settings))
    return Space(every, {}, raw=len(every))


def joined(spaces: Sequence[Space]) -> Space:
    """The spaces of one phase under several interpreters as one."""
    return Space(
        tuple(s for space in spaces for s in space.settings),
        {s: reason for space in spaces for s, reason in space.unusable.items()},
        {what: equal for space in spaces for what, equal in space.merged.items()},
        sum((Counter(space.dropped) for space in spaces), Counter[str]()),
        sum(space.raw for space in spaces),
    )


def _merged(
    wanted: SearchSpace, offered: ProbeResult, place: Place, has_inductor: bool
) -> dict[str, str]:
    """What is asked for or offered by two names, and what it equals."""
    modes = {
        f"mode {name}": f"{equal} (no other effect on {place.device})"
        for name, equal in offered.modes.items()
        if has_inductor and name != equal and name in (wanted.modes or offered.modes)
    }
    return modes | {
        f"{d.name} {value}": f"{d.name} as torch takes them by itself"
        for d in _LISTED
        for value in getattr(wanted, d.asked) or ()
        if d.is_plain(value, place)
    }


def _values(
    dimension: Dimension, wanted: SearchSpace, place: Place, dropped: Counter[str]
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


def _configs(
    backend: str,
    wanted: SearchSpace,
    offered: ProbeResult,
    place: Place,
    around: Sequence[Mapping[str, Any]],
    dropped: Counter[str],
) -> Iterator[CompileConfig]:
    """Every config of a backend; some are equal to others in their canonical form."""
    every_option = _options(backend, wanted, offered, place, dropped)
    modes = list(dict.fromkeys(offered.modes[name] for name in wanted.modes or offered.modes))
    if not BACKENDS.get(backend, Backend()).has_modes:
        if wanted.modes and backend != "eager":
            dropped.update(f"{backend} has no modes" for mode in modes if mode != "default")
        modes = ["default"]
    for fields, mode, options in itertools.product(around, modes, every_option):
        if mode != "default" and fields["guards"] != "all":
            dropped["torch takes a filter of guards or a mode"] += 1
        elif mode != "default" and options:
            dropped["torch takes a mode or options"] += 1
        else:
            yield CompileConfig(backend, mode, tuple(options.items()), **fields)


def _options(
    backend: str, wanted: SearchSpace, offered: ProbeResult, place: Place, dropped: Counter[str]
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
        if variant.device not in (None, place.device):
            reason = f"{backend}'s options for {variant.device} are not for {place.device}"
        elif known.has_modes and not set(variant.options) <= set(offered.options):
            reason = f"the {backend} of this torch has no option {', '.join(variant.options)}"
        else:
            reason = no_convolutions(place) if variant.of_convolutions else ""
        if reason:
            dropped[reason] += 1
        else:
            found.append(variant.options)
    return found
