"""What is asked for, and the finite list of settings that comes of it and of what a probe found.

No mode is written down here. Settings that cannot differ on a device are one.
"""

from __future__ import annotations

import difflib
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from autocompile.errors import UsageError
from autocompile.protocol.requests import ProbeResult
from autocompile.settings.backends import BACKENDS, DENIED, Backend, OptionValue, own_options
from autocompile.settings.config import DEFAULT_INDUCTOR, EAGER, CompileConfig, Setting, choices
from autocompile.settings.dimensions import (
    DIMENSIONS,
    SEARCHED,
    Dimension,
    Place,
    no_convolutions,
    why_not,
)
from autocompile.settings.phases import LEARNER_UPDATE, phase_of
from autocompile.store.record import Outcome, Record

if TYPE_CHECKING:
    from autocompile.space.plan import Plan


DEFAULT_BATCH_SIZES = (1, 4, 16)
_LISTED = tuple(d for d in DIMENSIONS if d.is_listed)
Asked = tuple[Any, ...] | None


@dataclass(frozen=True)
class SearchSpace:
    """What a user asks for: values of a dimension, or None for those that make sense here.

    A dimension is named as in :class:`CompileConfig`, but for ``backends``, ``modes`` and
    ``batch_sizes``. Eager mode is always in. ``options`` are tuples of pairs or mappings, ``()``
    for none; ``precision``, ``autocast`` and ``guards`` are tried only where they are asked for,
    since they change numbers or drop checks.

    Raises:
        UsageError: an empty dimension, a batch size below 1, or an unknown value.
    """

    backends: Asked = None
    modes: Asked = None
    batch_sizes: Asked = None
    options: Asked = None
    fullgraph: Asked = None
    dynamic: Asked = None
    scope: Asked = None
    freezing: Asked = None
    memory_format: Asked = None
    optimizer: Asked = None
    threads: Asked = None
    precision: Asked = None
    autocast: Asked = None
    guards: Asked = None

    def __post_init__(self) -> None:
        for d in SEARCHED:
            if (values := getattr(self, d.asked)) is not None:
                object.__setattr__(self, d.asked, _checked(d, values))
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


def _checked(d: Dimension, values: Any) -> tuple[Any, ...]:
    if not isinstance(values, (tuple, list)):
        hint = f"{d.asked}=({values!r},)"
        raise UsageError(f"{d.asked}: {values!r} is not a tuple of values", hint=hint)
    if not values:
        raise UsageError(f"the dimension {d.asked} is empty")
    if tuple in d.kinds:  # mappings will do
        pairs = (v.items() if isinstance(v, Mapping) else v for v in values)
        values = [tuple(map(tuple, each)) for each in pairs]
    for value in values:
        if type(value) not in d.kinds:
            raise UsageError(f"{d.asked}: {value!r} is not of type {d.kinds[0].__name__}")
        if d.is_listed:
            CompileConfig(**{d.name: value})  # raises where there is no such value
    return tuple(values)


@dataclass(frozen=True)
class Space:
    """The settings of one phase."""

    settings: tuple[Setting, ...]  # all that differ; baselines first
    unusable: Mapping[Setting, str]  # those that are not run, with the reason
    # What was left out, and what it equals here.
    merged: Mapping[str, str] = field(default_factory=dict)
    # Why values and combinations were left out, and how many that are.
    dropped: Mapping[str, int] = field(default_factory=dict)
    raw: int = 0  # how many combinations there were before merging and dropping

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


def spaces_of(plan: Plan, found: Mapping[str, ProbeResult]) -> dict[str, Space]:
    """The settings of each phase, by what the probe of each environment found, the own first."""
    phases = next(iter(found.values())).target["phases"]
    if plan.only is None:
        demand_known(plan.space, list(found.values()))
    spaces = {}
    for phase in phases:
        if plan.only is not None:  # each beside eager mode and plain torch.compile()
            every = dict.fromkeys(
                Setting(config, size, phase)
                for size, data in plan.only[phase]
                for config in (EAGER, DEFAULT_INDUCTOR, CompileConfig.from_dict(data))
            )
            spaces[phase] = Space(tuple(every), {}, raw=len(every))
            continue
        parts = []
        for name, here in found.items():
            sizes = sizes_of(phase, plan, here.target)
            parts.append(build_space(plan.space, here, _place(phase, here), sizes, name))
        spaces[phase] = joined(parts)
    return spaces


