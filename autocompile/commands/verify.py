"""``autocompile verify``: whether settings that were found before are still right and fastest."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from autocompile import api
from autocompile.commands.bench import SAMPLE, bench, log_shown
from autocompile.errors import UsageError
from autocompile.estimate.candidates import ONE
from autocompile.interpreters.named import DEFAULT, found_interpreters, paths_of
from autocompile.progress import Progress
from autocompile.request import Request
from autocompile.result import Result
from autocompile.settings.config import EAGER
from autocompile.settings.searchspace import SearchSpace
from autocompile.settings.tuned import Choice, Tuned, TunedSet
from autocompile.store.record import Outcome
from autocompile.store.report import PhaseResult
from autocompile.store.targets import target_spec

_LOOK_S = 120.0  # for a step of the process that looks at the machine
REQUIREMENTS = {
    **dict.fromkeys(("speedup", "max-graphs", "max-recompiles"), "a number"),
    "max-compile-time": "a duration",
}
"""What may be asked of a setting, and what its bound is."""


@dataclass(frozen=True)
class Check:
    """What became of one choice.

    Its verdict is ``fastest``; ``eager`` or ``default`` where that is faster by now; ``failed``
    where it no longer works or computes something else; ``open`` where too little was measured.
    """

    phase: str
    batch_size: int | None
    setting: str
    verdict: str
    message: str = ""  # why, in words; empty if it is fastest
    # the speed-up over eager mode: value, low, high
    was: Mapping[str, float] | None = None
    # the same here and now; None if it failed
    speedup: Mapping[str, float] | None = None
    graphs: int | None = None
    recompiles: int | None = None
    compile_s: float | None = None

    def unmet(self, required: Mapping[str, float]) -> list[str]:
        """What does not come up to what is required, a sentence each.

        Of a speed-up the lower end of its interval counts, and none is asked where one was
        measured and it is open. What nothing was measured for is not met.
        """
        where = (
            self.phase
            if self.batch_size is None
            else f"{self.phase} at {self.batch_size}"
        )
        if self.verdict == "open" and self.speedup is None:
            why = self.message or "it was not measured"
            return [f"{where}: {name} was not measured: {why}" for name in required]
        low = self.speedup["low"] if self.speedup else 0.0
        seen = {
            "speedup": None if self.verdict == "open" else low,
            "max-graphs": self.graphs,
            "max-recompiles": self.recompiles,
            "max-compile-time": self.compile_s,
        }
        return [
            f"{where}: {name} is {value:.4g}, and {bound:g} is required"
            for name, bound in required.items()
            if (value := seen[name]) is not None
            and (value < bound if name == "speedup" else value > bound)
        ]


def verify(
    settings: TunedSet,
    target: str | None,
    required: Mapping[str, float],
    given: Mapping[str, Any],
    progress: Progress | str,
    began: float | None = None,
) -> dict[str, Any]:
    """Measure settings again, beside eager mode and plain ``torch.compile()``.

    Of several machines' settings, those that fit this one. They are judged by what decided
    when they were found: limits, tolerance, calls and all else that they keep.

    Args:
        target: None: that of the settings.
        given: options of :func:`autocompile.tune`, which go before those of the settings:
            a budget, a timeout, ``pythons`` where interpreters are by now, other calls.
        began: when the budget began, by ``time.monotonic``; None: now.

    Returns:
        ``checks``: a row for each setting. ``unmet``: a sentence for each requirement that is not
        met. ``is_good``: all are met, and each setting is right and the fastest, or open.
    """
    entry = entry_here(settings, given.get("device"), bool(given.get("wait")))
    request = request_for(entry, target, given)
    with (
        # What a process that ends still writes there costs no result.
        tempfile.TemporaryDirectory(
            prefix="autocompile-verify-", ignore_cleanup_errors=True
        ) as folder,
        log_shown(),
    ):
        request = replace(request, run_dir=Path(folder) / "run")
        result = api.tune_with(request, api.Parts(progress=progress, began=began))
    checks = check(entry, result)
    unmet = [text for one in checks for text in one.unmet(required)]
    return {
        "checks": [asdict(one) for one in checks],
        "unmet": unmet,
        "is_good": not unmet
        and all(one.verdict in ("fastest", "open") for one in checks),
        "interrupted": result.interrupted,
        "environment": dict(result.environment),
        "differences": entry.differences(result.environment),
    }


def request_for(entry: Tuned, target: str | None, given: Mapping[str, Any]) -> Request:
    """The request that tries settings again, by what decided when they were found."""
    spec = target_spec(target or entry.target)
    used = {c.config.environment for every in entry.phases.values() for c in every}
    others = _interpreters(entry, used - {DEFAULT}, given.get("pythons") or ())
    usual = {"device": entry.fingerprint.get("device")}
    # What is given goes before what decided then, and that before the defaults.
    kept = Request.decided(spec, entry.decided_by)
    decided = {name: getattr(kept, name) for name in entry.decided_by}
    only = {"phases": tuple(entry.phases), "only": entry.tried(), "pythons": others}
    return Request.of(spec, {**usual, **decided, **_stated(given), **only})


def _interpreters(
    entry: Tuned, needed: Collection[str], pythons: Sequence[str]
) -> tuple[str, ...]:
    """The interpreters that settings need, of those that are given.

    A file may come from others: what it names is not started.
    """
    given = found_interpreters(pythons)
    missing = sorted({*needed} - {*paths_of(given)})
    if missing:
        named = {name: entry.interpreters.get(name, "PATH") for name in missing}
        raise UsageError(
            f"settings were measured under other interpreters: {', '.join(missing)}",
            "an interpreter that a file names is started only if you name it, too",
            hint=" ".join(
                f"--python {shlex.quote(f'{n}={path}')}" for n, path in named.items()
            ),
        )
    return given


def _stated(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def entry_here(
    settings: TunedSet, device: str | None = None, wait: bool = True
) -> Tuned:
    """The settings that fit this machine, which is looked at only where there are several."""
    (entry, *others) = settings.entries
    if not others:
        return entry
    space = SearchSpace(backends=("eager",))
    request = Request(SAMPLE, space=space, device=device, timeout_s=_LOOK_S)
    with bench(request, wait=wait) as jobs:
        return settings.fitting(jobs.probed()["default"].environment)


def check(settings: Tuned, result: Result) -> list[Check]:
    """Compare settings with the result of a run of :func:`request_for`."""
    phases = result.report.phases
    return [
        _check(phase, choice, phases[phase])
        for phase, choices in settings.phases.items()
        for choice in choices
    ]


# They say nothing about a setting.
_UNDECIDED = (Outcome.INTERRUPTED, Outcome.INFRASTRUCTURE)


def _check(phase: str, choice: Choice, result: PhaseResult) -> Check:
    config, size = choice.config, choice.batch_size
    base = Check(phase, size, config.label(), "open", was=choice.speedup)
    searched = {
        trial.config: trial
        for trial in result.searched
        if trial.batch_size == size and trial.outcome not in _UNDECIDED
    }
    for one in (config, EAGER):  # without eager mode nothing is compared
        if (failed := searched.get(one)) and not failed.ok:
            message = f"{failed.outcome.value} in {failed.step.value}: {failed.message}"
            named = message if one == config else f"eager mode: {message}"
            return replace(base, verdict="failed", message=named)
    trial = searched.get(config)
    if trial is None:
        return replace(base, message="there was no time to try it")
    now = ONE if config == EAGER else trial.speedup
    base = replace(
        base,
        speedup=now.to_dict() if now else None,
        graphs=trial.graphs,
        recompiles=trial.recompiles,
        compile_s=trial.compile_s,
    )
    answer = next((a for a in result.answers if a.batch_size == size), None)
    if answer is None or answer.best is None:
        reason = answer.reason if answer else "it was not confirmed"
        is_failed = answer is not None and answer.verdict == "failed"
        return replace(base, verdict="failed" if is_failed else "open", message=reason)
    best = answer.best
    if best.config == config or trial.number in best.same_code:
        return replace(base, verdict="fastest", speedup=best.speedup.to_dict())
    message = f"{best.config.label()} is as fast or faster here"
    is_eager = best.config == EAGER
    return replace(base, verdict="eager" if is_eager else "default", message=message)
