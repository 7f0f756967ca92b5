"""tune() and load(): the public functions, which wire the objects together."""

from __future__ import annotations

import contextlib
import inspect
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from autocompile.errors import UsageError
from autocompile.execute.exclusive import held
from autocompile.execute.executor import Executor
from autocompile.execute.job import JobFactory, is_held
from autocompile.execute.local import LocalExecutor
from autocompile.execute.memory import busy_cores, busy_gpu, most_memory_bytes
from autocompile.export.check import exported_code
from autocompile.progress import Progress
from autocompile.protocol.requests import Header, ProbeResult
from autocompile.report.build import build_report
from autocompile.report.live import progress as progress_of
from autocompile.request import Request, demand_options
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
    demand_same_machine,
    described,
    opened,
    probe_all,
    resolved,
)
from autocompile.search.race import Race
from autocompile.search.sampler import AT_LEAST, make_sampler
from autocompile.search.study import Study, plain_runs_alone
from autocompile.space.space import (
    Space,
    calls_between_updates,
    demand_calls_differ,
    first_sizes,
    passes_of,
    spaces_of,
)
from autocompile.store import runs
from autocompile.store.record import Checks, Record, RunFolder
from autocompile.store.run import Run, Searched
from autocompile.store.targets import library_model, target_spec

__all__ = ["load", "tune"]

# Cores, or a share of a GPU, that others use: below this there is nothing to tell.
_BUSY = 0.2
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Call(Request):
    """What :func:`tune` is called with: a request, and what stands for a file."""

    target: Any
    inputs: Any = None
    _: KW_ONLY
    optimizer: Callable[[Any], Any] | None = None
    loss: Callable[[Any, Any], Any] | None = None
    progress: Progress | str = "auto"


