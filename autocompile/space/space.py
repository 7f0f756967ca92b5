"""What is there to try: the list of settings that comes of a request and what a probe found.

No mode is written down here. Settings that cannot differ on a device are one.
"""

from __future__ import annotations

import difflib
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autocompile.errors import TargetError, UsageError
from autocompile.protocol.requests import ProbeResult
from autocompile.request import Request
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
    Dimension,
    Place,
    no_convolutions,
    why_not,
)
from autocompile.settings.phases import FORWARD, TRAIN_STEP, phase_of
from autocompile.settings.searchspace import SearchSpace
from autocompile.store.reading import made
from autocompile.store.record import Outcome, Record
from autocompile.store.recorded_calls import workload_of
from autocompile.store.report import leading_size
from autocompile.store.run import Searched, Untried

DEFAULT_BATCH_SIZES = (1, 4, 16)
USUAL_PHASES = (FORWARD, TRAIN_STEP)
"""Of a model of a suite that needs no file."""
_LISTED = tuple(d for d in DIMENSIONS if d.is_listed)


@dataclass(frozen=True)
class Space:
    """The settings of one phase."""

    settings: tuple[Setting, ...]  # all that differ; baselines first
    unusable: Mapping[Setting, str]  # those that are not run, with the reason
    # What was left out and what it equals.
    merged: Mapping[str, str] = field(default_factory=dict)
    # How many were left out, by reason.
    dropped: Mapping[str, int] = field(default_factory=dict)

    def searched(
        self,
        records: Iterable[Record],
        rest: Sequence[Mapping[str, Any]] | None,
        unseen: Sequence[str],
    ) -> Searched:
        """What the search says of it.

        Args:
            rest, unseen: as :class:`Searched` has them, as JSON.
        """
        tried = {Setting.of(r) for r in records if r.outcome is not Outcome.INTERRUPTED}
        compiled = {s.config for s in self.settings if not s.config.is_eager}
        return Searched(
            configs=len({s.config for s in self.settings}),
            compiled=len(compiled),
            untried=sum(s not in tried for s in self.settings),
            unusable={s.config.backend: why for s, why in self.unusable.items()},
            dropped=dict(self.dropped),
            merged=dict(self.merged),
            rest=made(tuple[Untried, ...] | None, rest, "rest"),
            unseen=tuple(unseen),
        )


def spaces_of(request: Request, probes: Mapping[str, ProbeResult]) -> dict[str, Space]:
    """The settings of each phase, by the probe of each environment, the default one first."""
    phases = next(iter(probes.values())).target["phases"]
    if request.only is None:
        demand_offered(request.space, list(probes.values()))
    strategy = request.strategy if request.ranks > 1 else ""
    spaces = {}
    for phase in phases:
        if request.only is not None:  # each beside eager mode and plain torch.compile()
            every = dict.fromkeys(
                Setting(config, size, phase)
                for size, data in request.only[phase]
                for config in (EAGER, DEFAULT_INDUCTOR, CompileConfig.from_dict(data))
            )
            spaces[phase] = Space(tuple(every), {})
            continue
        parts = []
        for name, here in probes.items():
            sizes = sizes_of(phase, request, here.target)
            parts.append(
                build_space(
                    request.space, here, _place(phase, here, strategy), sizes, name
                )
            )
        spaces[phase] = Space(
            tuple(s for one in parts for s in one.settings),
            {s: reason for one in parts for s, reason in one.unusable.items()},
            {what: equal for one in parts for what, equal in one.merged.items()},
            sum((Counter(one.dropped) for one in parts), Counter[str]()),
        )
    return spaces


def demand_calls_differ(request: Request, target: Mapping[str, Any]) -> None:
    """Raise a TargetError where a percentile of calls of one shape has a limit."""
    names = sorted(request.limits.percentiles)
    if not names or target.get("workload", {}).get("kinds", 1) > 1:
        return
    raise TargetError(
        f"--max-latency {names[0]} needs calls of several shapes, and those of {request.target} "
        "have one: every percentile of them is the same",
        "get_calls() in the target's file gives several, or --calls a file of recorded ones",
        hint="--max-latency 10ms",
    )


