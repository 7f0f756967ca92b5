"""``autocompile verify``: whether settings that were found before are still right and fastest."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autocompile import api
from autocompile.progress import Progress
from autocompile.result import Result
from autocompile.settings.config import EAGER, CompileConfig
from autocompile.settings.tuned import Choice, Tuned, is_faster

__all__ = ["REQUIREMENTS", "Check", "Verified", "check", "faults", "unmet", "verify"]

REQUIREMENTS = ("speedup", "max-graphs", "max-recompiles", "max-compile-time")


@dataclass(frozen=True)
class Check:
    """What became of one choice.

    Attributes:
        phase: it is of.
        batch_size: None where the phase has none.
        setting: its label.
        verdict: ``fastest``; ``eager`` or ``default`` where that is faster by now; ``failed`` where
            it no longer works or computes something else; ``open`` where too little was measured.
        message: why, in words; empty if it is fastest.
        was: the speed-up over eager mode then: ``value``, ``low``, ``high``.
        speedup: the same here and now; None if it failed.
        graphs, recompiles, compile_s: of its trial.
    """

    phase: str
    batch_size: int | None
    setting: str
    verdict: str
    message: str = ""
    was: Mapping[str, float] | None = None
    speedup: Mapping[str, float] | None = None
    graphs: int | None = None
    recompiles: int | None = None
    compile_s: float | None = None

    @property
    def is_good(self) -> bool:
        """Whether the setting can go on being used."""
        return self.verdict == "fastest"

    @property
    def is_open(self) -> bool:
        """Whether too little was measured to say so."""
        return self.verdict == "open"

    @property
    def where(self) -> str:
        """Phase and batch size, in words."""
        return self.phase if self.batch_size is None else f"{self.phase} at {self.batch_size}"

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Verified:
    """What became of all choices.

    Attributes:
        checks: one for each choice.
        required: what was required of them, as for :func:`unmet`.
        environment: torch and the machine here.
        differences: where they are not those of the settings.
        interrupted: Ctrl-C ended it early.
    """

    checks: list[Check]
    required: Mapping[str, float]
    environment: Mapping[str, Any]
    differences: list[str]
    interrupted: bool

    @property
    def faults(self) -> list[str]:
        """Why it fails, a sentence each; empty if it passes."""
        return [text for one in self.checks for text in faults(one, self.required)]

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "checks": [one.to_dict() for one in self.checks],
            "unmet": unmet(self.checks, self.required),
            "environment": dict(self.environment),
            "differences": self.differences,
        }


def verify(
    settings: Tuned,
    target: str | None = None,
    required: Mapping[str, float] | None = None,
    *,
    budget_s: float = 120.0,
    timeout_s: float = 300.0,
    device: str | None = None,
    progress: Progress,
) -> Verified:
    """Measure settings again, beside eager mode and plain ``torch.compile()``.

    Args:
        settings: from a file or a run.
        target: where it is now; None: where it was.
        required: as for :func:`unmet`.
        budget_s, timeout_s, progress: as for ``autocompile.tune``.
        device: None: the one that they were measured on.

    Raises:
        UsageError, NothingWorked: as ``autocompile.tune``.
    """
    with tempfile.TemporaryDirectory(prefix="autocompile-verify-") as folder:
        result = api.tune(
            target or settings.target,
            only=settings,
            budget_s=budget_s,
            device=device or settings.fingerprint.get("device"),
            timeout_s=timeout_s,
            run_dir=Path(folder) / "run",
            progress=progress,
        )
    here = result.environment
    differences = settings.differences(here)
    checks = check(settings, result)
    return Verified(checks, required or {}, here, differences, result.interrupted)


def check(settings: Tuned, result: Result) -> list[Check]:
    """Compare settings with a run that tried them and nothing else.

    Args:
        settings: from a file.
        result: of ``autocompile.tune(..., only=settings)``.
    """
    phases = result.to_dict()["phases"]
    return [
        _check(phase, choice, phases[phase])
        for phase, choices in settings.phases.items()
        for choice in choices
    ]


def faults(one: Check, required: Mapping[str, float]) -> list[str]:
    """Why ``verify`` fails for a choice, a sentence each; empty where it passes.

    Args:
        one: what became of it.
        required: as for :func:`unmet`.
    """
    own = [] if one.is_good or one.is_open else [f"{one.verdict}: {one.message}"]
    return [*own, *unmet([one], required)]


def unmet(checks: Sequence[Check], required: Mapping[str, float]) -> list[str]:
    """What does not come up to what is required, a sentence each.

    Args:
        checks: of eager mode nothing but the speed-up is asked, and no speed-up where it is open.
        required: by the names of :data:`REQUIREMENTS`; seconds of a compile, and of a speed-up the
            lower end of its interval.
    """
    found = []
    for one in checks:
        seen = {
            "speedup": None if one.is_open else one.speedup["low"] if one.speedup else 0.0,
            "max-graphs": one.graphs,
            "max-recompiles": one.recompiles,
            "max-compile-time": one.compile_s,
        }
        for name, bound in required.items():
            value = seen[name]
            if value is not None and (value < bound if name == "speedup" else value > bound):
                found.append(f"{one.where}: {name} is {value:.4g}, and {bound:g} is required")
    return found


def _check(phase: str, choice: Choice, found: Mapping[str, Any]) -> Check:
    config, size = choice.config, choice.batch_size
    base = Check(phase, size, config.label(), "open", was=choice.speedup)
    own = [t for t in found["trials"] if t["batch_size"] == size]
    by_config = {CompileConfig.from_dict(t["config"]): t for t in own if t["role"] == "search"}
    trial = by_config.get(config)
    if trial is None:
        return _with(base, message="there was no time to try it")
    facts = {name: trial.get(name) for name in ("graphs", "recompiles", "compile_s")}
    if trial["outcome"] != "ok":
        message = f"{trial['outcome']} in {trial['step']}: {trial['message']}"
        return _with(base, verdict="failed", message=message, **facts)
    row = _row(found, size)
    speedup = {"value": 1.0, "low": 1.0, "high": 1.0} if config == EAGER else trial["speedup"]
    if row is None:
        return _with(base, message="it was not confirmed", speedup=speedup, **facts)
    winner = next(t for t in own if t["number"] == row["number"])
    best = CompileConfig.from_dict(winner["config"]) if is_faster(row) else EAGER
    if best == config or winner["duplicate_of"] == trial["number"]:
        speedup = speedup if config == EAGER else row["speedup"]
        return _with(base, verdict="fastest", speedup=speedup, **facts)
    verdict = "eager" if best == EAGER else "default"
    message = f"{best.label()} is as fast or faster here"
    return _with(base, verdict=verdict, message=message, speedup=speedup, **facts)


def _with(base: Check, **changes: Any) -> Check:
    return Check(**{**asdict(base), **changes})


def _row(found: Mapping[str, Any], size: int | None) -> Mapping[str, Any] | None:
    """The report's row of a batch size; of a phase without any, its best."""
    if size is not None:
        rows = found["by_batch_size"]
        return next((row for row in rows if row["batch_size"] == size), None)
    best = found["best"]
    return None if best is None else {**best, "faster": found["verdict"] == "faster"}
