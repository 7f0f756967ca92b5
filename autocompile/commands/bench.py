"""Single jobs in processes of their own, for commands that keep no run.

Three of them are here too: what machine this is, settings with their compiled code beside them
(``export --with-cache``), and what settings change in an RLlib algorithm (``--in-algorithm``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autocompile.errors import ExportError, TargetError, UsageError
from autocompile.estimate.intervals import Interval, median_interval, over_sets, speedup
from autocompile.execute.exclusive import held
from autocompile.execute.executor import Ending
from autocompile.execute.job import JobFactory
from autocompile.execute.local import LocalExecutor
from autocompile.progress import Progress
from autocompile.protocol.requests import (
    AlgorithmRequest,
    AlgorithmResult,
    Header,
    ProbeResult,
    SaveRequest,
    SaveResult,
)
from autocompile.protocol.requests import Request as AnyRequest
from autocompile.request import Request
from autocompile.search.jobs import run_job
from autocompile.search.opening import probe_all
from autocompile.settings.tuned import Tuned, TunedSet
from autocompile.store.record import Outcome, RunFolder

SAMPLE = "autocompile.trial.model.sample:get_model"
_FEW_ROUNDS = 6  # fewer have no 95 % interval


class Bench:
    """Runs jobs one after another in a temporary folder."""

    def __init__(self, request: Request, folder: Path, executor: LocalExecutor) -> None:
        run = RunFolder(folder)
        run.create()
        self.folder, self.log = folder, folder
        self._request, self._executor = request, executor
        header, others = Header.of(request), request.environments
        self._jobs = JobFactory(run, header, request.timeout_s, None, pythons=others)

    def run(self, kind: type[AnyRequest], fresh: bool = False, **asked: Any) -> Ending:
        """Run what a request asks for; ``fresh`` in an interpreter of its own."""
        number = self._jobs.next_number()
        job = self._jobs.job(
            kind(header=self._jobs.header, number=number, **asked), fresh=fresh
        )
        self.log = job.folder / "log.txt"
        return run_job(self._executor, job, Progress())

    def probed(self) -> Mapping[str, ProbeResult]:
        """What the probe of each environment found, the tuner's own first."""
        with log_shown():
            return probe_all(self._request, self._jobs, self._executor, Progress())[1]


@contextlib.contextmanager
def log_shown() -> Iterator[None]:
    """Show the end of the log that an error names, since its folder will be gone."""
    try:
        yield
    except UsageError as error:
        *details, last = error.details or ("",)
        if not last.startswith("log: "):
            raise
        raise TargetError(
            error.what, *details, *end_of(Path(last.removeprefix("log: ")))
        ) from None


def end_of(log: Path) -> list[str]:
    """The last lines of a log, enough for the end of a traceback."""
    return log.read_text("utf-8", "replace").strip().splitlines()[-12:]


@contextlib.contextmanager
def bench(request: Request, wait: bool = True) -> Iterator[Bench]:
    """A bench whose folder and processes are gone afterwards; waits until the machine is free."""
    with (
        held(
            f"trying {request.target}",
            lambda text: print(text, file=sys.stderr),
            wait=wait,
        ),
        tempfile.TemporaryDirectory(prefix="autocompile-") as scratch,
        contextlib.closing(LocalExecutor(isolation=request.isolation)) as executor,
    ):
        yield Bench(request, Path(scratch), executor)


def export_with_cache(settings: Tuned, path: Path, timeout_s: float) -> list[str]:
    """Compile settings once more in a process of their own, and keep what torch made.

    The code is beside the settings, as ``NAME.cache``. Returns lines that say what was written and
    what is not in it.
    """
    cache = path.with_suffix(".cache")
    device = settings.fingerprint.get("device")
    request = Request(
        settings.target,
        device=device,
        calls=Request.decided(settings.target, settings.decided_by).recorded,
        timeout_s=timeout_s,
        isolation="spawn",
    )
    with bench(request) as jobs:
        made = (jobs.folder / cache.name).absolute()
        ending = jobs.run(SaveRequest, settings=settings, file=str(made))
        if ending.outcome is not Outcome.OK:
            raise ExportError(
                f"the settings of {settings.target} cannot be compiled for a cache: "
                f"{ending.outcome.value}: {ending.message}",
                *end_of(jobs.log),
                hint="the same command without --with-cache",
            )
        saved = SaveResult.read(ending.payload)
        left_out = [f"not in the cache: {why}" for why in saved.left_out]
        try:
            if not made.exists():
                path.write_text(TunedSet((settings,)).to_json(), "utf-8")
                return [
                    f"wrote {path}, and no cache: there is nothing to keep",
                    *left_out,
                ]
            sha256 = hashlib.sha256(made.read_bytes()).hexdigest()
            shutil.move(made, cache)
            settings = dataclasses.replace(
                settings, cache={"file": cache.name, "sha256": sha256}
            )
            path.write_text(TunedSet((settings,)).to_json(), "utf-8")
        except OSError as error:
            raise UsageError(
                f"cannot write {error.filename}: {error.strerror}"
            ) from error
    size = f"{cache.stat().st_size / 2**20:.1f} MiB"
    return [f"wrote {path} and {cache} ({size}: {saved.graphs} graphs)", *left_out]


