"""What is asked for (``run.json`` keeps it), and the list of settings that comes of it and a probe.

No mode is written down here. Settings that cannot differ on a device are one.
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from autocompile.errors import RunError, UsageError
from autocompile.estimate.candidates import Limits
from autocompile.protocol.requests import Header, ProbeResult
from autocompile.settings.backends import (
    BACKENDS,
    DENIED,
    Backend,
    OptionValue,
    options_of,
)
from autocompile.settings.config import DEFAULT_INDUCTOR, EAGER, CompileConfig, Setting
from autocompile.settings.dimensions import (
    DIMENSIONS,
    SEARCHED,
    Dimension,
    Place,
    no_convolutions,
    why_not,
)
from autocompile.settings.phases import FORWARD, LEARNER_UPDATE, TRAIN_STEP, phase_of
from autocompile.settings.tuned import Tuned
from autocompile.store.calls import PERCENTILES, RecordedCalls, workload_of
from autocompile.store.reading import of_fields
from autocompile.store.record import Outcome, Record
from autocompile.store.targets import is_same_target

DEFAULT_BATCH_SIZES = (1, 4, 16)
USUAL_PHASES = (FORWARD, TRAIN_STEP)
"""Of a model of a suite that needs no file."""
_NAMED_IN_A_SUITE = ("backends", "modes", "batch_sizes")
_LISTED = tuple(d for d in DIMENSIONS if d.is_listed)
Asked = tuple[Any, ...] | None


@dataclass(frozen=True)
class SearchSpace:
    """What a user asks for: values of a dimension, or None for those that make sense here.

    Eager mode is always in. ``options`` are tuples of pairs or mappings, ``()`` for none.
    """

    backends: Asked = None
    modes: Asked = None
    batch_sizes: Asked = None
    options: Asked = None
    fullgraph: Asked = None
    dynamic: Asked = None
    recompile_limit: Asked = None
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
        has_options = any(self.options or ()) or "all" not in (self.guards or ("all",))
        if has_options and set(self.modes or ()) - {"default"}:
            raise UsageError(
                "modes, and options or filters of guards, are asked for, and torch takes either",
                hint="a run with --mode, and another with --option or --guards",
            )
        for size in self.batch_sizes or ():
            if size < 1:
                raise UsageError(
                    f"batch size {size} is below 1", hint="--batch-size 1,4,16"
                )

    def without_a_search(self) -> SearchSpace:
        """Of each dimension that is not named its usual value, but all backends and modes."""
        usual = {
            d.asked: (d.default,) for d in SEARCHED if d.asked not in _NAMED_IN_A_SUITE
        }
        named = {name: value for name, value in vars(self).items() if value is not None}
        return SearchSpace(**{**usual, **named})

    def __str__(self) -> str:
        asked = {n: v for n, v in asdict(self).items() if v is not None}
        return (
            ", ".join(f"{n}={v!r}" for n, v in asked.items()) or "no dimension narrowed"
        )


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


EFFORTS = {"quick": 90.0, "normal": 300.0, "full": None}
"""Seconds of a run; None: to the end of the list of settings."""
OBJECTIVES = ("throughput", "latency")


@dataclass(frozen=True)
class Plan:
    """One request to tune, with the parameters of :func:`autocompile.tune`."""

    target: str  # as a spec: PATH, PATH:NAME or package.module:NAME
    phases: tuple[str, ...] | None = None
    space: SearchSpace = field(default_factory=SearchSpace)
    effort: str = "normal"
    objective: str = "throughput"
    limits: Limits = field(default_factory=Limits)
    device: str | None = None
    seed: int = 0
    tolerance: float | None = None
    calls_per_update: int | None = None
    horizon: int | None = (
        None  # calls that a program makes, over which it compiles; None: many
    )
    calls: RecordedCalls | None = None
    # Name and interpreter of each environment beside the tuner's own.
    pythons: tuple[tuple[str, str], ...] = ()
    # Batch size and config of what is tried of each phase, beside eager mode and plain
    # torch.compile(); None for all that the space gives.
    only: Mapping[str, list[tuple[int | None, dict[str, Any]]]] | None = None

    def __post_init__(self) -> None:
        if self.effort not in EFFORTS:
            raise UsageError(f"effort {self.effort!r} is none of {', '.join(EFFORTS)}")
        if self.objective not in OBJECTIVES:
            raise UsageError(
                f"objective {self.objective!r} is none of {', '.join(OBJECTIVES)}"
            )
        if unknown := self.limits.percentiles.keys() - PERCENTILES:
            raise UsageError(
                f"percentile {min(unknown)!r} is none of {', '.join(PERCENTILES)}"
            )
        if self.phases is not None and len(set(self.phases)) != len(self.phases):
            raise UsageError("a phase is named twice")
        if self.calls_per_update is not None and self.calls_per_update < 1:
            raise UsageError(
                f"{self.calls_per_update} calls per update are fewer than one"
            )
        if self.horizon is not None and self.horizon < 1:
            raise UsageError(f"a horizon of {self.horizon} calls is less than one")
        if self.tolerance is not None and not 0 < self.tolerance < 1:
            raise UsageError(
                f"the tolerance {self.tolerance} is not between 0 and 1",
                "it is relative: at 0.01 outputs may differ from eager's by 1 % of their size",
            )

    @property
    def header(self) -> Header:
        return Header(self.target, self.device, self.seed, self.tolerance, self.calls)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """Read what :meth:`to_dict` wrote; a RunError if this version does not know all of it."""
        try:
            plan: Plan = of_fields(cls, data)
        except (TypeError, ValueError) as error:
            hint = "go on with it in the autocompile that it was made with"
            raise RunError(
                f"the run asks for something else: {error}", hint=hint
            ) from None
        return plan

    def demand_same(self, asked: Mapping[str, Any]) -> None:
        """Check that a run with this plan may go on, by the fields that are asked for now."""
        wanted = Plan(**asked)
        for name in asked:
            mine, theirs = getattr(wanted, name), getattr(self, name)
            if mine == theirs or (name == "target" and is_same_target(mine, theirs)):
                continue
            raise UsageError(
                f"the run was made with another {name}",
                f"it has {theirs}, now {mine} was asked for",
                hint="leave the option out, or start a new run without --resume",
            )


def asked_for(**given: Any) -> dict[str, Any]:
    """Without what nobody has asked for: of a new run the default, of a resumed one as it was."""
    nothing = (None, (), SearchSpace(), Limits())
    return {name: value for name, value in given.items() if value not in nothing}


def environments(
    pythons: Sequence[str], only: Tuned | None = None
) -> tuple[tuple[str, str], ...]:
    """A name for each interpreter: ``NAME=PATH``, or that of the folder it is installed in.

    Settings that are tried ``only`` bring the interpreters that they are of; paths that are given
    go before those that the settings name.
    """
    if only is not None:
        given = dict(environments(pythons))
        used = {
            c.config.environment for choices in only.phases.values() for c in choices
        }
        theirs = {n: only.interpreters.get(n, n) for n in sorted(used - {"default"})}
        pythons = [f"{name}={path}" for name, path in {**theirs, **given}.items()]
    paths: dict[str, str] = {}
    for text in pythons:
        name, equals, path = text.rpartition("=")
        place = shutil.which(path if equals else text)
        if place is None:
            raise UsageError(
                f"there is no interpreter {path}, or it may not be run",
                hint=f"--python {name}{equals}.venv/bin/python",
            )
        # Not resolved: a virtual environment's interpreter is a link, and the link makes it one.
        folder = Path(place).absolute().parent
        name = name or (
            folder.parent.name if folder.name in ("bin", "Scripts") else folder.name
        )
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-") or "other"
        if (
            name == "default" or name in paths
        ):  # autocompile's interpreter is the default one
            hint = f"--python {name}-2={path or text}"
            raise UsageError(f"two environments are called {name}", hint=hint)
        paths[name] = str(folder / Path(place).name)
    return tuple(paths.items())


@dataclass(frozen=True)
class Space:
    """The settings of one phase."""

    settings: tuple[Setting, ...]  # all that differ; baselines first
    unusable: Mapping[Setting, str]  # those that are not run, with the reason
    merged: Mapping[str, str] = field(
        default_factory=dict
    )  # what was left out and what it equals
    dropped: Mapping[str, int] = field(
        default_factory=dict
    )  # how many were left out, by reason

    def account(self, records: Iterable[Record]) -> dict[str, Any]:
        tried = {Setting.of(r) for r in records if r.outcome is not Outcome.INTERRUPTED}
        return {
            "merged": dict(self.merged),
            "dropped": dict(self.dropped),
            "unusable": {
                s.config.backend: reason for s, reason in self.unusable.items()
            },
            "configs": len({s.config for s in self.settings}),
            "compiled": len({s.config for s in self.settings if not s.config.is_eager}),
            "untried": sum(s not in tried for s in self.settings),
        }


def spaces_of(plan: Plan, probes: Mapping[str, ProbeResult]) -> dict[str, Space]:
    """The settings of each phase, by the probe of each environment, the default one first."""
    phases = next(iter(probes.values())).target["phases"]
    if plan.only is None:
        demand_known(plan.space, list(probes.values()))
    spaces = {}
    for phase in phases:
        if plan.only is not None:  # each beside eager mode and plain torch.compile()
            every = dict.fromkeys(
                Setting(config, size, phase)
                for size, data in plan.only[phase]
                for config in (EAGER, DEFAULT_INDUCTOR, CompileConfig.from_dict(data))
            )
            spaces[phase] = Space(tuple(every), {})
            continue
        parts = []
        for name, here in probes.items():
            sizes = sizes_of(phase, plan, here.target)
            parts.append(
                build_space(plan.space, here, _place(phase, here), sizes, name)
            )
        spaces[phase] = Space(
            tuple(s for one in parts for s in one.settings),
            {s: reason for one in parts for s, reason in one.unusable.items()},
            {what: equal for one in parts for what, equal in one.merged.items()},
            sum((Counter(one.dropped) for one in parts), Counter[str]()),
        )
    return spaces


def demand_calls_differ(plan: Plan, target: Mapping[str, Any]) -> None:
    """Raise a UsageError where a percentile of calls of one shape has a limit."""
    names = sorted(plan.limits.percentiles)
    if not names or target.get("workload", {}).get("kinds", 1) > 1:
        return
    raise UsageError(
        f"--max-latency {names[0]} needs calls of several shapes, and those of {plan.target} have one: "
        "every percentile of them is the same",
        "get_calls() in the target's file gives several, or --calls a file of recorded ones",
        hint="--max-latency 10ms",
    )


def demand_known(wanted: SearchSpace, offers: Sequence[ProbeResult]) -> None:
    """Check that each backend, mode and option is known to some environment."""
    backends = dict.fromkeys(
        name for o in offers for name in (*o.all_backends, "eager")
    )
    modes = dict.fromkeys(mode for o in offers for mode in o.modes)
    options = dict.fromkeys(name for o in offers for name in o.options)
    tried = wanted.backends or [name for o in offers for name in o.backends]
    others = {name for backend in tried for name in options_of(backend)}
    for name in (n for n in wanted.backends or () if n not in {*backends, *BACKENDS}):
        close = difflib.get_close_matches(name, backends, 1)
        known = (n for n in backends if n != "eager" and "TESTING" not in n)
        raise UsageError(
            f"backend {name!r} is unknown to torch and is not registered by the target",
            f"known here: {', '.join(known)}",
            hint=f"--backend {close[0]}" if close else "autocompile doctor",
        )
    for name in (n for n in wanted.modes or () if n not in modes):
        raise UsageError(
            f"mode {name!r} is unknown to this torch", f"it knows: {', '.join(modes)}"
        )
    for name in (n for each in wanted.options or () for n, _ in each):
        if why := DENIED.get(name):
            raise UsageError(f"the option {name} is not taken", why)
        if name not in options and name not in others:
            close = difflib.get_close_matches(name, options, 1)
            raise UsageError(
                f"Inductor's option {name!r} is unknown to this torch",
                hint=f"--option {close[0]}=..." if close else None,
            )


def _place(phase: str, probe: ProbeResult) -> Place:
    target = probe.target
    return Place(
        phase,
        probe.environment["device"].split(":")[0],
        target.get("threads", {}).get(phase, probe.environment["threads"]),
        target.get("has_convolutions", False),
        target.get("regions", {}).get(phase, ""),
        tuple(target.get("optimizers", ())),
        target.get("writes_buffers", {}).get(phase, False),
        workload_of(phase, target).get("kinds", 1),
    )


def passes_of(phase: str, run: Mapping[str, Any]) -> float | None:
    """Passes that a program of a run makes in a phase; None where nobody has said it."""
    calls: int | None = run["plan"].get("horizon")
    return calls and calls / workload_of(phase, run["target"]).get("calls", 1)


def sizes_of(phase: str, plan: Plan, target: Mapping[str, Any]) -> list[int | None]:
    """The batch sizes of a phase: asked for, or the defaults and the target's own."""
    if not phase_of(phase).has_batch_size:
        return [None]
    asked = plan.space.batch_sizes
    if fixed := target.get("fixed_batch_size"):
        if asked and set(asked) != {fixed}:
            raise UsageError(
                f"the inputs of {plan.target} have batch size {fixed}: its get_inputs() takes none",
                hint="def get_inputs(batch_size), or the same command without --batch-size",
            )
        return [fixed]
    own_size = target.get("own_batch_size", {}).get(phase)
    is_alone = plan.phases == (
        LEARNER_UPDATE,
    )  # or else sizes are asked for forward passes
    if phase == LEARNER_UPDATE and own_size and not (asked and is_alone):
        return [own_size]
    return sorted(
        set(asked or (*DEFAULT_BATCH_SIZES, *([own_size] if own_size else [])))
    )