def demand_known(wanted: SearchSpace, offers: Sequence[ProbeResult]) -> None:
    """Check that each backend, mode and option is known to some environment."""
    backends = dict.fromkeys(name for o in offers for name in (*o.all_backends, "eager"))
    modes = dict.fromkeys(mode for o in offers for mode in o.modes)
    options = dict.fromkeys(name for o in offers for name in o.options)
    tried = wanted.backends or [name for o in offers for name in o.backends]
    others = {name for backend in tried for name in own_options(backend)}
    for name in (n for n in wanted.backends or () if n not in {*backends, *BACKENDS}):
        close = difflib.get_close_matches(name, backends, 1)
        known = (n for n in backends if n != "eager" and "TESTING" not in n)
        raise UsageError(
            f"backend {name!r} is unknown to torch and is not registered by the target",
            f"known here: {', '.join(known)}",
            hint=f"--backend {close[0]}" if close else "autocompile doctor",
        )
    for name in (n for n in wanted.modes or () if n not in modes):
        raise UsageError(f"mode {name!r} is unknown to this torch", f"it knows: {', '.join(modes)}")
    for name in (n for each in wanted.options or () for n, _ in each):
        if why := DENIED.get(name):
            raise UsageError(f"the option {name} is not taken", why)
        if name not in options and name not in others:
            close = difflib.get_close_matches(name, options, 1)
            raise UsageError(
                f"Inductor's option {name!r} is unknown to this torch",
                hint=f"--option {close[0]}=..." if close else None,
            )


def _place(phase: str, found: ProbeResult) -> Place:
    target = found.target
    return Place(
        phase,
        found.environment["device"].split(":")[0],
        target.get("threads", {}).get(phase, found.environment["threads"]),
        target.get("has_convolutions", False),
        target.get("regions", {}).get(phase, ""),
        tuple(target.get("optimizers", ())),
        target.get("writes_buffers", {}).get(phase, False),
    )


def sizes_of(phase: str, plan: Plan, target: Mapping[str, Any]) -> list[int | None]:
    """The batch sizes of a phase: asked for, or the defaults and the target's own."""
    if not phase_of(phase).has_batch_size:
        return [None]
    asked = plan.space.batch_sizes
    if fixed := target.get("fixed_batch_size"):
        if asked and set(asked) != {fixed}:
            raise UsageError(
                f"batch sizes {', '.join(map(str, asked))} are asked for, and the inputs of "
                f"{plan.target} have batch size {fixed}",
                "its get_inputs() takes none",
                hint="def get_inputs(batch_size), or the same command without --batch-size",
            )
        return [fixed]
    own = target.get("own_batch_size", {}).get(phase)
    is_alone = plan.phases == (LEARNER_UPDATE,)  # or else sizes are asked for forward passes
    if phase == LEARNER_UPDATE and own and not (asked and is_alone):
        return [own]
    return sorted({*(asked or DEFAULT_BATCH_SIZES), *([own] if own and not asked else [])})


def first_sizes(spaces: Mapping[str, Space], run: Mapping[str, Any]) -> dict[str, int | None]:
    """The batch size of each phase that comes first: the target's own, or by the objective."""
    own = run["target"].get("own_batch_size") or {}
    choose = min if run["plan"]["objective"] == "latency" else max
    sizes = {n: [s.batch_size or 0 for s in one.settings] for n, one in spaces.items()}
    return {name: own.get(name) or choose(sizes[name]) or None for name in spaces}


def calls_between_updates(phase: str, run: Mapping[str, Any], batch_size: int | None) -> int | None:
    """As the user or the target says; None where weights stay as they are or nobody knows."""
    asked: int | None = run["plan"].get("calls_per_update")
    samples: int | None = run["target"].get("samples_per_update", {}).get(phase)
    if asked is None and samples and batch_size:
        return math.ceil(samples / batch_size)
    return asked or run["target"].get("calls_per_update", {}).get(phase)


