"""check, doctor and ``tune --dry-run``: what works here, tried in processes of its own."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from autocompile.commands.bench import SAMPLE, Bench, bench
from autocompile.errors import UsageError
from autocompile.protocol.requests import ProbeResult, Side, TimingLimits, TrialRequest
from autocompile.request import Request
from autocompile.search.records import of_only_side, to_record
from autocompile.settings.backends import BACKENDS
from autocompile.settings.config import DEFAULT_INDUCTOR, EAGER, CompileConfig, Setting
from autocompile.settings.phases import phase_of
from autocompile.settings.searchspace import SearchSpace
from autocompile.space.space import DEFAULT_BATCH_SIZES, Space, spaces_of

_LIMITS = TimingLimits(half_width=0.05)
_DOCTOR_S = 120.0  # for a step of a trial of the small model
_WORKS = ("ok", "same")
# What runs is installed; that its numbers are wrong no installation mends.
_RUNS = ("wrong_output", "stale_weights", "not_compiled", "recompile_limit")


def check(request: Request, calls: Path | None = None) -> dict[str, Any]:
    """Run a target in eager mode and under plain torch.compile(); a row for each phase.

    It is tried at the one batch size of the request's space.

    Args:
        calls: the file of the request's calls, for the next command.
    """
    (batch_size,) = request.space.batch_sizes or DEFAULT_BATCH_SIZES[:1]
    with bench(request) as jobs:
        probe = jobs.probed()["default"]
        rows = {}
        for phase in probe.target["phases"]:
            size = batch_size if phase_of(phase).has_batch_size else None
            size = probe.target.get("fixed_batch_size", size)
            setting = Setting(DEFAULT_INDUCTOR, size, phase)
            rows[phase] = _tried(jobs, setting, profiles=True)
    names = ("phases", "device", "tolerance", "timeout_s")
    more = () if calls is None else ("--calls", str(calls))
    return {
        "target": {"spec": request.target, **probe.target},
        "environment": probe.environment,
        "phases": rows,
        "next": request.command(*more, names=names),
    }


def doctor(
    backend: str | None, device: str | None, wait: bool = True
) -> dict[str, Any]:
    """Compile a small model with each backend and mode; a row for each backend."""
    names = None if backend is None else (backend,)
    space = SearchSpace(backends=names)
    request = Request(SAMPLE, space=space, device=device, timeout_s=_DOCTOR_S)
    with bench(request, wait=wait) as jobs:
        probe = jobs.probed()["default"]
        rows = {
            name: _examined(name, reason, probe, jobs)
            for name, reason in probe.backends.items()
        }
        if backend and backend not in (*BACKENDS, *probe.all_backends):
            raise UsageError(
                f"torch {probe.environment['torch']} knows no backend {backend}",
                hint="autocompile doctor -v",
            )
    environment = {**probe.environment, "toolchain_s": probe.toolchain_s}
    return {
        "environment": environment,
        "backends": rows,
        "known": probe.all_backends,
        "collectives": dict(probe.collectives),
    }


def _examined(
    name: str, reason: str, offered: ProbeResult, jobs: Bench
) -> dict[str, Any]:
    known = BACKENDS.get(name)
    todo = known.todo if known else "autocompile doctor -v   (lists what torch knows)"
    if reason:
        return {"works": False, "reason": reason, "todo": todo, "modes": {}}
    modes: dict[str, dict[str, Any]] = {}
    for label, config in _tries(name, offered).items():
        if isinstance(config, str):
            modes[label] = {"outcome": "same", "message": config}
        else:
            modes[label] = _tried(jobs, Setting(config, 4))
    worked = [row for row in modes.values() if row["outcome"] in _WORKS]
    failed = {
        label: row for label, row in modes.items() if row["outcome"] not in _WORKS
    }
    failure = next((f"{label}: {row['message']}" for label, row in failed.items()), "")
    if any(row["outcome"] in _RUNS for row in failed.values()):
        todo = "it runs and is not right: tune never recommends it"
    return {
        "works": bool(worked),
        "reason": failure.removeprefix("default: ") if len(modes) == 1 else failure,
        "todo": "" if worked else todo,
        "modes": modes,
        "compile_s": next(
            (row["compile_s"] for row in worked if "compile_s" in row), None
        ),
    }


def _tries(name: str, offered: ProbeResult) -> dict[str, CompileConfig | str]:
    """What to try by its label, or the label of the mode that one equals here."""
    if name == "eager":
        return {"default": EAGER}
    if name == "inductor":
        return {
            mode: CompileConfig(name, mode) if equal == mode else equal
            for mode, equal in offered.modes.items()
        }
    configs: dict[str, CompileConfig | str] = {"default": CompileConfig(name)}
    for variant in BACKENDS[name].variants if name in BACKENDS else ():
        if variant.device in (None, offered.environment["device"].split(":")[0]):
            label = " ".join(f"{key}={value}" for key, value in variant.options.items())
            configs[label] = CompileConfig(name, options=tuple(variant.options.items()))
    return configs


def _tried(jobs: Bench, setting: Setting, profiles: bool = False) -> dict[str, Any]:
    """What became of one trial; ``profiles``: and what an eager call does."""
    ending = jobs.run(
        TrialRequest,
        phase=setting.phase,
        sides=(Side(setting.config),),
        batch_size=setting.batch_size,
        limits=_LIMITS,
        profiles=profiles,
    )
    payload = of_only_side(ending.payload)
    record = to_record(0, setting, dataclasses.replace(ending, payload=payload))
    speedup = (
        record.measurement.speedup.to_dict()
        if record.ok and record.measurement
        else None
    )
    names = ("message", "compile_s", "graphs", "graph_breaks", "recompiles", "where")
    return {
        "outcome": record.outcome.value,
        "step": record.step.value,
        "speedup": speedup,
        **{name: getattr(record, name) for name in names},
        "breaks": [dataclasses.asdict(each) for each in record.breaks],
        "skip_reasons": record.detail.get("skip_reasons", []),
        "eager_call": record.detail.get("eager_call"),
        "notes": list(record.notes),
        "log_tail": "" if record.ok else jobs.log.read_text("utf-8", "replace")[-4000:],
    }


def preview(request: Request) -> dict[str, Any]:
    """What a tune would try: the settings of each phase, what was merged or dropped and why."""
    with bench(request) as trying:
        every = trying.probed()
    probe = every["default"]
    spaces = spaces_of(request, every)
    return {
        "target": {"spec": request.target, **probe.target},
        "environment": probe.environment,
        "phases": {name: _row(space) for name, space in spaces.items()},
    }


def _row(space: Space) -> dict[str, Any]:
    listed = set(space.settings)
    return {
        "settings": [
            {
                "config": s.config.to_dict(),
                "batch_size": s.batch_size,
                "label": s.config.label(),
                "may_equal": [
                    t.config.label() for t in [s.plainer_twin] if t in listed and t
                ],
            }
            for s in space.settings
        ],
        "unusable": {s.config.backend: why for s, why in space.unusable.items()},
        "merged": dict(space.merged),
        "dropped": dict(space.dropped),
    }
