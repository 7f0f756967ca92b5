"""tune on a Ray cluster: a run for each accelerator type, each on stations of its own."""

from __future__ import annotations

import base64
import contextlib
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autocompile import api
from autocompile.cluster.dispatch import ClusterExecutor, Interrupts
from autocompile.cluster.links import (
    CPU,
    Cluster,
    Place,
    connected,
    places_of,
    side_by_side,
)
from autocompile.progress import Progress
from autocompile.report.live import PlainProgress, progress
from autocompile.report.table import write_table
from autocompile.request import Request
from autocompile.result import Result
from autocompile.settings.option import Kept, kept_names
from autocompile.store import runs
from autocompile.store.sources import sources_of

Machines = Mapping[str, Mapping[str, Any]] | None


@dataclass(frozen=True)
class OnCluster:
    """What became of each accelerator type: a result, or what went wrong."""

    folder: Path
    results: Mapping[str, Result]
    errors: Mapping[str, BaseException]

    @property
    def interrupted(self) -> bool:
        stopped = any(
            isinstance(error, KeyboardInterrupt) for error in self.errors.values()
        )
        return stopped or any(result.interrupted for result in self.results.values())


def tune_all(
    request: Request,
    show: str = "auto",
    machines: Machines = None,
    began: float | None = None,
) -> OnCluster:
    """Tune a target on a Ray cluster: a whole run for each accelerator type, and a table of all.

    Types on different machines are tuned at once, others one after another. Ctrl-C ends them all,
    and what is known is reported. The folder of the request holds a run's folder for each type;
    its device is ``cpu`` for the type ``cpu`` and else a GPU, if it names none.

    Args:
        show: progress: ``auto``, ``plain`` or ``none``.
        machines: by type, the environment of earlier runs that these are to stand beside.
        began: when the budget of those that are tuned first began, by ``time.monotonic``;
            None: now. Others have a budget each, from their own beginning.
    """
    files, place, sent = shipment_of(request.target)
    limits = {n: getattr(request, n) for n in kept_names(Request, Kept.STATION)}
    message = {"files": files, "place": place, **limits}
    with connected(request.ray or "auto") as cluster:
        places = places_of(cluster.nodes(), request.accelerators)
        of_types = _Runs(
            request=request,
            target=sent,
            folder=_folder(request.target, request.run_dir, request.resume),
            cluster=cluster,
            places=places,
            message=message,
            show=show,
            machines=machines or {},
        )
        for kinds in side_by_side(places):
            # Stations start within the budget.
            since = time.monotonic() if began is None else began
            work = [functools.partial(of_types.tune, kind, since) for kind in kinds]
            _run_all(work, of_types.interrupts)
            began = None  # those after them have a budget of their own
            if of_types.interrupts.count:
                break
    outcome = OnCluster(of_types.folder, of_types.results, of_types.errors)
    if outcome.results:
        reports = {kind: result.report for kind, result in outcome.results.items()}
        write_table(outcome.folder, reports)
    with contextlib.suppress(OSError):
        outcome.folder.rmdir()  # nothing has begun
    return outcome


@dataclass(frozen=True, kw_only=True)
class _Runs:
    """The runs of a target, one for each accelerator type, and what became of them.

    Attributes:
        target: as stations are to name it.
        folder: holds the folder of each type.
        places: where stations may start, by type.
        message: what each station is told first.
        show: progress: ``auto``, ``plain`` or ``none``.
        machines: by type, the environment of an earlier run.
    """

    request: Request
    target: str
    folder: Path
    cluster: Cluster
    places: Mapping[str, list[Place]]
    message: Mapping[str, Any]
    show: str
    machines: Mapping[str, Mapping[str, Any]]
    interrupts: Interrupts = field(default_factory=Interrupts)
    results: dict[str, Result] = field(default_factory=dict)
    errors: dict[str, BaseException] = field(default_factory=dict)

    def tune(self, kind: str, since: float) -> None:
        """Make the run of a type, whose budget began at ``since``.

        What ends it early is noted, and the others go on.
        """
        try:
            links = self.cluster.open(self.places[kind], self.message)
            executor = ClusterExecutor(
                links, self.cluster.receive, interrupts=self.interrupts
            )
            with contextlib.closing(executor):
                parts = api.Parts(
                    executor,
                    _progress(self.show, kind if len(self.places) > 1 else ""),
                    began=since,
                    machine=self.machines.get(kind),
                )
                self.results[kind] = api.tune_with(self._request_of(kind), parts)
        except (Exception, KeyboardInterrupt) as error:
            self.errors[kind] = error

    def _request_of(self, kind: str) -> Request:
        """What is asked for of a type: a folder of its own, and its device."""
        folder = self.folder / kind
        # A type that joined the cluster since has nothing to resume.
        was_begun = (folder / "run.json").exists()
        usual_device = "cpu" if kind == CPU else None
        return replace(
            self.request,
            target=self.target,
            run_dir=folder,
            resume=self.request.resume and was_begun,
            device=self.request.device or usual_device,
        )


def _folder(spec: str, run_dir: str | Path | None, resume: bool) -> Path:
    if run_dir is not None:
        return Path(run_dir)
    return (
        runs.latest_of(spec, runs.ON_CLUSTER).parent
        if resume
        else runs.new_folder(spec).path
    )


def _run_all(work: Sequence[Callable[[], None]], interrupts: Interrupts) -> None:
    """Run all at once, each in a thread of its own; Ctrl-C comes to this one and is passed on.

    The first has each report what is known, the second ends it without.
    """

    def count(*_: object) -> None:
        interrupts.count += 1

    is_main = threading.current_thread() is threading.main_thread()
    handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    handlers = {
        n: handler for n, handler in handlers.items() if is_main and callable(handler)
    }
    threads = [threading.Thread(target=each, daemon=True) for each in work]
    try:
        for number in handlers:
            signal.signal(number, count)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _progress(show: str, kind: str) -> Progress:
    """Lines that begin with the type where there are several: two boards cannot share a screen."""
    usual = progress(show, sys.stderr)
    by_kind = PlainProgress(sys.stderr, prefix=f"{kind:<6} ")
    return by_kind if kind and show != "none" else usual


def shipment_of(spec: str) -> tuple[dict[str, str], str, str]:
    """The files of a target, as far as they are here: its own and what it imports from beside it.

    Returns them, base64 by their path under a folder of this machine, that folder, and the target
    as jobs are to name it. An installed module ships nothing.
    """
    here, sources = Path.cwd(), sources_of(spec)
    if sources is None:
        return {}, str(here), spec
    files = {
        path: base64.b64encode(data).decode() for path, data in sources.files.items()
    }
    is_inside = sources.place == here and not os.path.isabs(spec) and ".." not in spec
    return (
        files,
        str(sources.place),
        spec if is_inside else f"{sources.file}{sources.name}",
    )
