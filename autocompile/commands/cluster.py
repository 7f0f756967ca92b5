"""tune on a Ray cluster: a run for each accelerator type, each on stations of its own."""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from autocompile import api
from autocompile.cluster.beside import share_hosts
from autocompile.cluster.executor import ClusterExecutor
from autocompile.cluster.links import Cluster, connected
from autocompile.cluster.places import CPU, Place, places_of, side_by_side
from autocompile.cluster.shipping import shipment_of
from autocompile.errors import UsageError
from autocompile.execute.local import Isolation
from autocompile.progress import Progress
from autocompile.report.live import PlainProgress, progress
from autocompile.report.table import write_table
from autocompile.result import Result
from autocompile.space.plan import target_spec
from autocompile.store import runs

__all__ = ["OnCluster", "tune_all"]


@dataclass(frozen=True)
class OnCluster:
    """What became of each accelerator type: a result, or what went wrong."""

    folder: Path
    results: Mapping[str, Result]
    errors: Mapping[str, BaseException]

    @property
    def runs(self) -> dict[str, Path]:
        """The run's folder of each type that has a result."""
        return {kind: self.folder / kind for kind in self.results}

    @property
    def interrupted(self) -> bool:
        stopped = any(isinstance(error, KeyboardInterrupt) for error in self.errors.values())
        return stopped or any(result.interrupted for result in self.results.values())


def tune_all(
    target: Any,
    *,
    ray: str = "auto",
    accelerators: Sequence[str] | None = None,
    run_dir: str | Path | None = None,
    resume: bool = False,
    device: str | None = None,
    jobs: int | None = None,
    isolation: Isolation = "auto",
    memory_limit_bytes: int | None = None,
    show: str = "auto",
    **options: Any,
) -> OnCluster:
    """Tune a target on a Ray cluster: a whole run for each accelerator type, and a table of all.

    Types on different machines are tuned at once, others one after another. Ctrl-C ends them all,
    and what is known is reported.

    Args:
        target: as :func:`autocompile.tune` takes it; not a live model.
        ray: the cluster's address; ``auto``: the one that this machine is part of.
        accelerators: types as Ray names them, and ``cpu``; None: all that the cluster has.
        run_dir: holds a run's folder for each type; None: a new one under ``./runs``.
        resume: go on with ``run_dir``, or the last such folder of this target.
        device: None: ``cpu`` for the type ``cpu``, else a GPU.
        jobs: trials that compile in parallel on a station; None: one for each of its CPUs,
            as far as memory allows, at most 16.
        isolation, memory_limit_bytes: as in :func:`autocompile.tune`, on each station.
        show: progress: ``auto``, ``plain`` or ``none``.
        options: others of :func:`autocompile.tune`.

    Raises:
        UsageError, TargetError: the request, the cluster or the target is invalid.
        RunError: there is nothing to resume.
    """
    if options.get("pythons"):
        raise UsageError(
            "--python names interpreters of this machine, not of a cluster's",
            hint="the same command without --python, or without --ray",
        )
    spec = target_spec(target)
    shipment = shipment_of(spec)
    limits = {"isolation": isolation, "memory_limit_bytes": memory_limit_bytes}
    message = {
        "files": shipment.files,
        "place": shipment.place,
        **limits,
        **({"jobs": jobs} if jobs else {}),
    }
    with connected(ray) as cluster:
        places = places_of(cluster.nodes(), accelerators)
        folder = _folder(spec, run_dir, resume)
        work = {
            kind: _Run(
                functools.partial(_executor, cluster, its, message, device),
                {
                    **options,
                    "run_dir": folder / kind,
                    "resume": resume and (folder / kind / "run.json").exists(),
                    "device": device or ("cpu" if kind == CPU else None),
                    "target": shipment.target,
                    "command": {"ray": ray, "jobs": jobs, **limits},
                    "progress": _progress(show, kind if len(places) > 1 else None),
                },
            )
            for kind, its in places.items()
        }
        for kinds in side_by_side(places):
            at_once = [work[kind] for kind in kinds]
            _run_all(at_once)
            if any(run.is_interrupted for run in at_once):
                break
    return _concluded(folder, work)


