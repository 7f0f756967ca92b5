"""tune() and load(): the public functions, which wire the objects together."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from optuna.samplers import BaseSampler

from autocompile.errors import UsageError
from autocompile.estimate.candidates import Limits
from autocompile.execute.exclusive import held
from autocompile.execute.executor import Executor
from autocompile.execute.job import JobFactory, is_held
from autocompile.execute.local import LocalExecutor
from autocompile.execute.memory import busy_cores, busy_gpu, most_memory_bytes
from autocompile.execute.starter import Isolation
from autocompile.export.check import exported_code
from autocompile.progress import Progress
from autocompile.report.live import progress as progress_of
from autocompile.result import (
    Result,
    demand_some,
    make_result,
    write_result,
)
from autocompile.search.deadlines import Deadlines
from autocompile.search.effects import prior_of
from autocompile.search.jobs import Interrupts
from autocompile.search.opening import (
    demand_sense,
    described,
    opened,
    probe_all,
    resolved,
)
from autocompile.search.race import Race
from autocompile.search.sampler import make_sampler
from autocompile.search.study import Study, plain_runs_alone
from autocompile.settings.tuned import Tuned
from autocompile.space.space import (
    EFFORTS,
    SearchSpace,
    asked_for,
    calls_between_updates,
    demand_calls_differ,
    environments,
    first_sizes,
    passes_of,
    spaces_of,
)
from autocompile.store import runs, targets
from autocompile.store.calls import read_calls
from autocompile.store.files import write_json
from autocompile.store.targets import target_spec

__all__ = ["load", "tune"]

_BUSY = (
    0.2  # cores or shares of a GPU that others use: below this there is nothing to tell
)


def tune(
    target: Any,
    inputs: Any = None,
    *,
    optimizer: Callable[[Any], Any] | None = None,
    loss: Callable[[Any, Any], Any] | None = None,
    phases: tuple[str, ...] | None = None,
    space: SearchSpace | None = None,
    effort: str | None = None,
    trials: int | None = None,
    budget_s: float | None = None,
    sampler: str | BaseSampler = "portfolio",
    timeout_s: float = 300.0,
    memory_limit_bytes: int | None = None,
    objective: str | None = None,
    limits: Limits | None = None,
    device: str | None = None,
    jobs: int | None = None,
    isolation: Isolation = "auto",
    executor: Executor | None = None,
    run_dir: str | Path | None = None,
    resume: bool = False,
    wait: bool = False,
    seed: int | None = None,
    tolerance: float | None = None,
    calls_per_update: int | None = None,
    horizon: int | None = None,
    calls: str | Path | None = None,
    pythons: tuple[str, ...] = (),
    only: Tuned | None = None,
    progress: Progress | str = "auto",
    clock: Callable[[], float] = time.monotonic,
    began: float | None = None,
    command: Mapping[str, Any] | None = None,
    waited: Callable[[float], None] = lambda seconds: None,
) -> Result:
    """Find the fastest settings with correct results for a target on this machine.

    An argument that is not listed is the option of ``autocompile tune`` that has its name.

    Args:
        target: a path, ``PATH:NAME``, ``package.module:NAME``, ``timm:NAME`` and the like, or an
            importable function or class; it is loaded in trial processes only. With ``inputs`` a
            live ``nn.Module``, or a function that returns one: it is written to ``runs/carried``,
            not changed.
        inputs: of a live model: a tensor, a tuple or list for ``model(*x)``, a dict for
            ``model(**x)``, or a function from a batch size to one of these.
        optimizer: of a live model: from a module to its optimizer; None: Adam.
        loss: of a live model: from an output and the inputs to a scalar; None: the sum of outputs.
        phases: what to time; None: the target's default phases.
        effort: ``quick`` (90 s), ``normal`` (5 min, the default) or ``full`` (every setting).
        budget_s: seconds of the whole run, including the report; None: set by ``effort``.
        sampler: ``portfolio``, Optuna's ``tpe`` or ``random``, or any sampler of Optuna's kind.
        timeout_s: limit for each step of a trial.
        objective: ``throughput`` (the default) or ``latency``.
        isolation: ``fork`` forks trials from a warm process, ``spawn`` starts an interpreter for
            each, ``auto`` forks where that is safe.
        executor: runs the trials; None: processes on this machine.
        run_dir: the run's folder; None: a new one under ``./runs``.
        resume: continue ``run_dir``, or the last run of this target, with what it was begun with.
        calls_per_update: calls of a forward phase between two changes of the weights, which
            decides whether constant weights pay; None: from the target.
        horizon: calls that a program makes: compile time then counts; None: so many that it does
            not.
        calls: a file that :func:`autocompile.record` has written; None: the target says what it is
            called with.
        pythons: interpreters of other environments to try too, as ``PATH`` or ``NAME=PATH``.
        only: tries only these settings, eager mode and plain ``torch.compile()``, by what decided
            when they were found.
        progress: ``auto`` (on stderr: live on a terminal, a line per trial elsewhere), ``plain``,
            ``none``, or an object of yours that is told of each event.
        clock: returns seconds, for the budget.
        began: when the budget began, by ``clock``; None: now.
        waited: is told for how many seconds ``wait`` has waited.
        command: more options, of the command that this is of, for those that reports name.

    Returns:
        The result; ``interrupted`` is set if Ctrl-C ended the run early.

    Raises:
        UsageError, TargetError: the request or the target is invalid, or cannot be pickled.
        RunError: the run's folder cannot be used, or another autocompile is at work here.
        NothingWorked: no setting and no eager run worked; with ``only`` the verdict says so.
    """
    began = clock() if began is None else began
    options = {
        "budget_s": budget_s,
        "trials": trials,
        **({"sampler": sampler} if isinstance(sampler, str) else {}),
        "timeout_s": timeout_s,
        "memory_limit_bytes": memory_limit_bytes,
        "jobs": jobs,
        "isolation": isolation,
    }
    demand_sense(options)
    if isinstance(progress, str):
        progress = progress_of(progress, sys.stderr)
    if only and (phases or space):
        raise UsageError("only says what is tried", hint="leave phases and space out")
    recorded = None if calls is None else read_calls(Path(calls))
    if only:
        recorded, horizon = recorded or only.calls, horizon or only.horizon
    asked = asked_for(
        target=_spec(target, inputs, optimizer, loss),
        phases=tuple(only.phases) if only else phases,
        space=space,
        effort=effort,
        objective=objective,
        limits=limits,
        device=device,
        seed=seed,
        tolerance=tolerance,
        calls_per_update=calls_per_update,
        horizon=horizon,
        calls=recorded,
        pythons=environments(pythons, only),
        only=None if only is None else only.tried(),
    )
    folder, plan = resolved(asked, run_dir, resume)
    total_s = EFFORTS[plan.effort] if budget_s is None else budget_s
    is_local = executor is None  # where others share the machine with it
    with contextlib.ExitStack() as stack:
        stack.enter_context(opened(folder))
        stack.enter_context(contextlib.closing(progress))
        if is_local:
            doing = f"run {folder.path.absolute()}"
            waited_s = stack.enter_context(held(doing, progress.warning, wait))
            began += waited_s  # the budget is of the time in which it could work
            waited(waited_s)
        # By what is free now: while it waited, the other command had some of it.
        library, *_ = targets.library_model(plan.target) or ("",)
        executor = executor or LocalExecutor(
            isolation=isolation, jobs=jobs, share=library
        )
        stack.enter_context(contextlib.closing(executor))
        # Stations know their own memory.
        memory = memory_limit_bytes or (most_memory_bytes() if is_local else 0) or None
        factory = JobFactory(
            folder, plan.header, timeout_s, memory, memory, dict(plan.pythons)
        )
        busy, on_gpu = (busy_cores(), busy_gpu()) if is_local else (0.0, 0.0)
        deadlines = Deadlines(total_s, began, clock)
        plan, probes = probe_all(plan, factory, executor, progress, deadlines)
        demand_calls_differ(plan, probes["default"].target)
        if (
            memory and not memory_limit_bytes
        ):  # the probe may have lowered the number of slots
            factory.memory_limit_bytes = memory // executor.slots
        run = described(folder, plan, probes)
        run["environment"] = environment = {**run["environment"]}
        if (busy := max(busy, environment.get("busy_cores", 0.0))) >= _BUSY:
            environment["busy_cores"] = busy
        if on_gpu >= _BUSY and environment.get("device", "").startswith("cuda"):
            environment["busy_gpu"] = on_gpu
        run["options"] = {**options, **(command or {})}
        target_fields = {"spec": plan.target, **run["target"]}
        progress.header(target_fields, run["environment"], str(folder.path))
        spaces = spaces_of(plan, probes)
        sizes = first_sizes(spaces, run)
        kind = run["environment"]["device"].split(":")[0]
        has_convolutions = run["target"].get("has_convolutions", False)
        priors = {p: prior_of(kind, p, has_convolutions) for p in spaces}
        settings = [setting for space in spaces.values() for setting in space.settings]
        memory_bytes = run["environment"].get("device_memory_bytes")
        plain_alone = plain_runs_alone(deadlines, memory_bytes, executor.slots)
        run["batch_sizes"] = sizes
        interrupts = Interrupts()
        study = Study(
            sampler=make_sampler(
                sampler, settings, priors, sizes, plan.seed, plain_alone
            ),
            job_factory=factory,
            executor=executor,
            progress=progress,
            deadlines=deadlines,
            trials=trials,
            calls_per_update=lambda phase, size: calls_between_updates(
                phase, run, size
            ),
            passes=lambda phase: passes_of(phase, run),
            records=folder.read()[0],
            compile_is_limited=plan.limits.compile_s is not None,
            memory_bytes=memory_bytes,
            interrupts=interrupts,
        )
        progress.searching(
            {n: f"{len(s.settings)} settings" for n, s in spaces.items()}, deadlines
        )
        write_json(
            folder.run_json, run
        )  # from here on the run can be resumed and shown
        race = Race(study, plan.limits, sizes)
        # From here on Ctrl-C ends what runs, and never what is written about it.
        stack.enter_context(interrupts)
        try:
            has_more = True
            while has_more and not interrupts.seen:  # as long as something is done
                before = len(study.records)
                study.search(race.needed_s)
                race.run()
                has_more = len(study.records) > before
            if only is None and not interrupts.seen:
                race.run_exported(exported_code(run, race.answers()))
        except KeyboardInterrupt:  # it does not wait for what still runs
            interrupts.note()
        run["interrupted"] = interrupts.seen
        rest, unseen = ({}, {}) if only else (study.rest(), study.unseen())
        is_over = rest is not None and not rest and not race.is_open
        if is_over and not run["interrupted"]:
            factory.drop_cache()  # a resumed run has no need of it
        records, facts = folder.read()
        if facts:
            progress.warning("; ".join(facts))
        run["spaces"] = {
            name: {
                **one.account(records),
                "rest": None if rest is None else rest.get(name, []),
                "unseen": unseen.get(name, []),
            }
            for name, one in spaces.items()
        }
        run["wall_s"] = run.get("wall_s", 0.0) + deadlines.spent_s
        write_json(folder.run_json, run)
        result = write_result(folder, run, records, plan.limits)
    if only is None:
        demand_some(result, run)
    return result


def _spec(target: Any, inputs: Any, optimizer: Any, loss: Any) -> str:
    """The target as trials load it; a live model is written to a file first."""
    if inputs is not None:
        if isinstance(target, (str, Path)):
            raise UsageError(
                "inputs are about a live model",
                "a file has get_inputs(batch_size) of its own",
            )
        from autocompile.runtime.carried import carry

        target = carry(
            target, inputs, runs.under / "carried", optimizer=optimizer, loss=loss
        )
    elif optimizer or loss:
        raise UsageError(
            "optimizer and loss are about a live model", "a file defines its own"
        )
    return target_spec(target)


def load(run: str | Path = "last") -> Result:
    """The result of an earlier run, given by its folder, the folder's name, or ``last``.

    Raises:
        RunError: no such run, or it needs a newer version.
    """
    folder = runs.find(run)
    data = folder.read_run()
    data["running"] = is_held(folder)
    records, facts = folder.read()
    limits = Limits(**data["plan"]["limits"])
    return make_result(folder, data, records, limits, "; ".join(facts))