def demand_offered(wanted: SearchSpace, offers: Sequence[ProbeResult]) -> None:
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
        raise TargetError(
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


def _place(phase: str, probe: ProbeResult, strategy: str = "") -> Place:
    target = probe.target
    if strategy and phase_of(phase).is_update:
        strategy = "own"  # the library wraps the model
    return Place(
        phase,
        probe.environment["device"].split(":")[0],
        target.get("threads", {}).get(phase, probe.environment["threads"]),
        target.get("has_convolutions", False),
        target.get("regions", {}).get(phase, ""),
        tuple(target.get("optimizers", ())),
        target.get("writes_buffers", {}).get(phase, False),
        workload_of(phase, target).get("kinds", 1),
        strategy,
    )


def passes_of(phase: str, request: Request, target: Mapping[str, Any]) -> float | None:
    """Passes that a program makes in a phase; None where nobody has said it."""
    calls = request.horizon
    return calls and calls / workload_of(phase, target).get("calls", 1)


def sizes_of(
    phase: str, request: Request, target: Mapping[str, Any]
) -> list[int | None]:
    """The batch sizes of a phase: asked for, or the defaults and the target's own."""
    if not phase_of(phase).has_batch_size:
        return [None]
    asked = request.space.batch_sizes
    if fixed := target.get("fixed_batch_size"):
        if asked and set(asked) != {fixed}:
            raise TargetError(
                f"the inputs of {request.target} have batch size {fixed}, whatever get_inputs() "
                "is asked for",
                hint="def get_inputs(batch_size), or the same command without --batch-size",
            )
        return [fixed]
    own_size = target.get("own_batch_size", {}).get(phase)
    if phase_of(phase).is_update and own_size:
        is_alone = request.phases == (phase,)  # else sizes are asked for forward passes
        if not (asked and is_alone):
            return [own_size]
    return sorted(
        set(asked or (*DEFAULT_BATCH_SIZES, *([own_size] if own_size else [])))
    )


def first_sizes(
    spaces: Mapping[str, Space], request: Request, target: Mapping[str, Any]
) -> dict[str, int | None]:
    """The batch size of each phase that its answer is about, and that comes first.

    None at which the first look at the target has failed.
    """
    own, broken = target.get("own_batch_size") or {}, target.get("fails_at")
    return {
        name: leading_size(
            own.get(name),
            [s.batch_size for s in space.settings if s.batch_size != broken],
            request.objective,
        )
        for name, space in spaces.items()
    }


def calls_between_updates(
    phase: str, request: Request, target: Mapping[str, Any], batch_size: int | None
) -> int | None:
    """Calls between two updates of the weights, as the user or the target says.

    None where weights stay as they are or nobody knows.
    """
    asked = request.calls_per_update
    samples: int | None = target.get("samples_per_update", {}).get(phase)
    if asked is None and samples and batch_size:
        return math.ceil(samples / batch_size)
    return asked or target.get("calls_per_update", {}).get(phase)


def build_space(
    wanted: SearchSpace,
    offered: ProbeResult,
    place: Place,
    batch_sizes: Sequence[int | None],
    environment: str = "default",
) -> Space:
    """The settings of a phase under one interpreter."""
    # One that is asked for may be there under another interpreter only.
    there = {*offered.all_backends, *offered.backends, *BACKENDS}
    backends = [b for b in wanted.backends or offered.backends if b in there]
    dropped: Counter[str] = Counter()
    around = _around_backends(wanted, place, environment, dropped)
    # They are measured in any case: all others are compared with them.
    baselines = [CompileConfig("eager", environment=environment)]
    if "inductor" in backends:
        baselines.append(CompileConfig("inductor", environment=environment))
    configs = dict.fromkeys(baselines)
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
    merged = {}
    if "inductor" in backends:
        merged = _merged_modes(wanted, offered, place.device, environment)
    return Space(settings, unusable, merged, dropped)


def _around_backends(
    wanted: SearchSpace, place: Place, environment: str, dropped: Counter[str]
) -> list[dict[str, Any]]:
    """Every combination of values that is tried with each backend."""
    values = {d.name: _values(d, wanted, place, dropped) for d in _LISTED}
    combinations = itertools.product(*values.values())
    return [
        {"environment": environment, **dict(zip(values, each, strict=True))}
        for each in combinations
    ]


def _merged_modes(
    wanted: SearchSpace, offered: ProbeResult, device: str, environment: str
) -> dict[str, str]:
    """The modes that are not tried since another one does the same there, with that one."""
    prefix = "" if environment == "default" else f"{environment}: "
    asked = wanted.modes or offered.modes
    return {
        f"{prefix}mode {name}": f"{equal} (no other effect on {device})"
        for name, equal in offered.modes.items()
        if name != equal and name in asked
    }


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
        reason = f"{dimension.flag} only by name, since it changes numbers"
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
        if mode != "default" and options:
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