def first_sizes(
    spaces: Mapping[str, Space], run: Mapping[str, Any]
) -> dict[str, int | None]:
    """The batch size of each phase that comes first: the target's own, or by the objective."""
    own_size = run["target"].get("own_batch_size") or {}
    choose = max if run["plan"]["objective"] == "throughput" else min
    sizes = {n: [s.batch_size or 0 for s in one.settings] for n, one in spaces.items()}
    return {name: own_size.get(name) or choose(sizes[name]) or None for name in spaces}


def calls_between_updates(
    phase: str, run: Mapping[str, Any], batch_size: int | None
) -> int | None:
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
    there = {
        *offered.all_backends,
        *offered.backends,
        *BACKENDS,
    }  # another one may have more
    backends = [b for b in wanted.backends or offered.backends if b in there]
    dropped: Counter[str] = Counter()
    values = {d.name: _values(d, wanted, place, dropped) for d in _LISTED}
    around = [
        {"environment": environment, **dict(zip(values, each, strict=True))}
        for each in itertools.product(*values.values())
    ]
    baselines = ("eager", *(["inductor"] if "inductor" in backends else []))
    configs = {CompileConfig(name, environment=environment): None for name in baselines}
    unusable: dict[Setting, str] = {}
    listed: list[CompileConfig] = []
    for backend in dict.fromkeys(("eager", *backends)):
        if reason := offered.backends.get(backend, ""):
            config = CompileConfig(backend, environment=environment)
            unusable[Setting(config, batch_sizes[0], place.phase)] = reason
        else:
            listed += _configs(backend, wanted, offered, place, around, dropped)
    for config in listed:
        if config in configs:
            continue
        if reason := why_not(config, place) or _why_not_paired(config, wanted, place):
            dropped[reason] += 1
        else:
            configs[config] = None
    settings = tuple(
        Setting(c, size, place.phase) for c in configs for size in batch_sizes
    )
    prefix = "" if environment == "default" else f"{environment}: "
    merged = {
        f"{prefix}mode {name}": f"{equal} (no other effect on {place.device})"
        for name, equal in offered.modes.items()
        if "inductor" in backends
        and name != equal
        and name in (wanted.modes or offered.modes)
    }
    return Space(settings, unusable, merged, dropped)


