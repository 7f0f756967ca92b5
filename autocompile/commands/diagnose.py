"""check and doctor: what works here, tried for real in processes of its own."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autocompile.errors import TargetError, UsageError
from autocompile.execute.job import JobFactory
from autocompile.execute.local import Isolation, LocalExecutor
from autocompile.progress import Progress
from autocompile.protocol.requests import TimingLimits, TraceRequest, TrialRequest
from autocompile.protocol.results import ProbeResult, TraceResult
from autocompile.search.jobs import run_job
from autocompile.search.opening import probe
from autocompile.search.records import to_record
from autocompile.settings.backends import BACKENDS
from autocompile.settings.config import DEFAULT_INDUCTOR, EAGER, CompileConfig
from autocompile.settings.phases import phase_of
from autocompile.settings.setting import Setting
from autocompile.space.plan import Plan, target_spec
from autocompile.space.space import DEFAULT_BATCH_SIZES, SearchSpace
from autocompile.store.record import Record, RunFolder

__all__ = ["bench", "check", "doctor", "probed", "traced_by_dynamo"]

_SAMPLE = "autocompile.trial.target.sample"
_LIMITS = TimingLimits(half_width=0.05)

_LEFT_OUT = "it runs and is not right: tune leaves it out"
_LOG_LINES = 12  # enough for the end of a traceback


@contextlib.contextmanager
def bench(
    plan: Plan, timeout_s: float, isolation: Isolation = "auto"
) -> Iterator[tuple[JobFactory, LocalExecutor]]:
    """A job factory in a temporary folder and an executor, both gone afterwards."""
    executor = LocalExecutor(isolation=isolation)
    with tempfile.TemporaryDirectory(prefix="autocompile-") as scratch:
        folder = RunFolder(Path(scratch))
        folder.create()
        try:
            yield (
                JobFactory(folder, plan.header, timeout_s, None, pythons=dict(plan.pythons)),
                executor,
            )
        finally:
            executor.close()


def probed(
    plan: Plan, job_factory: JobFactory, executor: LocalExecutor, environment: str = "default"
) -> ProbeResult:
    """What the probe found; the log that an error speaks of is shown, since it will be gone.

    Raises:
        TargetError: as the probe.
    """
    try:
        return probe(plan, job_factory, executor, Progress(), environment)
    except UsageError as error:
        details = [line for line in error.details if not line.startswith("log: ")]
        if len(details) == len(error.details):
            raise
        name = "probe" if environment == "default" else f"probe-{environment}"
        log = (job_factory.folder.path / name / "log.txt").read_text("utf-8", "replace")
        raise TargetError(error.what, *details, *log.strip().splitlines()[-_LOG_LINES:]) from None


def traced_by_dynamo(
    plan: Plan, target: Mapping[str, Any], job_factory: JobFactory, executor: LocalExecutor
) -> dict[str, dict[str, Any]]:
    """What Dynamo alone makes of each phase, told in seconds; or ``error``, why it cannot be."""
    size = max(plan.space.batch_sizes or DEFAULT_BATCH_SIZES)
    request = TraceRequest(
        header=job_factory.header,
        number=job_factory.next_number(),
        phases=tuple(target["phases"]),
        batch_size=target.get("fixed_batch_size", size),
    )
    job = job_factory.job(request, alone=True)
    ending = run_job(executor, job, Progress())
    found = TraceResult.read(ending.payload).traced
    what = f"{ending.outcome.value}: {ending.message}"
    return {phase: found.get(phase, {"error": what}) for phase in target["phases"]}


def _try(job_factory: JobFactory, executor: LocalExecutor, setting: Setting) -> tuple[Record, str]:
    """One trial; its record and the end of its log."""
    number = job_factory.next_number()
    request = TrialRequest(
        header=job_factory.header,
        number=number,
        phase=setting.phase,
        config=setting.config,
        batch_size=setting.batch_size,
        limits=_LIMITS,
    )
    job = job_factory.job(request, alone=True)
    ending = run_job(executor, job, Progress())
    record = to_record(number, setting, ending)
    job_factory.folder.save(record)
    log = (job.folder / "log.txt").read_text("utf-8", "replace")
    return record, log[-4000:]


def _row(record: Record, log: str) -> dict[str, Any]:
    speedup = record.measurement.speedup.to_dict() if record.ok and record.measurement else None
    return {
        "outcome": record.outcome.value,
        "step": record.step.value,
        "message": record.message,
        "speedup": speedup,
        "compile_s": record.compile_s,
        "graphs": record.graphs,
        "graph_breaks": record.graph_breaks,
        "recompiles": record.recompiles,
        "break_reasons": record.detail.get("break_reasons", []),
        "skip_reasons": record.detail.get("skip_reasons", []),
        "where": record.detail.get("where"),
        "notes": list(record.notes),
        "log_tail": "" if record.ok else log,
    }


def check(
    target: str,
    phases: tuple[str, ...] | None,
    batch_size: int,
    device: str | None,
    timeout_s: float,
    tolerance: float | None = None,
) -> dict[str, Any]:
    """Load a target, run it in eager mode, compile it once as torch.compile() comes, and compare.

    Returns:
        ``target``, ``environment``, and under ``phases`` one row for each phase.

    Raises:
        TargetError: it cannot be loaded, built or run in eager mode.
    """
    space = SearchSpace(batch_sizes=(batch_size,))
    spec = target_spec(target)
    plan = Plan(spec, phases=phases, space=space, device=device, tolerance=tolerance)
    with bench(plan, timeout_s) as (job_factory, executor):
        found = probed(plan, job_factory, executor)
        rows = {}
        for phase in found.target["phases"]:
            size = batch_size if phase_of(phase).has_batch_size else None
            size = found.target.get("fixed_batch_size", size)
            setting = Setting(DEFAULT_INDUCTOR, size, phase)
            rows[phase] = _row(*_try(job_factory, executor, setting))
    target_found = {"spec": plan.target, **found.target}
    return {"target": target_found, "environment": found.environment, "phases": rows}


def doctor(backend: str | None, device: str | None) -> dict[str, Any]:
    """Compile a small model with each backend and mode and say what happened.

    Args:
        backend: only this one; the default backends if None.
        device: where to try; a GPU where there is one if None.

    Returns:
        ``environment``, and under ``backends`` one row for each backend.
    """
    names = None if backend is None else (backend,)
    plan = Plan(f"{_SAMPLE}:get_model", space=SearchSpace(backends=names), device=device)
    with bench(plan, 120.0) as (job_factory, executor):
        found = probed(plan, job_factory, executor)
        rows = {
            name: _examine(name, reason, found, job_factory, executor)
            for name, reason in found.backends.items()
        }
    environment = {**found.environment, "toolchain_s": found.toolchain_s}
    return {"environment": environment, "backends": rows, "known": found.all_backends}


def _examine(
    name: str, reason: str, offered: ProbeResult, job_factory: JobFactory, executor: LocalExecutor
) -> dict[str, Any]:
    known = BACKENDS.get(name)
    todo = known.todo if known else "autocompile doctor -v   (lists what torch knows)"
    if reason:
        return {"works": False, "reason": reason, "todo": todo, "modes": {}}
    modes: dict[str, dict[str, Any]] = {}
    for label, config, equal in _tries(name, offered):
        if equal != label:
            modes[label] = {"outcome": "same", "message": equal}
            continue
        modes[label] = _row(*_try(job_factory, executor, Setting(config, 4)))
    worked = [m for m, row in modes.items() if row["outcome"] in ("ok", "same")]
    failed = {m: row for m, row in modes.items() if m not in worked}
    failure = next((f"{m}: {row['message']}" for m, row in failed.items()), "")
    # What runs is installed; that its numbers are wrong no installation mends.
    runs = {"wrong_output", "stale_weights", "not_compiled"} & {
        str(row["outcome"]) for row in failed.values()
    }
    return {
        "works": bool(worked),
        "reason": failure.removeprefix("default: ") if len(modes) == 1 else failure,
        "todo": "" if worked else _LEFT_OUT if runs else todo,
        "modes": modes,
        "compile_s": next((modes[m]["compile_s"] for m in worked if "compile_s" in modes[m]), None),
    }


def _tries(name: str, offered: ProbeResult) -> list[tuple[str, CompileConfig, str]]:
    """A label, the setting, and the label of what it equals, which may be its own."""
    if name == "eager":
        return [("default", EAGER, "default")]
    if name == "inductor":
        return [(m, CompileConfig(name, m), equal) for m, equal in offered.modes.items()]
    variants = BACKENDS[name].variants if name in BACKENDS else ()
    found = [("default", CompileConfig(name), "default")]
    for variant in variants:
        label = " ".join(f"{key}={value}" for key, value in variant.options.items())
        if variant.device in (None, offered.environment["device"].split(":")[0]):
            options = tuple(variant.options.items())
            found.append((label, CompileConfig(name, options=options), label))
    return found