def _concluded(folder: Path, work: Mapping[str, _Run]) -> OnCluster:
    """What became of all, with a table of those that have a result."""
    results = {kind: run.result for kind, run in work.items() if run.result is not None}
    errors = {kind: run.error for kind, run in work.items() if run.error is not None}
    found = OnCluster(folder, results, errors)
    if results:
        write_table(folder, found.runs)
    with contextlib.suppress(OSError):
        folder.rmdir()  # nothing has begun
    return found


def _folder(spec: str, run_dir: str | Path | None, resume: bool) -> Path:
    if run_dir is not None:
        return Path(run_dir)
    return runs.latest_on_cluster(spec) if resume else runs.new_folder(spec).path


def _executor(
    cluster: Cluster, places: Sequence[Place], message: Mapping[str, Any], device: str | None
) -> ClusterExecutor:
    """Stations at these places; GPUs of one host may measure at once where that shows nothing."""
    executor = ClusterExecutor(cluster.open(places, message), cluster.receive)
    try:
        if device != "cpu" and places[0].gpus:
            share_hosts(executor, cluster.allow)
    except BaseException:
        executor.close()
        raise
    return executor


class _Run:
    """The run of one type; afterwards it has a result or an error."""

    def __init__(self, make: Any, options: Mapping[str, Any]) -> None:
        self._make, self._options = make, options
        self._executor: ClusterExecutor | None = None
        self._is_stopped = False
        self.result: Result | None = None
        self.error: BaseException | None = None

    def work(self) -> None:
        try:
            if self._is_stopped:
                raise KeyboardInterrupt
            began = time.monotonic()  # its stations start within the budget
            with contextlib.closing(self._make()) as self._executor:
                if self._is_stopped:  # meanwhile
                    raise KeyboardInterrupt
                options = {"began": began, **self._options}
                self.result = api.tune(executor=self._executor, **options)
        except (Exception, KeyboardInterrupt) as error:  # the others go on
            self.error = error

    @property
    def is_interrupted(self) -> bool:
        was_told = self.result is not None and self.result.interrupted
        return self._is_stopped or was_told or isinstance(self.error, KeyboardInterrupt)

    def stop(self) -> None:
        """As Ctrl-C: the first reports what is known, the second does not."""
        self._is_stopped = True
        if self._executor is not None:
            self._executor.interrupt()


def _run_all(work: Sequence[_Run]) -> None:
    """Run all at once; the only one in this thread, where Ctrl-C reaches it as usual."""
    if len(work) == 1:
        work[0].work()
        return
    threads = [threading.Thread(target=run.work, daemon=True) for run in work]
    with _told_of_interrupts(work):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


@contextlib.contextmanager
def _told_of_interrupts(work: Sequence[_Run]) -> Iterator[None]:
    """Pass Ctrl-C on to runs that are in other threads."""

    def stop(*_: object) -> None:
        for run in work:
            run.stop()

    handlers: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
        handlers = {n: handler for n, handler in handlers.items() if callable(handler)}
    try:
        for number in handlers:
            signal.signal(number, stop)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _progress(kind: str, name: str | None) -> Progress:
    """Lines that begin with the type where there are several: two boards cannot share a screen."""
    if name is None or kind == "none":
        return progress(kind, sys.stderr)
    progress(kind, sys.stderr)  # refuses another kind
    return PlainProgress(_Prefixed(sys.stderr, f"{name:<6} "))  # type: ignore[arg-type]


@dataclass
class _Prefixed:
    """A file whose every write, a line, begins with a word."""

    file: TextIO
    prefix: str

    @property
    def encoding(self) -> str:
        return self.file.encoding

    def write(self, line: str) -> None:
        self.file.write(self.prefix + line)

    def flush(self) -> None:
        self.file.flush()