def _why_not_paired(config: CompileConfig, wanted: SearchSpace, place: Place) -> str:
    """Why two values are not tried together; or empty.

    Under autocast a precision of float32 has hardly a product to act on. Beside a model that is
    compiled, the optimizer's seconds only add up, and its fused step was the fastest one on every
    machine (studies/first_runs).
    """
    if (
        config.autocast != "none"
        and config.precision != (wanted.precision or ("default",))[0]
    ):
        return f"autocast already computes products of matrices in {config.autocast}"
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


def _values(
    dimension: Dimension, wanted: SearchSpace, place: Place, dropped: Counter[str]
) -> tuple[Any, ...]:
    """What is asked for, each value once, or what is tried by itself."""
    if (asked := getattr(wanted, dimension.asked, None)) is not None:
        return tuple(dict.fromkeys(asked))
    every = dimension.tried(place)
    reason = dimension.missing(place)
    if not reason and dimension.by_name:
        reason = (
            f"{dimension.flag} only by name, since it changes numbers or drops checks"
        )
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
            dropped.update(
                f"{backend} has no modes" for mode in modes if mode != "default"
            )
        modes = ["default"]
    for fields, mode, options in itertools.product(around, modes, every_option):
        if mode != "default" and fields["guards"] != "all":
            dropped["torch takes a filter of guards or a mode"] += 1
        elif mode != "default" and options:
            dropped["torch takes a mode or options"] += 1
        else:
            yield CompileConfig(backend, mode, tuple(options.items()), **fields)


def _options(
    backend: str,
    wanted: SearchSpace,
    offered: ProbeResult,
    place: Place,
    dropped: Counter[str],
) -> list[Mapping[str, OptionValue]]:
    """The options that a backend is tried with; none at all is one of them if none is asked for."""
    known = BACKENDS.get(backend, Backend())
    if wanted.options is not None and backend != "eager":
        there = set(offered.options) if known.has_modes else options_of(backend)
        wrong = [
            name for each in wanted.options for name, _ in each if name not in there
        ]
        dropped.update(f"{backend} has no option {name}" for name in wrong)
        asked = [dict(each) for each in wanted.options]
        return [each for each in asked if set(each) <= there] or [{}]
    tried: list[Mapping[str, OptionValue]] = [{}]
    for variant in known.variants:
        if variant.device not in (None, place.device):
            reason = (
                f"{backend}'s options for {variant.device} are not for {place.device}"
            )
        elif known.has_modes and not set(variant.options) <= set(offered.options):
            reason = f"the {backend} of this torch has no option {', '.join(variant.options)}"
        else:
            reason = no_convolutions(place) if variant.of_convolutions else ""
        if reason:
            dropped[reason] += 1
        else:
            tried.append(variant.options)
    return tried
