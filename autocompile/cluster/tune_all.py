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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autocompile import api
from autocompile.cluster.dispatch import ClusterExecutor, Interrupts
from autocompile.cluster.links import CPU, connected, places_of, side_by_side
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
    spec = request.target
    files, place, sent = shipment_of(spec)
    limits = {n: getattr(request, n) for n in kept_names(Request, Kept.STATION)}
    message = {"files": files, "place": place, **limits}
    with connected(request.ray or "auto") as cluster:
        places = places_of(cluster.nodes(), request.accelerators)
        folder = _folder(spec, request.run_dir, request.resume)
        interrupts = Interrupts()
        results: dict[str, Result] = {}
        errors: dict[str, BaseException] = {}

        def work(kind: str, since: float) -> None:
            try:
                links = cluster.open(places[kind], message)
                executor = ClusterExecutor(
                    links, cluster.receive, interrupts=interrupts
                )
                with contextlib.closing(executor):
                    there = (folder / kind / "run.json").exists()
                    one = replace(
                        request,
                        target=sent,
                        run_dir=folder / kind,
                        resume=request.resume and there,
                        device=request.device or ("cpu" if kind == CPU else None),
                    )
                    parts = api.Parts(
                        executor,
                        _progress(show, kind if len(places) > 1 else ""),
                        began=since,
                        machine=(machines or {}).get(kind),
                    )
                    results[kind] = api.tune_with(one, parts)
            except (Exception, KeyboardInterrupt) as error:  # the others go on
                errors[kind] = error

        for kinds in side_by_side(places):
            # Stations start within the budget.
            since = time.monotonic() if began is None else began
            every = [functools.partial(work, kind, since) for kind in kinds]
            _run_all(every, interrupts)
            began = None
            if interrupts.count:
                break
    outcome = OnCluster(folder, results, errors)
    if results:
        write_table(folder, {kind: result.report for kind, result in results.items()})
    with contextlib.suppress(OSError):
        folder.rmdir()  # nothing has begun
    return outcome


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
