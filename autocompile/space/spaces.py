"""What a plan comes to for a target on a machine: a space for each phase."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from autocompile.errors import UsageError
from autocompile.protocol.results import ProbeResult
from autocompile.settings.backends import BACKENDS, DENIED, OTHERS_OPTIONS, own_options
from autocompile.settings.dimension import Place
from autocompile.settings.phases import LEARNER_UPDATE, phase_of
from autocompile.space.enumeration import build_space, exact_space, joined
from autocompile.space.plan import Plan
from autocompile.space.space import DEFAULT_BATCH_SIZES, Catalogue, SearchSpace, Space

__all__ = ["calls_between_updates", "demand_known", "first_sizes", "predicted", "spaces_of"]

# Seconds of a trial besides its compile, and of compiles: what the recorded studies took.
_TRIAL_S = {"cpu": 3.0, "cuda": 4.0}
_COMPILE_S = {"cpu": (4.0, 6.0), "cuda": (3.0, 25.0)}


def spaces_of(plan: Plan, found: Mapping[str, ProbeResult]) -> dict[str, Space]:
    """The settings of each phase.

    Args:
        plan: what was asked for.
        found: what the probe of each environment has sent, the tuner's own first.

    Raises:
        UsageError: a backend, a mode or an option that no environment has.
    """
    target = next(iter(found.values())).target
    if plan.only is not None:
        return {phase: exact_space(phase, plan.only[phase]) for phase in target["phases"]}
    catalogues = {name: Catalogue.of(seen) for name, seen in found.items()}
    demand_known(plan.space, list(catalogues.values()))
    return {
        phase: joined(
            [
                build_space(
                    _known_to(offered, plan.space),
                    offered,
                    _place(phase, found[name]),
                    sizes_of(phase, plan, found[name].target),
                    name,
                )
                for name, offered in catalogues.items()
            ]
        )
        for phase in target["phases"]
    }


def demand_known(wanted: SearchSpace, offers: Sequence[Catalogue]) -> None:
    """Check that each backend, mode and option is known to some environment.

    Raises:
        UsageError: none has it.
    """
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


def _known_to(offered: Catalogue, wanted: SearchSpace) -> SearchSpace:
    """What is asked for, without what only another environment has."""
    backends = {"eager", *offered.all_backends, *offered.backends, *BACKENDS}
    options = OTHERS_OPTIONS.union(offered.options)
    there = [each for each in wanted.options or () if {name for name, _ in each} <= options]
    return dataclasses.replace(
        wanted,
        backends=_those(wanted.backends, backends, "eager"),
        modes=_those(wanted.modes, offered.modes, "default"),
        options=None if wanted.options is None else tuple(there) or ((),),
    )


def _those(
    asked: tuple[str, ...] | None, known: Collection[str], plain: str
) -> tuple[str, ...] | None:
    return None if asked is None else tuple(a for a in asked if a in known) or (plain,)


def _place(phase: str, found: ProbeResult) -> Place:
    target, environment = found.target, found.environment
    return Place(
        phase,
        environment["device"].split(":")[0],
        environment["threads"],
        target.get("has_convolutions", False),
        target.get("regions", {}).get(phase, ""),
        tuple(target.get("optimizers", ())),
    )


def sizes_of(phase: str, plan: Plan, target: Mapping[str, Any]) -> list[int | None]:
    """The batch sizes of a phase: asked for, or the defaults and the target's own.

    Raises:
        UsageError: others than the one that the target has are asked for.
    """
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
    target = run["target"]
    samples: int | None = target.get("samples_per_update", {}).get(phase)
    if asked is None and samples and batch_size:
        return math.ceil(samples / batch_size)
    derived: int | None = target.get("calls_per_update", {}).get(phase)
    return asked or derived


def predicted(space: Space, device: str, jobs: int) -> tuple[float, int]:
    """About how many seconds a search of the space takes, by what others took, and how many trials.

    Settings that may be answered by a plainer twin are counted as answered.
    """
    kind, listed = device if device in _TRIAL_S else "cuda", set(space.settings)
    tried = [s.config for s in space.settings if s.plainer_twin not in listed]
    compiling = sum(_COMPILE_S[kind]["max-autotune" in c.mode] for c in tried if not c.is_eager)
    return _TRIAL_S[kind] * len(tried) + compiling / jobs, len(tried)
