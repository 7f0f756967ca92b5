"""Look at machine, torch and target once, in a trial's process, before anything is tried."""

from __future__ import annotations

from autocompile.errors import TargetError
from autocompile.execute.executor import Ending, Executor
from autocompile.execute.job import JobFactory
from autocompile.progress import Progress
from autocompile.protocol.requests import ProbeRequest
from autocompile.protocol.results import ProbeResult
from autocompile.search.jobs import run_job
from autocompile.space.plan import Plan
from autocompile.space.space import DEFAULT_BATCH_SIZES
from autocompile.store.record import Outcome, Step

__all__ = ["probe"]

_MORE = {
    Outcome.TIMEOUT: "a longer --timeout, if it only needs more time",
    Outcome.OUT_OF_MEMORY: "a larger --memory-limit, if it only needs more memory",
}


def probe(
    plan: Plan,
    job_factory: JobFactory,
    executor: Executor,
    progress: Progress,
    environment: str = "default",
) -> ProbeResult:
    """What the probe of an interpreter has found.

    Args:
        plan: what was asked for.
        job_factory: makes the job.
        executor: runs it.
        progress: is told of it.
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
        backends=backends,
    )
    compiles = backends is None or "inductor" in backends
    job = job_factory.probe_job(request, compiles, environment)
    ending = run_job(executor, job, progress)
    if ending.first:
        progress.warning(
            f"the target was loaded again in a fresh interpreter: {ending.first.message}"
        )
    said = ProbeResult.read(ending.payload)
    if ending.outcome is Outcome.OK:
        return said
    error = said.error or _target_error(plan.target, ending, said, f"log: {job.folder / 'log.txt'}")
    if environment == "default":
        raise error
    where = f"in the environment {environment} ({job.python})"
    raise TargetError(f"{where}: {error.what}", *error.details, hint=error.hint)


def _target_error(place: str, ending: Ending, said: ProbeResult, log: str) -> TargetError:
    """Why there is nothing to tune, in one paragraph."""
    where = [said.where] if said.where else []
    if ending.outcome is Outcome.IMPORT_ERROR:
        return TargetError(f"{place} cannot be imported: {ending.message}", *where)
    if ending.outcome is not Outcome.RUNTIME_ERROR:
        what = f"{place} ended with {ending.outcome.value} before anything was compiled"
        return TargetError(what, ending.message, *where, log, hint=_MORE.get(ending.outcome))
    if said.during:
        return TargetError(f"{said.during} of {place} raised {ending.message}", *where)
    if ending.step is Step.BUILD:
        return TargetError(f"the model of {place} cannot be built: {ending.message}", *where)
    what = "the eager model fails before anything is compiled, so there is nothing to tune"
    return TargetError(what, ending.message, *where, log)
