"""What a plan comes to for a target on a machine: a space for each phase."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from autocompile.errors import UsageError
from autocompile.protocol.results import ProbeResult
from autocompile.settings.backends import BACKENDS, DENIED, own_options
from autocompile.settings.dimension import Place
from autocompile.settings.phases import LEARNER_UPDATE, phase_of
from autocompile.space.enumeration import build_space, exact_space, joined
from autocompile.space.plan import Plan
from autocompile.space.space import DEFAULT_BATCH_SIZES, SearchSpace, Space

__all__ = ["calls_between_updates", "demand_known", "first_sizes", "spaces_of"]

_SAME_STEP = 1.02  # times the fastest step: as fast


def spaces_of(plan: Plan, found: Mapping[str, ProbeResult]) -> dict[str, Space]:
    """The settings of each phase, by what the probe of each environment found, the own first."""
    target = next(iter(found.values())).target
    if plan.only is not None:
        return {phase: exact_space(phase, plan.only[phase]) for phase in target["phases"]}
    demand_known(plan.space, list(found.values()))

    def space_of(phase: str, name: str) -> Space:
        here = found[name]
        wanted, place = _known_to(here, plan.space), _place(phase, here)
        return build_space(wanted, here, place, sizes_of(phase, plan, here.target), name)

    return {phase: joined([space_of(phase, name) for name in found]) for phase in target["phases"]}


def demand_known(wanted: SearchSpace, offers: Sequence[ProbeResult]) -> None:
    """Check that each backend, mode and option is known to some environment."""
    backends = list(dict.fromkeys(name for o in offers for name in (*o.all_backends, "eager")))
    for name in wanted.backends or ():
        if name not in backends and name not in BACKENDS:
            close = difflib.get_close_matches(name, backends, 1)
            known = (n for n in backends if n != "eager" and "TESTING" not in n)
            raise UsageError(
                f"backend {name!r} is unknown to torch and is not registered by the target",
                f"known here: {', '.join(known)}",
                hint=f"--backend {close[0]}" if close else "autocompile doctor",
            )
    modes = list(dict.fromkeys(mode for o in offers for mode in o.modes))
    for mode in wanted.modes or ():
        if mode not in modes:
            raise UsageError(
                f"mode {mode!r} is unknown to this torch", f"it knows: {', '.join(modes)}"
            )
    options = list(dict.fromkeys(name for o in offers for name in o.options))
    tried = wanted.backends or [name for o in offers for name in o.backends]
    others = {name for backend in tried for name in own_options(backend)}
    for name in (name for each in wanted.options or () for name, _ in each):
        if why := DENIED.get(name):
            raise UsageError(f"the option {name} is not taken", why)
        if name not in options and name not in others:
            close = difflib.get_close_matches(name, options, 1)
            raise UsageError(
                f"Inductor's option {name!r} is unknown to this torch",
                hint=f"--option {close[0]}=..." if close else None,
            )


def _known_to(offered: ProbeResult, wanted: SearchSpace) -> SearchSpace:
    """What is asked for, without what only another environment has."""
    backends = {"eager", *offered.all_backends, *offered.backends, *BACKENDS}
    options = {*offered.options, *(name for backend in BACKENDS for name in own_options(backend))}
    changes: dict[str, Any] = {}
    if wanted.backends is not None:
        changes["backends"] = [b for b in wanted.backends if b in backends] or ["eager"]
    if wanted.modes is not None:
        changes["modes"] = [m for m in wanted.modes if m in offered.modes] or ["default"]
    if wanted.options is not None:
        there = [each for each in wanted.options if {name for name, _ in each} <= options]
        changes["options"] = there or [()]
    return dataclasses.replace(wanted, **changes)


def _place(phase: str, found: ProbeResult) -> Place:
    target = found.target
    return Place(
        phase,
        found.environment["device"].split(":")[0],
        target.get("threads", {}).get(phase, found.environment["threads"]),
        target.get("has_convolutions", False),
        target.get("regions", {}).get(phase, ""),
        tuple(target.get("optimizers", ())),
        _best_optimizer(target.get("optimizer_s", {}).get(phase, {})),
        target.get("writes_buffers", {}).get(phase, False),
    )


def _best_optimizer(seconds: Mapping[str, float]) -> str:
    """The fastest implementation; the target's own where another gains nothing to speak of."""
    if not seconds:
        return ""
    best = min(seconds, key=seconds.__getitem__)
    own = seconds.get("default", math.inf)
    return "default" if own <= _SAME_STEP * seconds[best] else best


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
