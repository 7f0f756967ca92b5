"""What a plan comes to for a target on a machine: a space for each phase."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from autocompile.errors import UsageError
from autocompile.settings.backends import OTHERS_OPTIONS
from autocompile.settings.dimension import Place
from autocompile.settings.phases import LEARNER_UPDATE, phase_of
from autocompile.space.enumeration import build_space, exact_space, joined
from autocompile.space.plan import Plan
from autocompile.space.space import (
    DEFAULT_BATCH_SIZES,
    Catalogue,
    SearchSpace,
    Space,
    plainer_twins,
)
from autocompile.store.record import Record

__all__ = ["account", "calls_between_updates", "first_sizes", "predicted", "spaces_of"]

# Seconds of a trial besides its compile, and of compiles: what the recorded studies took.
_TRIAL_S = {"cpu": 3.0, "cuda": 4.0}
_COMPILE_S = {"cpu": (4.0, 6.0), "cuda": (3.0, 25.0)}


def spaces_of(plan: Plan, found: Mapping[str, Mapping[str, Any]]) -> dict[str, Space]:
    """The settings of each phase.

    Args:
        plan: what was asked for.
        found: what the probe of each environment has sent, the tuner's own first.

    Raises:
        UsageError: a backend or a mode that no environment has.
    """
    target = next(iter(found.values()))["target"]
    if plan.only is not None:
        return {phase: exact_space(phase, plan.only[phase]) for phase in target["phases"]}
    if len(found) > 1:
        _demand_known(plan.space, [Catalogue.of(seen) for seen in found.values()])
    return {
        phase: joined(
            [_space(plan, phase, name, seen, len(found) > 1) for name, seen in found.items()]
        )
        for phase in target["phases"]
    }


def _demand_known(wanted: SearchSpace, offers: Sequence[Catalogue]) -> None:
    """Whether each backend, mode and option is known to some environment.

    Raises:
        UsageError: none has it.
    """
    known = {
        "backend": (wanted.backends, {"eager"}.union(*(o.all_backends for o in offers))),
        "mode": (wanted.modes, set().union(*(o.modes for o in offers))),
        "option": (
            [name for each in wanted.options or () for name in _names(each)],
            OTHERS_OPTIONS.union(*(o.options for o in offers)),
        ),
    }
    for what, (asked, there) in known.items():
        for name in asked or ():
            if name not in there and not any(name in o.backends for o in offers):
                raise UsageError(f"the {what} {name!r} is unknown to every environment")


def _names(options: Sequence[tuple[str, Any]]) -> set[str]:
    return {name for name, _ in options}


def _space(
    plan: Plan,
    phase: str,
    environment: str,
    seen: Mapping[str, Any],
    is_one_of_several: bool,
) -> Space:
    offered = Catalogue.of(seen)
    sizes = _sizes(phase, plan, seen["target"])
    wanted = plan.space
    if is_one_of_several:  # another may have what this one lacks
        known = set(offered.all_backends) | set(offered.backends)
        there = OTHERS_OPTIONS | set(offered.options)
        options = [each for each in wanted.options or () if _names(each) <= there]
        wanted = dataclasses.replace(
            wanted,
            backends=_those(wanted.backends, known, "eager"),
            modes=_those(wanted.modes, set(offered.modes), "default"),
            options=None if wanted.options is None else tuple(options) or ((),),
        )
    place = _place(phase, seen)
    return build_space(wanted, offered, place, sizes, environment)


def _those(asked: tuple[str, ...] | None, known: set[str], plain: str) -> tuple[str, ...] | None:
    return None if asked is None else tuple(a for a in asked if a in known) or (plain,)


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
    compiling, alone, processes = 0.0, 0.0, 0
    for setting in space.settings:
        config = setting.config
        if any(twin in listed for twin in plainer_twins(setting)):
            continue
        processes += 1
        alone += _TRIAL_S[kind]
        if not config.is_eager:
            compiling += _COMPILE_S[kind]["max-autotune" in config.mode]
    return alone + compiling / jobs, processes


def _place(phase: str, run: Mapping[str, Any]) -> Place:
    target, environment = run["target"], run["environment"]
    return Place(
        phase,
        environment["device"].split(":")[0],
        environment["threads"],
        target.get("has_convolutions", False),
        target.get("regions", {}).get(phase, ""),
        tuple(target.get("optimizers", ())),
    )


def _sizes(phase: str, plan: Plan, target: Mapping[str, Any]) -> list[int | None]:
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


def account(space: Space, records: list[Record]) -> dict[str, Any]:
    """What a report says of a phase's space."""
    tried = {
        (r.config, r.batch_size)
        for r in records
        if r.phase == space.phase and r.outcome.value != "interrupted"
    }
    return {
        "summary": space.summary(),
        "merged": dict(space.merged),
        "dropped": dict(space.dropped),
        "unusable": {s.config.backend: reason for s, reason in space.unusable.items()},
        "configs": len({s.config for s in space.settings}),
        "settings": len(space.settings),
        "untried": sum((s.config, s.batch_size) not in tried for s in space.settings),
    }