def build_space(
    wanted: SearchSpace,
    offered: ProbeResult,
    place: Place,
    batch_sizes: Sequence[int | None],
    environment: str = "default",
) -> Space:
    """The settings of a phase under one interpreter."""
    there = {*offered.all_backends, *offered.backends, *BACKENDS}  # another one may have more
    backends = [b for b in wanted.backends or offered.backends if b in there]
    dropped: Counter[str] = Counter()
    values = {d.name: _values(d, wanted, place, dropped) for d in _LISTED}
    around = [
        {"environment": environment, **dict(zip(values, each, strict=True))}
        for each in itertools.product(*values.values())
    ]
    baselines = [CompileConfig("eager", environment=environment)]
    if "inductor" in backends:
        baselines.append(CompileConfig(environment=environment))
    unusable: dict[Setting, str] = {}
    listed: list[CompileConfig] = []
    for backend in dict.fromkeys(("eager", *backends)):
        if reason := offered.backends.get(backend, ""):
            config = CompileConfig(backend, environment=environment)
            unusable[Setting(config, batch_sizes[0], place.phase)] = reason
        else:
            listed += _configs(backend, wanted, offered, place, around, dropped)
    kept = dict.fromkeys(baselines)
    for config in listed:
        if config in kept:
            continue
        if reason := why_not(config, place) or _why_not_paired(config, wanted, place):
            dropped[reason] += 1
        else:
            kept[config] = None
    settings = tuple(Setting(c, size, place.phase) for c in kept for size in batch_sizes)
    raw = len(listed) + len(set(baselines) - set(listed))
    prefix = "" if environment == "default" else f"{environment}: "
    merged = {
        f"{prefix}mode {name}": f"{equal} (no other effect on {place.device})"
        for name, equal in offered.modes.items()
        if "inductor" in backends and name != equal and name in (wanted.modes or offered.modes)
    }
    return Space(settings, unusable, merged, dropped, raw * len(batch_sizes) + len(unusable))


def _why_not_paired(config: CompileConfig, wanted: SearchSpace, place: Place) -> str:
    """Why an implementation of the optimizer is not tried with what is compiled; or empty.

    Beside a model that is compiled, the optimizer's seconds only add up, and its fused step was the
    fastest one on every machine (studies/first_runs).
    """
    phase = phase_of(place.phase)
    is_beside_a_model = phase.steps and phase.has_backward
    if not is_beside_a_model or "fused" not in place.optimizers:
        return ""
    if wanted.optimizer is not None or config.optimizer == "fused":
        return ""
    if config.optimizer == "compiled":
        # A fused step is a few kernels already, and compiling it takes as long as the model.
        return "a fused step needs no compiler"
    # What is compiled as a whole does not call the optimizer's own kernels.
    if config.optimizer == "default" and (config.is_eager or config.scope == "step"):
        return ""
    return "the fused optimizer is the fastest one beside a compiled model"


def joined(spaces: Sequence[Space]) -> Space:
    """The spaces of one phase under several interpreters as one."""
    return Space(
        tuple(s for space in spaces for s in space.settings),
        {s: reason for space in spaces for s, reason in space.unusable.items()},
        {what: equal for space in spaces for what, equal in space.merged.items()},
        sum((Counter(space.dropped) for space in spaces), Counter[str]()),
        sum(space.raw for space in spaces),
    )


def _values(
    dimension: Dimension, wanted: SearchSpace, place: Place, dropped: Counter[str]
) -> tuple[Any, ...]:
    """What is asked for, each value once, or what is tried by itself."""
    if (asked := getattr(wanted, dimension.asked)) is not None:
        return tuple(dict.fromkeys(asked))
    every = dimension.tried(place)
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
    named = [name for name in wanted.modes or offered.modes if name in offered.modes]
    modes = list(dict.fromkeys(offered.modes[name] for name in named)) or ["default"]
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