def compare_in_algorithm(request: Request, settings: TunedSet) -> dict[str, Any]:
    """Run the target's algorithm with and without settings, in turns, in a process of its own.

    The budget is of the whole comparison, building and compiling included; a step that
    hangs is ended a timeout later.
    """
    budget_s = request.budget_s or 0.0
    longest_s = budget_s + request.timeout_s
    with bench(dataclasses.replace(request, timeout_s=longest_s)) as jobs:
        ending = jobs.run(
            AlgorithmRequest, fresh=True, tuned=settings, budget_s=budget_s
        )
        log = end_of(jobs.log)
    result = AlgorithmResult.read(ending.payload)
    if ending.outcome is not Outcome.OK:
        what = f"the algorithm of {request.target} failed in {ending.step.value}: {ending.message}"
        where = [result.where] if result.where else []
        raise result.error or TargetError(what, *where, *log[-6:])
    names = ("rounds", "runners", "warmup_s", "warmup_iterations", "active")
    measured = {name: getattr(result, name) for name in names}
    gains = figures(result.rounds, result.runners)
    return {
        "target": request.target,
        "figures": gains,
        "notes": _notes(gains, result),
        **measured,
    }


def figures(rounds: Sequence[Mapping[str, Any]], runners: int = 1) -> dict[str, Any]:
    """Estimates with 95 % intervals from the rounds of one process, paired by round.

    That of a gain counts too how far fresh processes usually are apart; those of a side do not.

    Returns:
        ``steps_per_s`` and ``sampled_per_s``: env steps by seconds of ``train()`` and of sampling;
        ``update_s``; ``forward_share`` of sampling. Each of ``untouched`` and ``tuned``, and but
        for the share their ``gain``.
    """
    estimates = {}
    for name, above, below, factor, more_is_better in (
        ("steps_per_s", "steps", "train_s", 1, True),
        ("sampled_per_s", "steps", "sample_s", runners, True),
        ("update_s", "update_s", "updates", 1, False),
        ("forward_share", "forward_s", "sample_s", 1, None),
    ):
        both = [
            [
                factor * one[side][above] / one[side][below]
                for side in ("untouched", "tuned")
            ]
            for one in rounds
            if all(
                one[s].get(above) and one[s].get(below) for s in ("untouched", "tuned")
            )
        ]
        if not both:
            continue
        plain, tuned = zip(*both, strict=True)
        row = {
            "untouched": median_interval(plain).to_dict(),
            "tuned": median_interval(tuned).to_dict(),
        }
        if more_is_better is not None:
            pair = (tuned, plain) if more_is_better else (plain, tuned)
            row["gain"] = _gain(*pair).to_dict()
        estimates[name] = row
    return estimates


def _gain(slow: Sequence[float], fast: Sequence[float]) -> Interval:
    """As uncertain as one process is, or as its own rounds are."""
    inside, outside = speedup(slow, fast), over_sets([0.0])
    return Interval(
        inside.value,
        min(inside.low, inside.value * outside.low),
        max(inside.high, inside.value * outside.high),
    )


def _notes(estimates: Mapping[str, Any], result: AlgorithmResult) -> list[str]:
    notes = []
    if share := estimates.get("forward_share"):
        most = 1 / max(1 - share["untouched"]["value"], 1e-3)
        notes.append(
            f"were the forward free, sampling would be {most:.2f} times as fast"
        )
    if len(result.rounds) < _FEW_ROUNDS:
        notes.append(
            f"{len(result.rounds)} iterations of each are too few for a 95 % interval: the range "
            "of the values stands in its place (a longer --budget helps)"
        )
    for runner in result.active["env_runners"][:1]:
        if runner.get("measured_elsewhere"):
            notes.append(
                f"measured elsewhere: {'; '.join(runner['measured_elsewhere'])}"
            )
    return notes
