"""tune() and load(): the public functions, which wire the objects together."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from autocompile.errors import RunError, UsageError
from autocompile.estimate.candidates import Limits
from autocompile.execute.executor import Executor
from autocompile.execute.interpreter import demand_torch
from autocompile.execute.job import JobFactory, is_held, locked
from autocompile.execute.local import Isolation, LocalExecutor
from autocompile.execute.memory import most_memory_bytes
from autocompile.protocol.requests import Header
from autocompile.report.live import Progress
from autocompile.report.live import progress as progress_of
from autocompile.result import Result, exported_code, make_result, write_result
from autocompile.search.budget import Budget
from autocompile.search.effects import prior_of
from autocompile.search.exported_code import run_exported
from autocompile.search.jobs import without_interrupts
from autocompile.search.probe import probe
from autocompile.search.race import Race
from autocompile.search.sampler import make_sampler
from autocompile.search.study import Interrupted, Study
from autocompile.settings.effort import budget_of
from autocompile.settings.tuned import Tuned
from autocompile.space.plan import Plan, environments, limits_of, target_spec, unknown_keys
from autocompile.space.space import SearchSpace, Space
from autocompile.space.spaces import account, calls_between_updates, first_sizes, spaces_of
from autocompile.store import runs
from autocompile.store.files import write_json
from autocompile.store.reading import notice
from autocompile.store.record import SCHEMA, RunFolder

__all__ = ["load", "tune"]

_WORTH_MORE = 0.25  # share of the budget left after races above which the search continues


def tune(
    target: Any,
    inputs: Any = None,
    *,
    optimizer: Callable[[Any], Any] | None = None,
    loss: Callable[[Any, Any], Any] | None = None,
    phases: tuple[str, ...] | None = None,
    space: SearchSpace | None = None,
    effort: str = "normal",
    trials: int | None = None,
    budget_s: float | None = None,
    sampler: str = "portfolio",
    timeout_s: float = 300.0,
    memory_limit_bytes: int | None = None,
    objective: str = "throughput",
    limits: Limits | None = None,
    device: str | None = None,
    jobs: int | None = None,
    isolation: Isolation = "auto",
    executor: Executor | None = None,
    storage: str | None = None,
    run_dir: str | Path | None = None,
    resume: bool = False,
    seed: int = 0,
    tolerance: float | None = None,
    calls_per_update: int | None = None,
    pythons: tuple[str, ...] = (),
    only: Tuned | None = None,
    progress: Progress | str = "auto",
    clock: Callable[[], float] = time.monotonic,
) -> Result:
    """Find the fastest settings with correct results for a target on this machine.

    Args:
        target: a path, ``PATH:NAME``, ``package.module:NAME``, or an importable function or class;
            it is loaded in trial processes only. With ``inputs`` a live ``nn.Module``, or a
            function that returns one: it is written to ``runs/carried``, not changed.
        inputs: of a live model: a tensor, a tuple or list for ``model(*x)``, a dict for
            ``model(**x)``, or a function from a batch size to one of these.
        optimizer: of a live model: from a module to its optimizer; None: Adam.
        loss: of a live model: from an output and the inputs to a scalar; None: the sum of outputs.
        phases: what to time; None: the target's default phases.
        space: narrows the dimensions.
        effort: ``quick`` (90 s), ``normal`` (5 min) or ``full`` (every setting).
        trials: maximum number of search trials that start a process.
        budget_s: seconds of the whole run, including the report; None: set by ``effort``.
        sampler: ``portfolio``, or Optuna's ``tpe``, ``gp`` or ``random``.
        timeout_s: limit for each step of a trial.
        memory_limit_bytes: limit for one trial; None: its share of 80 % of the free memory.
        objective: ``throughput`` or ``latency``.
        limits: what a setting must meet to be chosen.
        device: None: ``cuda`` if available.
        jobs: trials that compile in parallel; None: one per core, at most 16.
        isolation: ``fork`` forks trials from a warm process, ``spawn`` starts an interpreter for
            each, ``auto`` forks where that is safe.
        executor: runs the trials; None: processes on this machine.
        storage: an Optuna storage URL; None: ``study.db`` in the run's folder.
        run_dir: the run's folder; None: a new one under ``./runs``.
        resume: continue ``run_dir``, or the last run of this target.
        seed: for weights, inputs and orders.
        tolerance: relative tolerance of outputs, between 0 and 1; None: by dtype.
        calls_per_update: calls of a forward phase between two changes of the weights, which
            decides whether constant weights pay; None: from the target.
        pythons: interpreters of other environments to try too, as ``PATH`` or ``NAME=PATH``; they
            need torch, numpy and the target's imports.
        only: tries only these settings, eager mode and plain ``torch.compile()``.
        progress: ``auto`` (on stderr: live on a terminal, a line per trial elsewhere), ``plain``,
            ``none``, or an object of yours that is told of each event.
        clock: returns seconds, for the budget.

    Returns:
        The result; ``interrupted`` is set if Ctrl-C ended the run early.

    Raises:
        UsageError, TargetError: the request or the target is invalid, or cannot be pickled.
        RunError: the run's folder cannot be used.
        NothingWorked: no setting and no eager run worked.
    """
    began = clock()
    show = progress_of(progress, sys.stderr) if isinstance(progress, str) else progress
    if inputs is not None:
        from autocompile.runtime.carried import carry

        target = carry(target, inputs, runs.under / "carried", optimizer=optimizer, loss=loss)
    elif optimizer or loss:
        raise UsageError("optimizer and loss are about a live model", "a file defines its own")
    plan = Plan(
        target=target_spec(target),
        phases=tuple(only.phases) if only else phases,
        space=space or SearchSpace(),
        effort=effort,
        objective=objective,
        limits=limits or Limits(),
        device=device,
        seed=seed,
        tolerance=tolerance,
        calls_per_update=calls_per_update,
        pythons=environments(pythons),
        only=None if only is None else only.tried(),
    )
    folder, plan = _open(plan, run_dir, resume)
    total_s = budget_of(plan.effort) if budget_s is None else budget_s
    budget = Budget(total_s, trials, began, clock)
    runner = executor or LocalExecutor(isolation=isolation, jobs=jobs)
    alone = memory_limit_bytes or most_memory_bytes()
    job_factory = JobFactory(
        folder, Header(**plan.requested()), timeout_s, alone, alone, dict(plan.pythons)
    )
    interrupted = False
    with _gone_if_never_begun(folder), locked(folder), contextlib.ExitStack() as stack:
        stack.callback(show.close)
        stack.callback(runner.close)
        for _, python in plan.pythons:
            demand_torch(python, timeout_s)
        found = probe(plan, job_factory, runner, show)
        if alone and not memory_limit_bytes:  # the probe may have lowered the number of slots
            job_factory.memory_limit_bytes = alone // runner.slots
        # Default phases depend on a timing; other interpreters and a resumed run must use the same.
        plan = dataclasses.replace(plan, phases=tuple(found["target"]["phases"]))
        every = {"default": found}
        for name, _ in plan.pythons:
            every[name] = probe(plan, job_factory, runner, show, name)
        run = _described(folder, plan, every)
        show.header({"spec": plan.target, **run["target"]}, run["environment"], str(folder.path))
        spaces = spaces_of(plan, every)
        study = _study(spaces, sampler, plan, job_factory, runner, show, budget, run, storage)
        show.searching({name: one.summary() for name, one in spaces.items()}, budget)
        write_json(folder.run_json, run)  # from here on the run can be resumed and shown
        race = Race(study, plan.limits, first_sizes(spaces, run))
        try:
            while True:
                before = len(study.records)
                study.search(race.needed_s)
                race.run()
                if (
                    study.is_done
                    or len(study.records) == before
                    or budget.left_s < _WORTH_MORE * (total_s or 0.0)
                ):
                    break
            if only is None:
                run_exported(race, exported_code(folder, run, study.records, plan.limits))
        except (Interrupted, KeyboardInterrupt):
            interrupted = True
        if not interrupted and not race.is_open:  # otherwise a resumed race needs these caches
            job_factory.drop_cache()
    with without_interrupts():
        records, facts = folder.read()
        if told := notice(facts, run["environment"]):
            show.warning(told)
        run["spaces"] = {name: account(one, records) for name, one in spaces.items()}
        run["wall_s"] = run.get("wall_s", 0.0) + budget.spent_s
        run["interrupted"] = interrupted
        write_json(folder.run_json, run)
        return write_result(folder, run, records, plan.limits)


def load(run: str | Path = "last") -> Result:
    """The result of an earlier run, given by its folder, the folder's name, or ``last``.

    Raises:
        RunError: no such run, or it needs a newer version.
    """
    folder = runs.find(run)
    data = folder.read_run()
    data["running"] = is_held(folder)
    records, facts = folder.read()
    if asked := unknown_keys(data["plan"]):
        facts.append(f"this version does not know these options: {', '.join(asked)}")
    told = notice(facts, data["environment"])
    return make_result(folder, data, records, limits_of(data["plan"]), told)


def _open(plan: Plan, run_dir: str | Path | None, resume: bool) -> tuple[RunFolder, Plan]:
    """The run's folder and plan; of a resumed run, the plan that it was started with."""
    if resume:
        folder = RunFolder(run_dir) if run_dir else runs.latest_of(plan.target)
        return folder, plan.resumes(Plan.from_dict(folder.read_run()["plan"]))
    folder = RunFolder(run_dir) if run_dir else runs.new_folder(plan.target)
    if folder.run_json.exists():
        with locked(folder):  # raises another error if the run is active
            pass
        raise RunError(f"{folder.path} already holds a run", hint="the same command with --resume")
    if folder.holds_something_else():
        raise RunError(
            f"the folder {folder.path} is not empty and holds no run",
            "a run writes and removes files in its folder, so the folder must be its own",
            hint="--run-dir with a new folder",
        )
    return folder, plan


