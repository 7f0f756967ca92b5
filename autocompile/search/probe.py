"""Look at machine, torch and target once, in a trial's process, before anything is tried."""

from __future__ import annotations

from typing import Any

from autocompile.errors import TargetError, UsageError
from autocompile.execute.executor import Ending, Executor
from autocompile.execute.job import JobFactory
from autocompile.protocol.requests import ProbeRequest
from autocompile.protocol.results import ProbeResult
from autocompile.search.jobs import run_job
from autocompile.search.observer import Observer
from autocompile.space.plan import Plan
from autocompile.space.space import DEFAULT_BATCH_SIZES
from autocompile.store.record import Outcome, Step

__all__ = ["probe"]


def probe(
    plan: Plan,
    job_factory: JobFactory,
    executor: Executor,
    observer: Observer,
    environment: str = "default",
) -> dict[str, Any]:
    """What the probe sends: ``environment``, ``backends``, ``modes`` and ``target``.

    Args:
        plan: what was asked for.
        job_factory: makes the job.
        executor: runs it.
        observer: is told of it.
        environment: whose interpreter looks.

    Raises:
        TargetError: the target cannot be loaded, built or run in eager mode.
        KeyboardInterrupt: the user pressed Ctrl-C.
    """
    backends = plan.space.backends
    request = ProbeRequest(
        header=job_factory.header,
        phases=plan.phases or None,
        batch_size=max(plan.space.batch_sizes or DEFAULT_BATCH_SIZES),
        backends=tuple(backends) if backends else None,
    )
    compiles = backends is None or "inductor" in backends
    job = job_factory.probe_job(request, compiles, environment)
    ending, interrupted = run_job(executor, job, observer)
    if interrupted:
        raise KeyboardInterrupt
    if ending.first:
        observer.warning(
            f"the target was loaded again in a fresh interpreter: {ending.first.message}"
        )
    if ending.outcome is not Outcome.OK:
        error = _target_error(plan, ending, str(job.folder / "log.txt"))
        if environment == "default":
            raise error
        where = f"in the environment {environment} ({job.python})"
        raise TargetError(f"{where}: {error.what}", *error.details, hint=error.hint)
    return dict(ending.payload)


_MORE = {
    Outcome.TIMEOUT: "a longer --timeout, if it only needs more time",
    Outcome.OUT_OF_MEMORY: "a larger --memory-limit, if it only needs more memory",
}


def _target_error(plan: Plan, ending: Ending, log: str) -> UsageError:
    """Why there is nothing to tune, in one paragraph."""
    said = ProbeResult.read(ending.payload)
    if said.error:
        return said.error
    where = [said.where] if said.where else []
    place = plan.target
    if ending.outcome is Outcome.IMPORT_ERROR:
        return TargetError(f"{place} cannot be imported: {ending.message}", *where)
    if ending.outcome is not Outcome.RUNTIME_ERROR:
        return TargetError(
            f"{place} ended with {ending.outcome.value} before anything was compiled",
            ending.message,
            *where,
            f"log: {log}",
            hint=_MORE.get(ending.outcome),
        )
    if said.during:
        return TargetError(f"{said.during} of {place} raised {ending.message}", *where)
    if ending.step is Step.BUILD:
        return TargetError(f"the model of {place} cannot be built: {ending.message}", *where)
    return TargetError(
        "the eager model fails before anything is compiled, so there is nothing to tune",
        ending.message,
        *where,
        f"log: {log}",
        hint=f"autocompile check {place} -v",
    )
