"""Opens a run: its folder, what the probes find, and whether an earlier run can be resumed."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from autocompile.errors import AnotherMachine, RunError, TargetError
from autocompile.execute.executor import Ending, Executor
from autocompile.execute.job import JobFactory, locked
from autocompile.interpreters.started import demand_torch
from autocompile.progress import Progress
from autocompile.protocol.requests import ProbeRequest, ProbeResult
from autocompile.request import Request
from autocompile.search.deadlines import NO_DEADLINES, Deadlines
from autocompile.search.jobs import run_job
from autocompile.settings.tuned import FINGERPRINT, unlike
from autocompile.space.space import DEFAULT_BATCH_SIZES
from autocompile.store import runs
from autocompile.store.record import Outcome, RunFolder, Step
from autocompile.store.run import Run
from autocompile.store.sources import sources_of

Found = Mapping[str, ProbeResult]

# How eager mode may fail at one batch size and work at another.
_OF_SIZE = (Outcome.RUNTIME_ERROR, Outcome.OUT_OF_MEMORY)

_MORE = {
    Outcome.TIMEOUT: "a longer --timeout, if it only needs more time",
    Outcome.OUT_OF_MEMORY: "a larger --memory-limit, if it only needs more memory",
}


def resolved(request: Request) -> tuple[RunFolder, Request]:
    """The run's folder, and the request that the run is made by.

    A resumed run has what it was started with, and nothing else may be asked for.
    """
    target, run_dir = request.target, request.run_dir
    if request.resume:
        folder = RunFolder(run_dir or runs.latest_of(target, runs.HERE))
        begun = folder.read_run()
        earlier = Request.from_dict(begun["request"])
        # A run for which no device was named has found one.
        found = (begun.get("environment") or {}).get("device")
        if earlier.device is None and request.device == found:
            request = dataclasses.replace(request, device=None)
        return folder, request.resumed(earlier)
    folder = RunFolder(run_dir) if run_dir else runs.new_folder(target)
    if folder.run_json.exists():
        with locked(folder):  # raises another error if the run is active
            pass
        raise RunError(
            f"{folder.path} already holds a run", hint="the same command with --resume"
        )
    if folder.holds_something_else():
        raise RunError(
            f"the folder {folder.path} is not empty and holds no run",
            "a run writes and removes files in its folder, so the folder must be its own",
            hint="--run-dir with a new folder",
        )
    return folder, request


@contextlib.contextmanager
def opened(folder: RunFolder) -> Iterator[None]:
    """Create the folder of a new run and hold it for this process.

    Removes it again if an error occurs before ``run.json`` exists, unless the error names a log in
    it, or another tuner uses it.
    """
    try:
        if not folder.run_json.exists():
            folder.create()
        with locked(folder):
            yield
    except BaseException as error:
        if f"log: {folder.path}" not in str(error):
            with contextlib.suppress(RunError), locked(folder):
                if not folder.run_json.exists():
                    folder.remove()
        raise


def probe_all(
    request: Request,
    job_factory: JobFactory,
    executor: Executor,
    progress: Progress,
    deadlines: Deadlines = NO_DEADLINES,
) -> tuple[Request, Found]:
    """What the probe of each environment has found, the tuner's own first.

    The request gets the phases that were found: default phases depend on a timing, and the other
    interpreters and a resumed run must use the same.
    """
    for python in request.environments.values():
        demand_torch(python, min(job_factory.timeout_s, max(1.0, deadlines.left_s)))
    more = job_factory, executor, progress, deadlines
    found = {"default": probe(request, *more)}
    phases = tuple(found["default"].target["phases"])
    request = dataclasses.replace(request, phases=phases)
    for name in request.environments:
        found[name] = probe(request, *more, name)
    return request, found


def probe(
    request: Request,
    job_factory: JobFactory,
    executor: Executor,
    progress: Progress,
    deadlines: Deadlines = NO_DEADLINES,
    environment: str = "default",
) -> ProbeResult:
    """What the interpreter of an environment finds of machine, torch and target.

    It calls the target at the largest batch size; where that fails, and not the target by itself,
    at the smallest. It is ended with an error where all the time of the run has gone into it.
    """
    sizes = request.space.batch_sizes or DEFAULT_BATCH_SIZES
    parts = request, job_factory, executor, progress, deadlines, environment
    try:
        return _probe_at(max(sizes), *parts)
    except _FailsThere as error:
        if min(sizes) == max(sizes):
            raise
        why = ". ".join((error.what, *error.details))
        progress.warning(f"at batch size {max(sizes)}: {why}")
        with contextlib.suppress(_FailsThere):
            found = _probe_at(min(sizes), *parts)
            found.target["fails_at"] = max(sizes)
            return found
        raise


class _FailsThere(TargetError):
    """Eager mode fails at one batch size, for all that is known."""


def _probe_at(
    batch_size: int,
    request: Request,
    job_factory: JobFactory,
    executor: Executor,
    progress: Progress,
    deadlines: Deadlines,
    environment: str,
) -> ProbeResult:
    backends = request.space.backends
    asked = ProbeRequest(
        header=job_factory.header,
        phases=request.phases or None,
        batch_size=batch_size,
        backends=backends,
    )
    compiles = backends is None or "inductor" in backends
    job = job_factory.probe_job(asked, compiles, environment)
    ending = run_job(executor, job, progress, deadlines.is_over)
    if ending.first:
        progress.warning(
            f"the target was loaded again in a fresh interpreter: {ending.first.message}"
        )
    result = ProbeResult.read(ending.payload)
    if ending.outcome is Outcome.OK:
        if ending.not_built and result.target:
            choices = result.target.setdefault("choices", {})
            choices["build"] = f"by each trial: {ending.not_built}"
        return result
    log = f"log: {job.folder / 'log.txt'}"
    if ending.outcome is Outcome.INTERRUPTED:
        raise _no_time_left(request.target, ending, deadlines, log)
    error = result.error or _target_error(request.target, ending, result, log)
    if environment != "default":
        where = f"in the environment {environment} ({job.python})"
        error = TargetError(f"{where}: {error.what}", *error.details, hint=error.hint)
    is_of_call = ending.step is Step.EAGER and ending.outcome in _OF_SIZE
    if is_of_call and not result.error:
        raise _FailsThere(error.what, *error.details, hint=error.hint)
    raise error


def _no_time_left(
    place: str, ending: Ending, deadlines: Deadlines, log: str
) -> TargetError:
    """What to say where the first look at the target took the whole budget."""
    during = {
        Step.IMPORT: "importing it",
        Step.BUILD: "building its model",
        Step.EAGER: "making its inputs and a first eager call",
    }
    what = during.get(ending.step, f"the step {ending.step.value}")
    total_s = deadlines.total_s or deadlines.spent_s
    return TargetError(
        f"{place} took the whole budget of {total_s:.0f} s before anything was compiled: "
        f"{what} had not ended",
        log,
        hint=f"--budget {max(60, 4 * round(total_s))}s, or the log if it never ends",
    )


def _target_error(
    place: str, ending: Ending, result: ProbeResult, log: str
) -> TargetError:
    """Why there is nothing to tune, in one paragraph."""
    where = [result.where] if result.where else []
    if ending.outcome is Outcome.IMPORT_ERROR:
        return TargetError(f"{place} cannot be imported: {ending.message}", *where)
    if ending.outcome is not Outcome.RUNTIME_ERROR:
        what = f"{place} ended with {ending.outcome.value} before anything was compiled"
        return TargetError(
            what, ending.message, *where, log, hint=_MORE.get(ending.outcome)
        )
    if result.during:
        return TargetError(
            f"{result.during} of {place} raised {ending.message}", *where
        )
    if ending.step is Step.BUILD:
        return TargetError(
            f"the model of {place} cannot be built: {ending.message}", *where
        )
    what = (
        "the eager model fails before anything is compiled, so there is nothing to tune"
    )
    return TargetError(what, ending.message, *where, log)


def described(folder: RunFolder, request: Request, every: Found) -> Run:
    """The run; of a resumed one, what its folder holds."""
    from autocompile import __version__

    if folder.run_json.exists():
        run = Run.read(folder)
        _demand_unchanged(folder, request, run, every)
        return run
    found = every["default"]
    others = {
        name: {"python_path": path, **every[name].environment}
        for name, path in request.environments.items()
    }
    return Run(
        request=request,
        environment={"autocompile": __version__, **found.environment},
        target=found.target,
        phases=tuple(found.target["phases"]),
        id=secrets.token_hex(4),
        environments=others,
        sources=_digests(request.target),
        toolchain_s=found.toolchain_s,
    )


def _demand_unchanged(
    folder: RunFolder, request: Request, run: Run, every: Found
) -> None:
    anew = "the same command without --resume"
    now = every["default"].environment
    demand_same_machine(folder.path, run.environment, now, anew)
    for name, seen in run.environments.items():
        if name in every:
            here = every[name].environment
            where = f" in the environment {name}"
            demand_same_machine(folder.path, seen, here, anew, where)
    earlier, files = run.sources, _digests(request.target)
    changed = [
        path for path, digest in earlier.items() if files and files.get(path) != digest
    ]
    now_target = every["default"].target
    if not changed and run.target.get("sha256") != now_target.get("sha256"):
        changed = [request.target]  # a file that is not here
    if changed:
        raise RunError(
            f"{', '.join(changed[:3])} has changed since {folder.path} was made",
            "its finished trials measured another model",
            hint=anew,
        )


def demand_same_machine(
    made: object,
    before: Mapping[str, Any],
    here: Mapping[str, Any],
    hint: str,
    where: str = "",
) -> None:
    """Check that a machine and its torch are those that something was made with.

    Raises:
        RunError: it names what ``made`` was made with, and what is here.
    """
    names = {*FINGERPRINT, "python", "driver"}
    if not str(here["device"]).startswith("cpu"):
        names.remove("threads")  # the nodes of a cluster may have other cores
    for what, (old, new) in unlike(before, here, sorted(names)).items():
        raise AnotherMachine(
            f"{made} was made with another {what}{where}",
            f"{old} then, {new} now",
            hint=hint,
        )


def _digests(target: str) -> dict[str, str]:
    """Of the target's file and what it imports from beside it, by paths from its folder."""
    if (found := sources_of(target)) is None:
        return {}
    files = {found.place / path: data for path, data in found.files.items()}
    home = found.file.parent
    return {
        os.path.relpath(p, home): hashlib.sha256(d).hexdigest()
        for p, d in files.items()
    }