@contextlib.contextmanager
def _gone_if_never_begun(folder: RunFolder) -> Iterator[None]:
    """Create the folder of a new run, and remove it if an error occurs before ``run.json`` exists.

    Keeps it if the error names a log in it, or if another tuner uses it.
    """
    try:
        if not folder.run_json.exists():
            folder.create()
        yield
    except BaseException as error:
        if f"log: {folder.path}" not in str(error):
            with contextlib.suppress(RunError), locked(folder):
                if not folder.run_json.exists():
                    folder.remove()
        raise


def _described(
    folder: RunFolder, plan: Plan, every: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """The content of ``run.json``; of a resumed run, the existing one.

    Raises:
        RunError: the machine, torch, python or the target's file has changed.
    """
    from autocompile import __version__

    found = every["default"]
    environment = {"autocompile": __version__, **found["environment"]}
    if folder.run_json.exists():
        run = folder.read_run()
        for name in ("torch", "device_name", "python"):
            if run["environment"][name] != environment[name]:
                raise RunError(
                    f"{folder.path} was made with another {name}",
                    f"{run['environment'][name]} then, {environment[name]} now",
                    hint="the same command without --resume",
                )
        for name, seen in run.get("environments", {}).items():
            if name in every and seen["torch"] != every[name]["environment"]["torch"]:
                now = every[name]["environment"]["torch"]
                raise RunError(
                    f"{folder.path} was made with another torch in the environment {name}",
                    f"{seen['torch']} then, {now} now",
                    hint="the same command without --resume",
                )
        if run["target"].get("sha256") != found["target"].get("sha256"):
            raise RunError(
                f"{plan.target} has changed since {folder.path} was made",
                "its finished trials measured another model",
                hint="the same command without --resume",
            )
        return run
    return {
        "schema": SCHEMA,
        "id": secrets.token_hex(4),
        "plan": plan.to_dict(),
        "environment": environment,
        "environments": {
            name: {"python_path": dict(plan.pythons)[name], **seen["environment"]}
            for name, seen in every.items()
            if name != "default"
        },
        "target": found["target"],
        "phases": found["target"]["phases"],
        "toolchain_s": found.get("toolchain_s"),
        "interrupted": True,  # until it has finished
    }


def _study(
    spaces: Mapping[str, Space],
    sampler: str,
    plan: Plan,
    job_factory: JobFactory,
    executor: Executor,
    show: Progress,
    budget: Budget,
    run: Mapping[str, Any],
    storage: str | None,
) -> Study:
    target, device = run["target"], run["environment"]["device"].split(":")[0]
    priors = {
        phase: prior_of(device, phase, target.get("has_convolutions", False)) for phase in spaces
    }
    settings = [setting for space in spaces.values() for setting in space.settings]
    name = "autocompile"
    return Study(
        spaces=spaces,
        sampler=make_sampler(sampler, settings, priors, first_sizes(spaces, run), plan.seed),
        job_factory=job_factory,
        executor=executor,
        observer=show,
        budget=budget,
        database=storage or job_factory.folder.study_db,
        # The user's database may hold many runs, also of folders with the same name.
        study_name=name
        if storage is None
        else f"{job_factory.folder.path.name}-{run.get('id', '')}/{name}",
        is_exhaustive=budget.total_s is None,
        calls_per_update=lambda phase, size: calls_between_updates(phase, run, size),
        records=list(job_factory.folder.records()),
    )