def _signed_by(
    call: Callable[P, object],
) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Give a function the signature of a dataclass, and say in its docstring what options do."""

    def decorate(function: Callable[..., R]) -> Callable[P, R]:
        options = {f.name: f for f in fields(Request) if "option" in f.metadata}
        hidden = {"asked"} | {
            name
            for name, each in options.items()
            if not each.metadata["option"].panel
            or each.metadata["option"].is_typed_only
        }
        every = inspect.signature(call).parameters.values()
        shown = [p for p in every if p.name not in hidden]
        changed: Any = function
        changed.__signature__ = inspect.Signature(shown, return_annotation="Result")
        lines = [
            f"        {p.name}: {_about(options[p.name])}"
            for p in shown
            if p.name in options
        ]
        changed.__doc__ = (function.__doc__ or "").replace(
            "        OPTIONS", "\n".join(lines)
        )
        return changed  # type: ignore[no-any-return]

    return decorate


def _about(option: Field[Any]) -> str:
    """What an option does, for Python: of a group, which values it has."""
    group = option.default_factory
    if isinstance(group, type) and is_dataclass(group):
        return f"a {group.__name__} of {', '.join(f.name for f in fields(group))}."
    return f"{option.metadata['option'].help}."


@_signed_by(Call)
def tune(target: Any, inputs: Any = None, **options: Any) -> Result:
    """Find the fastest settings with correct results for a target on this machine.

    Args:
        target: a path, ``PATH:NAME``, ``package.module:NAME``, ``timm:NAME`` and the like, or an
            importable function or class; it is loaded in trial processes only. With ``inputs`` a
            live ``nn.Module``, or a function that returns one: it is written to ``runs/carried``,
            not changed.
        inputs: of a live model: a tensor, a tuple or list for ``model(*x)``, a dict for
            ``model(**x)``, or a function from a batch size to one of these.
        optimizer: of a live model: from a module to its optimizer; None: Adam.
        loss: of a live model: from an output and the inputs to a scalar; None: the sum of outputs.
        progress: ``auto`` (on stderr: live on a terminal, a line per trial elsewhere), ``plain``,
            ``none``, or an object of yours that is told of each event.
        OPTIONS

    They are the options of ``autocompile tune``. Times are in seconds and sizes in bytes;
    ``sampler`` may also be any sampler of Optuna's kind.

    Returns:
        The result; ``interrupted`` is set if Ctrl-C ended the run early.

    Raises:
        UsageError, TargetError: the request or the target is invalid, or cannot be pickled.
        RunError: the run's folder cannot be used, or another autocompile is at work here.
        NothingWorked: no setting and no eager run worked.
    """
    progress = options.pop("progress", "auto")
    live = {name: options.pop(name, None) for name in ("optimizer", "loss")}
    demand_options(Call, options)
    spec = _spec(target, inputs, **live)
    request = Request.of(spec, options)
    if request.ray is not None or request.accelerators:
        raise UsageError(
            "tune() uses this machine, and ray and accelerators are about others",
            hint=f"autocompile tune {spec} --ray {request.ray or 'auto'}",
        )
    return tune_with(request, Parts(progress=progress))


@dataclass(frozen=True)
class Parts:
    """What a run is made with, beside its request: tests, clusters and suites bring their own.

    Attributes:
        executor: runs the trials; None: processes on this machine.
        progress: is told of each event; or ``auto``, ``plain`` or ``none``.
        clock: returns seconds, for the budget.
        began: when the budget began, by ``clock``; None: now.
        waited: is told for how many seconds ``wait`` has waited.
        spaces: the settings of each phase; None: what the probe of the machine gives.
        machine: the environment of an earlier run that this one is to stand beside; it
            ends with an error elsewhere.
    """

    executor: Executor | None = None
    progress: Progress | str = "auto"
    clock: Callable[[], float] = time.monotonic
    began: float | None = None
    waited: Callable[[float], None] = lambda seconds: None
    machine: Mapping[str, Any] | None = None
    spaces: Mapping[str, Space] | None = None


def tune_with(request: Request, parts: Parts = Parts()) -> Result:
    """Tune as :func:`tune` does, with parts of one's own; a request of one's own too."""
    folder, request = resolved(request)
    with _at_work(request, parts, folder) as bench:
        request, probes = bench.probe(request, parts.machine)
        run = _described(folder, request, probes, bench)
        spaces = parts.spaces
        if spaces is None:
            spaces = spaces_of(request, probes)
        # Settled once: what the search goes for first is what the answer is about.
        settled = first_sizes(spaces, request, run.target)
        sizes = run.batch_sizes = {**settled, **run.batch_sizes}
        study = _study(request, run, spaces, sizes, bench)
        counts = {n: f"{len(s.settings)} settings" for n, s in spaces.items()}
        bench.progress.searching(counts, bench.deadlines)
        # From here on it can be resumed and shown. Whoever reads it before its end, or after
        # it was killed, sees that it has not ended and that the rest is not known.
        run.interrupted, run.spent_trials = True, 0
        run.spaces = _searched(spaces, study.records, None, {})
        run.write(folder)
        race, interrupts = Race(study, request.limits, sizes), study.interrupts
        # From here on Ctrl-C ends what runs, and never what is written about it.
        with interrupts:
            try:
                has_more = True
                while has_more and not interrupts.seen:  # as long as something is done
                    before = len(study.records)
                    study.search(race.needed_s)
                    race.run()
                    has_more = len(study.records) > before
                if request.only is None and not interrupts.seen:
                    race.run_exported(
                        exported_code(
                            build_report(run, study.records, str(folder.path))
                        )
                    )
            except KeyboardInterrupt:  # it does not wait for what still runs
                interrupts.note()
            result = _concluded(folder, run, request, spaces, study, race, bench)
    if request.only is None:
        demand_some(result, run)
    return result


def _concluded(
    folder: RunFolder,
    run: Run,
    request: Request,
    spaces: Mapping[str, Space],
    study: Study,
    race: Race,
    bench: _Bench,
) -> Result:
    """Write what was found into ``run.json`` and the report."""
    run.interrupted = study.interrupts.seen
    rest, unseen = study.rest(), study.unseen()
    if request.only is not None:  # nothing else was to be tried
        rest, unseen = {}, {}
    is_over = rest is not None and not rest and not race.is_open
    if is_over and not run.interrupted:
        bench.factory.drop_cache()  # a resumed run has no need of it
    else:
        bench.factory.keep_caches(race.finalists)
    records, facts = folder.read()
    if facts:
        bench.progress.warning("; ".join(facts))
    run.spaces = _searched(spaces, records, rest, unseen)
    run.wall_s += bench.deadlines.spent_s
    run.spent_trials = study.spent_trials
    run.write(folder)
    return write_result(folder, run, records)


def _searched(
    spaces: Mapping[str, Space],
    records: Sequence[Record],
    rest: Mapping[str, Sequence[Mapping[str, Any]]] | None,
    unseen: Mapping[str, Sequence[str]],
) -> dict[str, Searched]:
    """What the search says of each phase's settings; ``rest``: None where it is not known."""
    found = {}
    for phase, space in spaces.items():
        here = None if rest is None else rest.get(phase, ())
        found[phase] = space.searched(records, here, unseen.get(phase, ()))
    return found


@dataclass(frozen=True)
class _Bench:
    """What a run is worked on with."""

    executor: Executor
    factory: JobFactory
    progress: Progress
    deadlines: Deadlines
    memory_bytes: int | None  # that trials may use together; None: not limited here
    # Cores, and a share of the GPU, that others used before the run began.
    busy: float
    busy_gpu: float

    def probe(
        self, request: Request, machine: Mapping[str, Any] | None
    ) -> tuple[Request, Mapping[str, ProbeResult]]:
        """The request with the phases that were found, and what each interpreter found."""
        parts = self.factory, self.executor, self.progress, self.deadlines
        request, probes = probe_all(request, *parts)
        found = probes["default"]
        if machine:
            demand_same_machine("the suite", machine, found.environment, "a new suite")
        demand_calls_differ(request, found.target)
        # The probe may have lowered the number of slots.
        if self.memory_bytes and not request.memory_limit_bytes:
            share = self.memory_bytes // self.executor.slots
            self.factory.memory_limit_bytes = share
        return request, probes


@contextlib.contextmanager
def _at_work(request: Request, parts: Parts, folder: RunFolder) -> Iterator[_Bench]:
    """Hold the run's folder, and the machine, until the run has ended."""
    progress = parts.progress
    if isinstance(progress, str):
        progress = progress_of(progress, sys.stderr)
    began = parts.clock() if parts.began is None else parts.began
    is_local = parts.executor is None  # others share the machine with it
    with contextlib.ExitStack() as stack:
        stack.enter_context(opened(folder))
        stack.enter_context(contextlib.closing(progress))
        if is_local:
            doing = f"run {folder.path.absolute()}"
            waited_s = stack.enter_context(held(doing, progress.warning, request.wait))
            began += waited_s  # the budget is of the time in which it could work
            parts.waited(waited_s)
        # After the wait: what is free now counts, and the other command had some of it.
        library, *_ = library_model(request.target) or ("",)
        executor = parts.executor or LocalExecutor(
            isolation=request.isolation,
            # The ranks of one trial take all devices.
            jobs=1 if request.ranks > 1 else request.jobs,
            share=library,
        )
        stack.enter_context(contextlib.closing(executor))
        # Stations know their own memory, and have been sent the limit.
        asked_bytes = None if request.ray else request.memory_limit_bytes
        memory = asked_bytes or (most_memory_bytes() if is_local else 0) or None
        header, others = Header.of(request), request.environments
        factory = JobFactory(folder, header, request.timeout_s, memory, memory, others)
        busy, on_gpu = (busy_cores(), busy_gpu()) if is_local else (0.0, 0.0)
        deadlines = Deadlines(request.total_s, began, parts.clock)
        yield _Bench(executor, factory, progress, deadlines, memory, busy, on_gpu)


def _described(
    folder: RunFolder,
    request: Request,
    probes: Mapping[str, ProbeResult],
    bench: _Bench,
) -> Run:
    """What ``run.json`` is to hold, with how busy the machine is now."""
    run = described(folder, request, probes)
    run.environment = environment = {**run.environment}
    busy = max(bench.busy, environment.get("busy_cores", 0.0))
    if busy >= _BUSY:
        environment["busy_cores"] = busy
    if bench.busy_gpu >= _BUSY and environment.get("device", "").startswith("cuda"):
        environment["busy_gpu"] = bench.busy_gpu
    run.request = request  # of the last time that it goes on
    target = {"spec": request.target, **run.target}
    bench.progress.header(target, environment, str(folder.path))
    return run


def _study(
    request: Request,
    run: Run,
    spaces: Mapping[str, Space],
    sizes: Mapping[str, int | None],
    bench: _Bench,
) -> Study:
    """The search through the settings of all phases."""
    environment, target = run.environment, run.target
    device = environment["device"].split(":")[0]
    has_convolutions = target.get("has_convolutions", False)
    operators = target.get("operators", {})
    priors = {
        p: prior_of(device, p, has_convolutions, operators.get(p)) for p in spaces
    }
    settings = [setting for space in spaces.values() for setting in space.settings]
    memory_bytes = environment.get("device_memory_bytes")
    alone = plain_runs_alone(memory_bytes, bench.executor.slots)
    return Study(
        sampler=make_sampler(
            request.sampler,
            settings,
            priors,
            sizes,
            request.seed,
            alone,
            max(AT_LEAST, request.compared),
        ),
        job_factory=bench.factory,
        executor=bench.executor,
        progress=bench.progress,
        deadlines=bench.deadlines,
        # Of settings that are given, each is to be told whether it is right.
        checks=Checks.FIRST if request.only is None else Checks.ALL,
        trials=request.trials,
        compared=request.compared,
        parameters=target.get("parameters") or 0,
        calls_per_update=lambda phase, size: calls_between_updates(
            phase, request, target, size
        ),
        passes=lambda phase: passes_of(phase, request, target),
        records=bench.factory.folder.read()[0],
        compile_is_limited=request.limits.compile_s is not None,
        memory_bytes=memory_bytes,
        interrupts=Interrupts(),
    )


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
    found = Run.read(folder)
    found.running = is_held(folder)
    records, facts = folder.read()
    return make_result(folder, found, records, "; ".join(facts))
